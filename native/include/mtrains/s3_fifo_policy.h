// S3-FIFO: a small queue on trial, a main queue, and the names of rows that left the small one.
#pragma once

#include <cstdint>
#include <deque>
#include <unordered_map>
#include <utility>
#include <vector>

#include "mtrains/slot_index.h"

namespace mtrains {

// New rows enter a small queue of a tenth of the slots. At its end a row that was accessed twice since goes
// to the main queue; any other leaves and is remembered by name for as long as the main queue has slots, and
// if it returns meanwhile it enters the main queue at once. At the end of the main queue an accessed row goes
// round again with one access less. So rows of one burst never displace the main queue.
//
// Beyond the index it keeps 8 bytes a slot for the queues and some 60 a remembered row.
// Source: Yang et al., FIFO queues are all you need for cache eviction, SOSP 2023.
class S3FifoPolicy : public EvictionPolicy {
 public:
  std::int64_t victim(SlotIndex& index, std::uint32_t clock) override;
  bool peek(SlotIndex& index, std::uint32_t clock, Victim* victim) override;
  void inserted(SlotIndex& index, std::uint32_t slot) override;
  void accessed(SlotIndex& index, std::uint32_t slot) override;
  bool hears_accesses() const override { return true; }
  void released(SlotIndex& index, std::uint32_t slot) override;
  void unwanted(SlotIndex& index, std::uint32_t slot) override;
  void clear() override;

 private:
  struct Entry {
    std::uint32_t slot;
    std::uint32_t name;  // low bits of the row's key: another row may have the slot by now
  };
  struct Queue {
    std::deque<Entry> entries;  // the oldest first
    std::vector<Entry> held;    // older than all of them, but pinned or used at clock_
    std::size_t size() const { return entries.size() + held.size(); }
  };

  void begin(SlotIndex& index, std::uint32_t clock);
  void take_back_held();
  void enqueue(SlotIndex& index, std::uint32_t slot);
  bool requeue(SlotIndex& index, bool all);
  Queue* find(SlotIndex& index, std::uint32_t clock);
  bool settle_front(SlotIndex& index, std::uint32_t clock, Queue& queue);
  void remember(const SlotIndex& index, RowKey key);
  bool recall(RowKey key);

  Queue small_, main_;
  std::unordered_map<RowKey, std::uint64_t> ghosts_;          // row -> when it left
  std::deque<std::pair<RowKey, std::uint64_t>> ghost_order_;  // may name some that were recalled
  std::uint64_t num_ghosts_ever_ = 0;
  std::uint32_t clock_ = 0;
  bool exhausted_ = false;  // there is no victim at clock_
  bool cleared_ = false;    // the queues must be built from the index
};

}  // namespace mtrains
