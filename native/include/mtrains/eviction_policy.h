// Who must leave a tier next. What a policy needs to hear: eviction.md.
#pragma once

#include <cstdint>

namespace mtrains {

class SlotIndex;

// The key of a row in a store: the first key of its table plus the row. 46 bits.
using RowKey = std::uint64_t;

inline constexpr std::uint32_t kNoUse = 0xffffffffu;  // no use in the lookahead window

struct Victim {
  std::uint32_t slot = 0;
  std::uint32_t last_use = 0;
  std::uint32_t next_use = kNoUse;  // number of a batch of the window
};

// Chooses victims among the slots of one index. Deterministic: a function of what it was told, in order.
//
// Not thread-safe. SlotIndex::touch() needs no call: it is the hot path.
class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;

  // The next slot to leave: occupied, not pinned, last used before `clock`; -1 if there is none.
  // The slot stays in the index; the caller evicts it before asking again.
  virtual std::int64_t victim(SlotIndex& index, std::uint32_t clock) = 0;
  // The same without choosing it; false if there is none. Pools of one tier compare what they would lose:
  // the farthest next use times the stride, or the oldest last use.
  virtual bool peek(SlotIndex& index, std::uint32_t clock, Victim* victim) = 0;

  // A row came into the slot; counts as its first access. SlotIndex calls it.
  virtual void inserted(SlotIndex& /*index*/, std::uint32_t /*slot*/) {}
  // A batch found its row in the slot: once per unique row and batch, however often it is touched. Needs no
  // call where hears_accesses() is false.
  virtual void accessed(SlotIndex& /*index*/, std::uint32_t /*slot*/) {}
  virtual bool hears_accesses() const { return false; }
  // Nothing pins the slot any more. SlotIndex::unpin calls it.
  virtual void released(SlotIndex& /*index*/, std::uint32_t /*slot*/) {}
  // The row in the slot is no longer wanted(): it has no next use in the window.
  virtual void unwanted(SlotIndex& /*index*/, std::uint32_t /*slot*/) {}
  // The row leaves the slot now, whoever chose it. SlotIndex calls it.
  virtual void evicted(SlotIndex& /*index*/, std::uint32_t /*slot*/) {}
  // Forgets what it planned: slots moved, or the clock did.
  virtual void clear() = 0;
};

}  // namespace mtrains
