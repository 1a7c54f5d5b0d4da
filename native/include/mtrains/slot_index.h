// Which row is in which slot of a tier, when it was last used, and what keeps it there. Bookkeeping only: no
// bytes of rows.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "mtrains/directory.h"
#include "mtrains/eviction_policy.h"
#include "mtrains/location.h"
#include "mtrains/slot_memory.h"

namespace mtrains {

inline constexpr int kKeyBits = 46;
inline constexpr RowKey kNoKey = (RowKey{1} << kKeyBits) - 1;
inline constexpr std::size_t kSlotIndexBytes = 16;  // a slot's hot and cold record

// The clock of accesses has 24 bits; whoever advances it calls rebase(kClockRebase) after kLastClock.
inline constexpr std::uint32_t kLastClock = 0xf00000u;
inline constexpr std::uint32_t kClockRebase = 0x800000u;

// The hot record of a slot, 8 bytes: read and written at every access.
// A plan that kept (row, slot) is stale exactly when the slot holds another row, so the row itself is the
// slot's generation; SlotIndex::generation() tells cheaply that nothing moved at all.
struct SlotRecord {
  static constexpr std::uint32_t kMaxPins = 31;

  std::uint32_t last_use : 24 = 0;  // clock of the last access
  std::uint32_t rank : 8 = 0;       // the policy's own: a frequency
  std::uint32_t state = 0;          // dirty stamp (2 bits), pins (5), wanted (1), high bits of the key (24)

  std::uint32_t stamp() const { return state & 3; }
  void set_stamp(std::uint32_t stamp) { state = (state & ~3u) | stamp; }
  std::uint32_t pins() const { return (state >> 2) & kMaxPins; }
  // Whether the row has a use in the lookahead window; SlotIndex::set_wanted changes it.
  bool wanted() const { return state & kWanted; }

 private:
  friend class SlotIndex;
  static constexpr std::uint32_t kOnePin = 1u << 2;
  static constexpr std::uint32_t kWanted = 1u << 7;
};
static_assert(sizeof(SlotRecord) == 8);

// Rows that move within an index: from[i] to to[i].
struct SlotMoves {
  std::vector<std::uint32_t> from, to;
};

// Slots [0, capacity) of one stride. Not thread-safe, but for touch() of distinct slots.
class SlotIndex {
 public:
  SlotIndex(std::uint32_t max_capacity, SlotMemory& memory);

  std::uint32_t capacity() const { return capacity_; }
  std::uint32_t num_used() const { return num_used_; }
  std::uint32_t num_free() const { return capacity_ - num_used_; }
  std::uint32_t num_wanted() const { return num_wanted_; }  // slots whose rows are wanted()
  std::uint64_t generation() const { return generation_; }  // changes when a row leaves a slot

  // False, and nothing changed, if the memory refuses. REQUIRES: capacity() <= capacity <= max_capacity
  bool grow(std::uint32_t capacity);
  // Where shrink(capacity) moves the rows at and above `capacity`: free slots below.
  // REQUIRES: num_used() <= capacity.
  SlotMoves moves_below(std::uint32_t capacity) const;
  // Gives up the slots at and above `capacity`; rows move as moves_below() says. REQUIRES: the same.
  void shrink(std::uint32_t capacity);

  // The slot that insert() will take. REQUIRES: num_free() > 0.
  std::uint32_t next_free() const { return free_head_; }
  // Puts a row into a free slot. REQUIRES: num_free() > 0.
  std::uint32_t insert(RowKey key, Location location, std::uint32_t clock);
  void evict(std::uint32_t slot);  // REQUIRES: occupied

  bool occupied(std::uint32_t slot) const { return key(slot) != kNoKey; }
  RowKey key(std::uint32_t slot) const {
    return (RowKey{hot(slot).state >> 8} << kKeyLowBits) | (cold_[slot] >> kLocationBits);
  }
  Location location(std::uint32_t slot) const { return cold_[slot] & kLocationMask; }
  void set_location(std::uint32_t slot, Location location) {
    std::uint64_t& cold = cold_[slot];
    cold = (cold & ~kLocationMask) | location;
  }
  void prefetch(std::uint32_t slot) const {
    __builtin_prefetch(hot_ + slot, 1);
    __builtin_prefetch(cold_ + slot, 1);
  }
  SlotRecord& hot(std::uint32_t slot) { return hot_[slot]; }
  const SlotRecord& hot(std::uint32_t slot) const { return hot_[slot]; }
  const SlotRecord* hot_data() const { return hot_; }

  // Marks an access; returns whether it is the first of this clock.
  bool touch(std::uint32_t slot, std::uint32_t clock) {
    SlotRecord& record = hot(slot);
    const bool first = record.last_use != clock;
    record.last_use = clock;
    return first;
  }

  // A pinned slot is no victim. Pins are counted. REQUIRES: fewer than kMaxPins pins.
  void pin(std::uint32_t slot) { hot(slot).state += SlotRecord::kOnePin; }
  void unpin(std::uint32_t slot) {
    hot(slot).state -= SlotRecord::kOnePin;
    if (hot(slot).pins() == 0) policy_->released(*this, slot);
  }
  void set_wanted(std::uint32_t slot, bool wanted) {
    SlotRecord& record = hot(slot);
    num_wanted_ += static_cast<std::uint32_t>(wanted) - static_cast<std::uint32_t>(record.wanted());
    record.state = wanted ? record.state | SlotRecord::kWanted : record.state & ~SlotRecord::kWanted;
  }
  // Whether nothing but its priority keeps the row in its slot at this clock.
  bool evictable(std::uint32_t slot, std::uint32_t clock) const {
    return hot(slot).last_use < clock && hot(slot).pins() == 0 && occupied(slot);
  }

  EvictionPolicy& policy() { return *policy_; }
  // REQUIRES: not null. What the former policy knew of the rows is lost, but for wanted() and ranks.
  void set_policy(std::unique_ptr<EvictionPolicy> policy) {
    policy_ = std::move(policy);
    if (num_used_ > 0) policy_->clear();
  }
  // Lowers every clock so that it can go on; order among the more recent half is kept.
  void rebase(std::uint32_t subtract);

 private:
  static constexpr int kKeyLowBits = kKeyBits - 24;
  static_assert(kKeyLowBits + kLocationBits == 64);
  static constexpr std::uint32_t kEnd = 0xffffffffu;

  void set_key(std::uint32_t slot, RowKey key, Location location);
  void set_free(std::uint32_t slot, std::uint32_t next) { set_key(slot, kNoKey, next); }
  std::uint32_t after_free(std::uint32_t slot) const { return static_cast<std::uint32_t>(location(slot)); }
  void drop_free_from(std::uint32_t capacity);
  void move(std::uint32_t from, std::uint32_t to);

  std::unique_ptr<SlotRange> hot_range_;
  std::unique_ptr<SlotRange> cold_range_;
  SlotRecord* hot_;
  std::uint64_t* cold_;  // low bits of the key, and the log location of a clean row
  std::uint32_t max_capacity_;
  std::uint32_t capacity_ = 0;
  std::uint32_t num_used_ = 0;
  std::uint32_t num_wanted_ = 0;
  std::uint32_t free_head_ = kEnd;  // free slots form a list through their locations
  std::uint64_t generation_ = 0;
  std::unique_ptr<EvictionPolicy> policy_;  // LRU unless set
};

}  // namespace mtrains
