// Which row is in which slot of a tier, when it was last used, and who must leave. Bookkeeping only: no bytes
// of rows.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "mtrains/directory.h"
#include "mtrains/location.h"
#include "mtrains/slot_memory.h"

namespace mtrains {

// The key of a row in a store: the first key of its table plus the row. 46 bits.
using RowKey = std::uint64_t;
inline constexpr int kKeyBits = 46;
inline constexpr RowKey kNoKey = (RowKey{1} << kKeyBits) - 1;
inline constexpr std::size_t kSlotIndexBytes = 16;  // a slot's hot and cold record

// The hot record of a slot, 8 bytes: read and written at every access.
// A plan that kept (row, slot) is stale exactly when the slot holds another row, so the row itself is the
// slot's generation; SlotIndex::generation() tells cheaply that nothing moved at all.
struct SlotRecord {
  std::uint32_t last_use = 0;  // clock of the last access
  std::uint32_t state = 0;     // dirty stamp (2 bits), pins (6), high bits of the key (24)

  std::uint32_t stamp() const { return state & 3; }
  void set_stamp(std::uint32_t stamp) { state = (state & ~3u) | stamp; }
  std::uint32_t pins() const { return (state >> 2) & 63; }
};
static_assert(sizeof(SlotRecord) == 8);

class SlotIndex;

// Chooses victims. Behind an interface because next-use, LFU and S3-FIFO will stand beside LRU.
class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;
  // The next slot to leave: occupied, not pinned, last used before `clock`; -1 if there is none.
  // The slot stays in the index; the caller evicts it before asking again.
  virtual std::int64_t victim(const SlotIndex& index, std::uint32_t clock) = 0;
  // Clock of the next victim's last use without choosing it; false if there is none.
  virtual bool oldest(const SlotIndex& index, std::uint32_t clock, std::uint32_t* last_use) = 0;
  virtual void clear() = 0;
};

// Exactly the least recently used slot, ties by slot number. A scan of the hot records collects the oldest
// sixteenth; slots used since are skipped when their turn comes, so the order stays exact.
class LruPolicy : public EvictionPolicy {
 public:
  std::int64_t victim(const SlotIndex& index, std::uint32_t clock) override;
  bool oldest(const SlotIndex& index, std::uint32_t clock, std::uint32_t* last_use) override;
  void clear() override { queue_.clear(), next_ = 0; }

 private:
  struct Candidate {
    std::uint32_t slot, last_use;
  };
  bool advance(const SlotIndex& index, std::uint32_t clock);
  void scan(const SlotIndex& index, std::uint32_t clock);

  std::vector<Candidate> queue_;
  std::size_t next_ = 0;
};

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

  EvictionPolicy& policy() { return *policy_; }
  // Halves every age so that the 32-bit clock can go on; order among the more recent half is kept.
  void rebase(std::uint32_t subtract);

 private:
  static constexpr int kKeyLowBits = kKeyBits - 24;
  static_assert(kKeyLowBits + kLocationBits == 64);
  static constexpr std::uint32_t kEnd = 0xffffffffu;

  void set_key(std::uint32_t slot, RowKey key, Location location);
  void drop_free_from(std::uint32_t capacity);
  void move(std::uint32_t from, std::uint32_t to);

  std::unique_ptr<SlotRange> hot_range_;
  std::unique_ptr<SlotRange> cold_range_;
  SlotRecord* hot_;
  std::uint64_t* cold_;  // low bits of the key, and the log location of a clean row
  std::uint32_t max_capacity_;
  std::uint32_t capacity_ = 0;
  std::uint32_t num_used_ = 0;
  std::uint32_t free_head_ = kEnd;  // free slots form a list through last_use
  std::uint64_t generation_ = 0;
  std::unique_ptr<EvictionPolicy> policy_ = std::make_unique<LruPolicy>();
};

}  // namespace mtrains
