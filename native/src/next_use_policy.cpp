#include "mtrains/next_use_policy.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <utility>

namespace mtrains {

NextUsePolicy::NextUsePolicy(const LookaheadWindow& window, std::unique_ptr<EvictionPolicy> beyond)
    : window_(window), beyond_(std::move(beyond)), waiting_(1) {}

void NextUsePolicy::next_use_changed(SlotIndex& index, std::uint32_t slot, std::uint32_t next_use) {
  const bool was_wanted = index.hot(slot).wanted();
  index.set_wanted(slot, next_use != kNoUse);
  if (next_use != kNoUse) {
    wait(slot, next_use);
  } else if (was_wanted) {
    beyond_->unwanted(index, slot);
  }
}

void NextUsePolicy::inserted(SlotIndex& index, std::uint32_t slot) {
  const std::uint32_t next_use = window_.next_use(index.key(slot));
  index.set_wanted(slot, next_use != kNoUse);
  beyond_->inserted(index, slot);
  if (next_use != kNoUse) wait(slot, next_use);
}

void NextUsePolicy::released(SlotIndex& index, std::uint32_t slot) {
  beyond_->released(index, slot);
  if (!held_.empty()) take_back_held(index);
}

void NextUsePolicy::clear() {
  for (Waiting& waiting : waiting_) waiting = {};
  batches_.clear();
  held_.clear();
  beyond_->clear();
  cleared_ = true;
}

// --- slots that wait for a batch

void NextUsePolicy::wait(std::uint32_t slot, std::uint32_t batch) {
  if (cleared_) return;
  if (window_.size() > waiting_.size()) make_places();
  Waiting& waiting = waiting_for(batch);
  if (waiting.batch != batch) {
    // The former batch of this place has left the window.
    waiting.batch = batch;
    waiting.listed = false;
    waiting.slots.clear();
  }
  if (!waiting.listed) {
    waiting.listed = true;
    if (batches_.size() > 2 * waiting_.size()) drop_left_batches();
    batches_.push_back(batch);
    std::push_heap(batches_.begin(), batches_.end());
  }
  waiting.slots.push_back(slot);
  waiting.sorted = false;
}

void NextUsePolicy::make_places() {
  std::vector<Waiting> old(std::bit_ceil(std::size_t{window_.size()} + 1));
  old.swap(waiting_);
  for (Waiting& waiting : old) {
    if (waiting.listed && waiting.batch >= window_.first()) waiting_for(waiting.batch) = std::move(waiting);
  }
  drop_left_batches();
}

void NextUsePolicy::drop_left_batches() {
  std::erase_if(batches_, [this](std::uint32_t batch) { return batch < window_.first(); });
  std::make_heap(batches_.begin(), batches_.end());
}

void NextUsePolicy::begin(SlotIndex& index, std::uint32_t clock) {
  if (cleared_) {
    cleared_ = false;
    for (std::uint32_t slot = 0; slot < index.capacity(); ++slot) {
      if (index.occupied(slot) && index.hot(slot).wanted()) wait(slot, window_.next_use(index.key(slot)));
    }
  }
  if (clock == clock_) return;
  clock_ = clock;
  take_back_held(index);
}

void NextUsePolicy::take_back_held(SlotIndex& index) {
  const std::vector<std::uint32_t> held = std::exchange(held_, {});
  for (const std::uint32_t slot : held) {
    if (slot < index.capacity() && index.occupied(slot) && index.hot(slot).wanted())
      wait(slot, window_.next_use(index.key(slot)));
  }
}

bool NextUsePolicy::is_waiting(const SlotIndex& index, std::uint32_t slot, std::uint32_t batch) const {
  return slot < index.capacity() && index.occupied(slot) && index.hot(slot).wanted() &&
         window_.next_use(index.key(slot)) == batch;
}

// Brings a slot that may leave to the end of the list of the farthest batch; false if there is none.
bool NextUsePolicy::advance(SlotIndex& index, std::uint32_t clock) {
  while (!batches_.empty()) {
    const std::uint32_t batch = batches_.front();
    Waiting& waiting = waiting_for(batch);
    if (batch >= window_.first() && waiting.batch == batch) {
      if (!waiting.sorted) std::sort(waiting.slots.begin(), waiting.slots.end(), std::greater<>());
      waiting.sorted = true;
      for (; !waiting.slots.empty(); waiting.slots.pop_back()) {
        const std::uint32_t slot = waiting.slots.back();
        if (!is_waiting(index, slot, batch)) continue;
        if (index.evictable(slot, clock)) return true;
        held_.push_back(slot);
      }
      waiting.listed = false;
    }
    std::pop_heap(batches_.begin(), batches_.end());
    batches_.pop_back();
  }
  return false;
}

// --- victims

bool NextUsePolicy::peek(SlotIndex& index, std::uint32_t clock, Victim* victim) {
  begin(index, clock);
  if (index.num_used() > index.num_wanted() && beyond_->peek(index, clock, victim)) return true;
  if (!advance(index, clock)) return false;
  const std::uint32_t batch = batches_.front();
  const std::uint32_t slot = waiting_for(batch).slots.back();
  *victim = {slot, index.hot(slot).last_use, batch};
  return true;
}

std::int64_t NextUsePolicy::victim(SlotIndex& index, std::uint32_t clock) {
  begin(index, clock);
  if (index.num_used() > index.num_wanted()) {
    const std::int64_t unwanted = beyond_->victim(index, clock);
    if (unwanted >= 0) return unwanted;
  }
  if (!advance(index, clock)) return -1;
  std::vector<std::uint32_t>& slots = waiting_for(batches_.front()).slots;
  const std::uint32_t slot = slots.back();
  slots.pop_back();
  return slot;
}

}  // namespace mtrains
