// Eviction by next use: Belady's rule inside the lookahead window.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "mtrains/lookahead_window.h"
#include "mtrains/slot_index.h"

namespace mtrains {

// Rows without a use in the window leave first, in the order of another policy; then those whose next use is
// farthest, ties by slot number. A victim costs O(log) and a next use that changes O(1).
//
// Where a next use is kept: in the window, which is bounded by its batches, not in the slots. A slot has only
// the bit wanted(). For victims, each batch of the window has a list of the slots that wait for it, an entry
// for each time that a row came to wait for it; those that are no longer true are dropped when met.
class NextUsePolicy : public EvictionPolicy {
 public:
  // `window` outlives the policy. `beyond` ranks the rows that the window does not have.
  NextUsePolicy(const LookaheadWindow& window, std::unique_ptr<EvictionPolicy> beyond);

  // What the window says of the row in the slot has changed: to be called with what it tells `changed`, for
  // rows that are in slots of this index.
  void next_use_changed(SlotIndex& index, std::uint32_t slot, std::uint32_t next_use);

  std::int64_t victim(SlotIndex& index, std::uint32_t clock) override;
  bool peek(SlotIndex& index, std::uint32_t clock, Victim* victim) override;
  void inserted(SlotIndex& index, std::uint32_t slot) override;
  void accessed(SlotIndex& index, std::uint32_t slot) override { beyond_->accessed(index, slot); }
  bool hears_accesses() const override { return beyond_->hears_accesses(); }
  void released(SlotIndex& index, std::uint32_t slot) override;
  void evicted(SlotIndex& index, std::uint32_t slot) override { beyond_->evicted(index, slot); }
  void clear() override;

 private:
  struct Waiting {
    std::uint32_t batch = kNoUse;
    bool listed = false;  // the batch is in batches_
    bool sorted = false;
    std::vector<std::uint32_t> slots;  // sorted: descending, so that the last is the first to leave
  };

  Waiting& waiting_for(std::uint32_t batch) { return waiting_[batch & (waiting_.size() - 1)]; }
  void begin(SlotIndex& index, std::uint32_t clock);
  void wait(std::uint32_t slot, std::uint32_t batch);
  void make_places();
  void drop_left_batches();
  void take_back_held(SlotIndex& index);
  bool is_waiting(const SlotIndex& index, std::uint32_t slot, std::uint32_t batch) const;
  bool advance(SlotIndex& index, std::uint32_t clock);

  const LookaheadWindow& window_;
  std::unique_ptr<EvictionPolicy> beyond_;
  std::vector<Waiting> waiting_;        // by batch, modulo its size, a power of two
  std::vector<std::uint32_t> batches_;  // that have slots waiting: a heap, the farthest first
  std::vector<std::uint32_t> held_;     // slots whose turn came while they were pinned or in use
  std::uint32_t clock_ = 0;
  bool cleared_ = false;  // the lists must be built from the index
};

}  // namespace mtrains
