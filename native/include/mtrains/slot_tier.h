// One tier of slots: the memory it has, its pools, and who lends slots to whom.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "mtrains/bandwidth_limit.h"
#include "mtrains/device.h"
#include "mtrains/next_use_policy.h"
#include "mtrains/policies.h"
#include "mtrains/slot_index.h"
#include "mtrains/slot_memory.h"

namespace mtrains {

enum class TierKind : std::uint8_t { kHbm = 0, kDram = 1, kScm = 2 };  // from fast to slow
inline constexpr std::size_t kSlotTiers = 3;
const char* name_of(TierKind kind);

// A tier of a store. set_aside: bytes of it that are for tables with budgets of their own. memory: where
// slots are, host memory if null. device: instead of it, for HBM. limit: the rates of the device that it
// stands in for, or null.
struct TierSpec {
  TierKind kind = TierKind::kDram;
  std::uint64_t bytes = 0;
  std::uint64_t set_aside = 0;
  std::shared_ptr<SlotMemory> memory;
  std::shared_ptr<DeviceMemory> device;
  std::shared_ptr<BandwidthLimit> limit;
};

// Slots of one stride: shared by all tables whose records have it, or of one table with a budget of its own.
struct SlotPool {
  SlotPool(std::size_t level, std::size_t stride, std::uint64_t budget, const TierSpec& tier,
           SlotMemory& memory, const LookaheadWindow& window, PolicyKind beyond);
  std::byte* record(std::uint32_t slot) const { return records + slot * stride; }
  std::size_t slot_bytes() const { return stride + kSlotIndexBytes; }
  std::uint64_t bytes() const { return index.capacity() * std::uint64_t{slot_bytes()}; }
  // Makes more slots; false if the memory of the tier is used up.
  bool grow(std::uint32_t capacity);
  // Gives up the memory beyond the index's capacity.
  void trim();

  std::size_t level;  // of its tier in the chain; 0 computes
  std::size_t stride;
  std::uint64_t budget;                   // of slots and their index, in bytes
  std::unique_ptr<SlotRange> range;       // of the records, unless they are on a device
  std::byte* records = nullptr;           // where it begins
  std::unique_ptr<DeviceRecords> device;  // or null
  SlotIndex index;
  NextUsePolicy* next_use;                      // the index's policy
  std::atomic<std::uint32_t> num_protected{0};  // slots used at the present clock that are not pinned
  std::uint32_t num_pinned = 0;                 // slots with pins
};

struct TierCounters {
  std::uint64_t hits = 0;       // accesses that found their row here
  std::uint64_t evictions = 0;  // rows that left for a lower tier
  std::uint64_t dirty_evictions = 0;
  std::uint64_t rows_in = 0;   // that came down from the tier above
  std::uint64_t rows_out = 0;  // that went up to the compute tier
};

// Until when the devices that tiers stand in for would be busy, for a caller that waits when it holds no
// lock. 0: not.
struct OwedWaits {
  std::int64_t read_until = 0, write_until = 0;
};

// Not thread-safe.
class SlotTier {
 public:
  // The window outlives the tier. beyond: ranks the rows that it does not have.
  SlotTier(std::size_t level, TierSpec spec, const LookaheadWindow& window, PolicyKind beyond);

  const TierSpec& spec() const { return spec_; }
  std::size_t level() const { return level_; }
  // Bytes that tables without a budget of their own share.
  std::uint64_t shared_bytes() const { return spec_.bytes - spec_.set_aside; }
  // Gives a table part of what is set aside. Throws CapacityError if there is not so much left of it.
  void give(const std::string& table, std::uint64_t bytes);
  // The pool of a table whose records have this stride: the shared one, or its own of `own` bytes. Null if a
  // slot is more than its budget.
  SlotPool* pool_for(std::uint32_t table, std::size_t stride, const std::uint64_t* own);
  // Drops pools for which in_use(pool) is false.
  template <typename InUse>
  void drop_unused(const InUse& in_use) {
    std::erase_if(pools_, [&](const auto& item) { return !in_use(item.second.get()); });
  }
  std::vector<SlotPool*> pools() const;

  // Lends the pool a slab more; false if nothing is left of its budget.
  bool grow(SlotPool& pool);
  std::uint32_t slab_slots(const SlotPool& pool) const;
  // The pool that may lend `pool` a slab: of all, it has the row that shall leave first, before the pool's
  // own if only_worse; null if there is none. To a table's own pool all shared ones lend, up to its budget.
  SlotPool* lender_for(SlotPool& pool, bool only_worse, std::uint32_t clock) const;

  // Whether so many more pinned slots of each pool of this tier would leave pins within `share` of its slots.
  bool may_pin(const std::map<SlotPool*, std::uint64_t>& more, double share) const;

  // Tells of rows that were read and written here by moves or in place; waits as the emulated device would,
  // or has the caller of defer_waits() wait.
  void charge(std::uint64_t rows_read, std::uint64_t rows_written, std::size_t stride) {
    if (spec_.limit != nullptr) charge_limit(rows_read, rows_written, stride);
  }
  void defer_waits(OwedWaits* owed) { owed_ = owed; }  // null: no longer
  std::uint64_t slots() const;
  std::uint64_t used_slots() const;
  std::uint64_t used_bytes() const;

  TierCounters counters;

 private:
  static constexpr std::uint32_t kShared = 0xffffffffu;
  using Key = std::pair<std::uint32_t, std::size_t>;  // (owner or kShared, stride)

  bool is_shared(const SlotPool& pool) const;
  // Of victims of two pools: rows that the window does not have, the least recently used first; then the
  // farthest next use, by the bytes that it would free.
  bool leaves_before(const Victim& victim, std::size_t stride, const Victim& other,
                     std::size_t other_stride) const;
  void charge_limit(std::uint64_t rows_read, std::uint64_t rows_written, std::size_t stride);

  std::size_t level_;
  TierSpec spec_;
  const LookaheadWindow& window_;
  PolicyKind beyond_;
  OwedWaits* owed_ = nullptr;
  HostMemory host_;
  std::uint64_t given_ = 0;  // of what is set aside
  std::map<Key, std::unique_ptr<SlotPool>> pools_;
};

}  // namespace mtrains
