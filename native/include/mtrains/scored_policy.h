// Eviction by a score that is a function of a slot's hot record.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "mtrains/slot_index.h"

namespace mtrains {

// Exactly the slot of the lowest score, ties by slot number; slots whose rows are wanted() are another's.
//
// A scan of the hot records lists the lowest sixteenth, the next scan those above it. `cut_` is where the
// list ends: a slot that comes to lie below it is listed late. Scores may rise unseen (a touch): such an
// entry is listed anew when its turn comes. So a victim costs O(log) and 16 records of a scan, and memory is
// half a byte a slot.
//
// Score: static std::uint32_t of(const SlotRecord&); kNewestLast: a slot used at this clock has the highest.
template <typename Score>
class ScoredPolicy : public EvictionPolicy {
 public:
  std::int64_t victim(SlotIndex& index, std::uint32_t clock) override {
    Victim victim;
    if (!peek(index, clock, &victim)) return -1;
    pop();
    return victim.slot;
  }

  bool peek(SlotIndex& index, std::uint32_t clock, Victim* victim) override {
    begin(clock);
    bool from_start = !listed_;
    while (!exhausted_) {
      if (advance(index, clock)) {
        const std::uint32_t slot = slot_of(top());
        *victim = {slot, index.hot(slot).last_use, kNoUse};
        return true;
      }
      if (scan(index, clock)) continue;
      // Slots that were chosen and not evicted after all are below the cut.
      exhausted_ = from_start;
      from_start = true;
      clear_lists();
    }
    return false;
  }

  void inserted(SlotIndex& index, std::uint32_t slot) override { offer(index, slot); }
  void unwanted(SlotIndex& index, std::uint32_t slot) override { offer(index, slot); }
  void released(SlotIndex& /*index*/, std::uint32_t /*slot*/) override {
    exhausted_ = false;
    take_back_held();
  }
  void clear() override {
    clear_lists();
    exhausted_ = false;
  }

 private:
  using Entry = std::uint64_t;               // score, slot
  static constexpr std::size_t kAhead = 16;  // victims whose records are loaded meanwhile
  static std::uint32_t slot_of(Entry entry) { return static_cast<std::uint32_t>(entry); }
  static Entry entry_of(const SlotIndex& index, std::uint32_t slot) {
    return (Entry{Score::of(index.hot(slot))} << 32) | slot;
  }
  static std::size_t list_size(const SlotIndex& index) { return index.capacity() / 16 + 64; }

  bool late_is_first() const {
    return !late_.empty() && (next_ == queue_.size() || late_.front() <= queue_[next_]);
  }
  bool empty() const { return late_.empty() && next_ == queue_.size(); }
  Entry top() const { return late_is_first() ? late_.front() : queue_[next_]; }
  void pop() {
    if (!late_is_first()) {
      ++next_;
      return;
    }
    std::pop_heap(late_.begin(), late_.end(), std::greater<>());
    late_.pop_back();
  }
  void push_late(Entry entry) {
    late_.push_back(entry);
    std::push_heap(late_.begin(), late_.end(), std::greater<>());
  }

  void begin(std::uint32_t clock) {
    if (clock == clock_) return;
    clock_ = clock;
    exhausted_ = false;
    take_back_held();
  }
  void take_back_held() {
    for (const Entry entry : held_) push_late(entry);
    held_.clear();
  }

  void offer(SlotIndex& index, std::uint32_t slot) {
    if (index.hot(slot).last_use < clock_) exhausted_ = false;
    if (!listed_ || index.hot(slot).wanted()) return;
    const Entry entry = entry_of(index, slot);
    if (entry > cut_) return;
    if (++num_offered_ > list_size(index)) {
      clear_lists();
    } else {
      push_late(entry);
    }
  }

  // Drops what is no victim; false if the lists end.
  bool advance(const SlotIndex& index, std::uint32_t clock) {
    while (!empty()) {
      const Entry entry = top();
      const std::uint32_t slot = slot_of(entry);
      if (next_ + kAhead < queue_.size()) index.prefetch(slot_of(queue_[next_ + kAhead]));
      const bool known = slot < index.capacity() && index.occupied(slot) && !index.hot(slot).wanted();
      const Entry present = known ? entry_of(index, slot) : 0;
      if (known && present == entry && index.evictable(slot, clock)) return true;
      pop();
      if (!known) continue;
      if (present == entry) {
        held_.push_back(entry);  // until the next clock
      } else if (present > entry && present <= cut_) {
        push_late(present);
      }
    }
    return false;
  }

  bool scan(const SlotIndex& index, std::uint32_t clock) {
    queue_.clear();
    next_ = 0;
    num_offered_ = 0;
    for (std::uint32_t slot = 0; slot < index.capacity(); ++slot) {
      const SlotRecord& record = index.hot(slot);
      if (record.wanted() || (Score::kNewestLast && record.last_use >= clock)) continue;
      const Entry entry = entry_of(index, slot);
      if ((!listed_ || entry > cut_) && index.occupied(slot)) queue_.push_back(entry);
    }
    if (queue_.empty()) return false;
    const std::size_t keep = std::min(queue_.size(), list_size(index));
    std::nth_element(queue_.begin(), queue_.begin() + static_cast<std::ptrdiff_t>(keep - 1), queue_.end());
    queue_.resize(keep);
    std::sort(queue_.begin(), queue_.end());
    cut_ = queue_.back();
    listed_ = true;
    return true;
  }

  void clear_lists() {
    queue_.clear();
    late_.clear();
    held_.clear();
    next_ = 0;
    num_offered_ = 0;
    listed_ = false;
  }

  std::vector<Entry> queue_;  // ascending, from next_
  std::size_t next_ = 0;
  std::vector<Entry> late_;  // a heap, the lowest first
  std::vector<Entry> held_;  // below the cut, but pinned or used at clock_
  std::size_t num_offered_ = 0;
  bool listed_ = false;  // a scan has set cut_
  Entry cut_ = 0;        // what lies above it is not listed
  std::uint32_t clock_ = 0;
  bool exhausted_ = false;  // there is no victim at clock_
};

}  // namespace mtrains
