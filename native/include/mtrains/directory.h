// Row -> where its one live copy is: 8 bytes a row, allocated page by page as rows are touched.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "mtrains/location.h"
#include "mtrains/memory_map.h"

namespace mtrains {

// An entry of the directory. 0: never touched and nowhere in memory.
// Pooled table: kInSlot | level | slot while the row is in a slot of the tier at that level (its log location
// waits in the slot's record), else its Location. Resident table: the Location, if any, and the dirty stamp
// of the row in its place.
using Entry = std::uint64_t;
inline constexpr Entry kInSlot = Entry{1} << 63;
inline constexpr int kLevelShift = 56;
inline constexpr Entry kLevelMask = Entry{3} << kLevelShift;
inline Entry slot_entry(std::size_t level, std::uint32_t slot) {
  return kInSlot | (Entry{level} << kLevelShift) | slot;
}
inline std::size_t level_of(Entry entry) { return (entry & kLevelMask) >> kLevelShift; }
// Whether the row is in the tier that computes, level 0.
inline bool in_compute_tier(Entry entry) { return (entry & (kInSlot | kLevelMask)) == kInSlot; }
inline constexpr int kStampShift = 60;
inline constexpr Entry kStampMask = Entry{3} << kStampShift;

// The dirty stamp of a row: clean, or the parity of the epoch of its last change. Two epochs can be dirty
// at once (the running checkpoint's and the present one), so the parity tells them apart.
inline constexpr std::uint32_t kClean = 0;
inline std::uint32_t stamp_of(std::uint64_t epoch) { return 1 + static_cast<std::uint32_t>(epoch & 1); }

inline constexpr std::size_t kBasePageBytes = 65520;
inline constexpr std::size_t kBasePageHeaderBytes = 16;
inline constexpr std::uint64_t kBasePageRows = (kBasePageBytes - kBasePageHeaderBytes) / 8;

// The directory of one table. Not thread-safe; rows of distinct indices may be read and overwritten (non-zero
// by non-zero) by several threads at once.
class Directory {
 public:
  // Throws CapacityError if the address space is refused.
  explicit Directory(std::uint64_t num_rows);

  std::uint64_t num_rows() const { return num_rows_; }
  Entry get(std::uint64_t row) const { return entries_.as<Entry>()[row]; }
  const Entry* data() const { return entries_.as<Entry>(); }
  // For an entry that was 0 use insert, which also marks the chunk as touched.
  void overwrite(std::uint64_t row, Entry entry) { entries_.as<Entry>()[row] = entry; }
  void insert(std::uint64_t row, Entry entry) {
    const std::uint64_t chunk = row / kChunkRows;
    std::uint64_t& word = touched_.as<std::uint64_t>()[chunk / 64];
    const std::uint64_t bit = std::uint64_t{1} << (chunk % 64);
    if (!(word & bit)) {
      word |= bit;
      ++num_chunks_;
    }
    entries_.as<Entry>()[row] = entry;
  }

  // Calls visit(row, entry) for each non-zero entry of [begin, end), ascending, until it returns false.
  void scan(std::uint64_t begin, std::uint64_t end,
            const std::function<bool(std::uint64_t, Entry)>& visit) const;

  std::uint64_t allocated_bytes() const { return num_chunks_ * kChunkRows * 8; }

  // --- base pages that were not read yet
  // Replaces the file offsets of base pages. The first call names the pages that exist; later calls move
  // those not yet read.
  void set_base(const std::uint64_t* pages, const std::uint64_t* offsets, std::size_t n);
  bool has_unread() const { return !unread_.empty(); }
  // The offset of the unread page that holds `row`, or nullptr.
  const std::uint64_t* unread(std::uint64_t row) const {
    const auto it = unread_.find(row / kBasePageRows);
    return it == unread_.end() ? nullptr : &it->second;
  }
  // First unread page at or after `page`; false if none.
  bool next_unread(std::uint64_t page, std::uint64_t* found) const;
  // Fills the entries of a page that nothing else has set. `locations` has kBasePageRows entries.
  void fill_page(std::uint64_t page, const std::uint64_t* locations);

 private:
  static constexpr std::uint64_t kChunkRows = 512;

  std::uint64_t num_rows_;
  MemoryMap entries_;
  MemoryMap touched_;  // one bit a chunk
  std::uint64_t num_chunks_ = 0;
  bool base_known_ = false;
  std::map<std::uint64_t, std::uint64_t> unread_;  // page -> file offset of its value
};

}  // namespace mtrains
