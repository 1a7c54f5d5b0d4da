#include "mtrains/s3_fifo_policy.h"

#include <algorithm>

namespace mtrains {
namespace {

// Bits of a slot's rank.
constexpr std::uint32_t kAccesses = 3;  // a count up to 3
constexpr std::uint32_t kInMain = 4;
constexpr std::uint32_t kQueued = 8;

constexpr std::uint32_t kSmallShare = 10;  // a tenth of the slots

std::uint32_t small_slots(const SlotIndex& index) { return std::max(1u, index.capacity() / kSmallShare); }

}  // namespace

void S3FifoPolicy::begin(SlotIndex& index, std::uint32_t clock) {
  if (cleared_) {
    cleared_ = false;
    requeue(index, /*all=*/true);
  }
  if (clock == clock_) return;
  clock_ = clock;
  exhausted_ = false;
  take_back_held();
}

void S3FifoPolicy::take_back_held() {
  for (Queue* queue : {&small_, &main_}) {
    queue->entries.insert(queue->entries.begin(), queue->held.begin(), queue->held.end());
    queue->held.clear();
  }
}

void S3FifoPolicy::enqueue(SlotIndex& index, std::uint32_t slot) {
  SlotRecord& record = index.hot(slot);
  record.rank = record.rank | kQueued;
  Queue& queue = record.rank & kInMain ? main_ : small_;
  queue.entries.push_back({slot, static_cast<std::uint32_t>(index.key(slot))});
  // Rows that others evicted leave their entries.
  if (queue.entries.size() <= 2 * std::size_t{index.capacity()} + 64) return;
  std::erase_if(queue.entries, [&](const Entry& entry) {
    return entry.slot >= index.capacity() || static_cast<std::uint32_t>(index.key(entry.slot)) != entry.name;
  });
}

// Puts rows that are in no queue into one, the least recently used first; whether there were any.
bool S3FifoPolicy::requeue(SlotIndex& index, bool all) {
  std::vector<std::pair<std::uint32_t, std::uint32_t>> lost;
  for (std::uint32_t slot = 0; slot < index.capacity(); ++slot) {
    SlotRecord& record = index.hot(slot);
    if (!index.occupied(slot)) continue;
    if (all) record.rank = record.rank & ~kQueued;
    if (!(record.rank & kQueued) && !record.wanted()) lost.emplace_back(+record.last_use, slot);
  }
  std::sort(lost.begin(), lost.end());
  for (const auto& [last_use, slot] : lost) enqueue(index, slot);
  return !lost.empty();
}

void S3FifoPolicy::inserted(SlotIndex& index, std::uint32_t slot) {
  const bool returned = recall(index.key(slot));
  index.hot(slot).rank = returned ? kInMain : 0;
  if (!cleared_) enqueue(index, slot);
}

void S3FifoPolicy::accessed(SlotIndex& index, std::uint32_t slot) {
  SlotRecord& record = index.hot(slot);
  if ((record.rank & kAccesses) < kAccesses) record.rank = record.rank + 1;
}

void S3FifoPolicy::released(SlotIndex& /*index*/, std::uint32_t /*slot*/) {
  exhausted_ = false;
  take_back_held();
}

void S3FifoPolicy::unwanted(SlotIndex& index, std::uint32_t slot) {
  exhausted_ = false;
  if (!cleared_ && !(index.hot(slot).rank & kQueued)) enqueue(index, slot);
}

void S3FifoPolicy::clear() {
  small_ = main_ = {};
  cleared_ = true;
  exhausted_ = false;
}

// Whether the row at the front may leave; if not, it has another place now.
bool S3FifoPolicy::settle_front(SlotIndex& index, std::uint32_t clock, Queue& queue) {
  const Entry entry = queue.entries.front();
  const std::uint32_t slot = entry.slot;
  const bool stale = slot >= index.capacity() || static_cast<std::uint32_t>(index.key(slot)) != entry.name;
  if (!stale) {
    SlotRecord& record = index.hot(slot);
    const std::uint32_t accesses = record.rank & kAccesses;
    if (record.wanted()) {
      record.rank = record.rank & ~kQueued;  // queued again when it is released
    } else if (&queue == &small_ && accesses > 1) {
      record.rank = kInMain | kQueued;
      main_.entries.push_back(entry);
    } else if (&queue == &main_ && accesses > 0) {
      record.rank = record.rank - 1;
      main_.entries.push_back(entry);
    } else if (!index.evictable(slot, clock)) {
      queue.held.push_back(entry);
    } else {
      return true;
    }
  }
  queue.entries.pop_front();
  return false;
}

S3FifoPolicy::Queue* S3FifoPolicy::find(SlotIndex& index, std::uint32_t clock) {
  for (;;) {
    const bool small_is_full = small_.size() >= small_slots(index) && !small_.entries.empty();
    Queue& queue = small_is_full || main_.entries.empty() ? small_ : main_;
    if (queue.entries.empty()) return nullptr;
    if (settle_front(index, clock, queue)) return &queue;
  }
}

bool S3FifoPolicy::peek(SlotIndex& index, std::uint32_t clock, Victim* victim) {
  begin(index, clock);
  if (exhausted_) return false;
  Queue* queue = find(index, clock);
  if (queue == nullptr && requeue(index, /*all=*/false)) queue = find(index, clock);
  if (queue == nullptr) {
    exhausted_ = true;
    return false;
  }
  const std::uint32_t slot = queue->entries.front().slot;
  *victim = {slot, index.hot(slot).last_use, kNoUse};
  return true;
}

std::int64_t S3FifoPolicy::victim(SlotIndex& index, std::uint32_t clock) {
  Victim victim;
  if (!peek(index, clock, &victim)) return -1;
  SlotRecord& record = index.hot(victim.slot);
  const bool from_small = !(record.rank & kInMain);
  (from_small ? small_ : main_).entries.pop_front();
  record.rank = record.rank & ~kQueued;
  if (from_small) remember(index, index.key(victim.slot));
  return victim.slot;
}

void S3FifoPolicy::remember(const SlotIndex& index, RowKey key) {
  const std::size_t most = index.capacity() - std::min(index.capacity(), small_slots(index));
  ghosts_[key] = ++num_ghosts_ever_;
  ghost_order_.emplace_back(key, num_ghosts_ever_);
  const auto is_stale = [this](const std::pair<RowKey, std::uint64_t>& ghost) {
    const auto it = ghosts_.find(ghost.first);
    return it == ghosts_.end() || it->second != ghost.second;
  };
  while (ghosts_.size() > most || (!ghost_order_.empty() && is_stale(ghost_order_.front()))) {
    if (!is_stale(ghost_order_.front())) ghosts_.erase(ghost_order_.front().first);
    ghost_order_.pop_front();
  }
  if (ghost_order_.size() > 2 * most + 64) std::erase_if(ghost_order_, is_stale);
}

bool S3FifoPolicy::recall(RowKey key) { return ghosts_.erase(key) > 0; }

}  // namespace mtrains
