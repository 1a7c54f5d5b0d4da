// What one lookup of one table needs to know about its indices, computed once and used by staging,
// forward, backward and update.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace mtrains {

inline constexpr std::uint32_t kNoSlot = 0xffffffffu;  // a skipped position (padding)

// Indices as the caller holds them: int32 or int64, contiguous.
struct IndexSpan {
  const void* data = nullptr;
  std::uint64_t size = 0;
  bool is_int64 = true;
  std::int64_t at(std::uint64_t i) const {
    return is_int64 ? static_cast<const std::int64_t*>(data)[i] : static_cast<const std::int32_t*>(data)[i];
  }
};

// The first index outside [0, num_rows), if any.
struct BadIndex {
  std::uint64_t position;
  std::int64_t value;
};

// Unique rows, and for each the positions that name it, in ascending position order (CSR).
//
// Deterministic: a function of the indices alone (then, after order_by_slot, of the slots).
struct BatchPlan {
  std::uint64_t num_positions = 0;              // M, padding included; < 2^32 - 1
  std::vector<std::uint64_t> rows;              // [U] unique; ascending until order_by_slot
  std::vector<std::uint32_t> csr;               // [U + 1] offsets into `positions`
  std::vector<std::uint32_t> positions;         // [occurrences], padding left out
  std::vector<std::uint32_t> bag_of_position;   // [M], or empty when bag b is position b
  std::vector<std::uint32_t> slots;             // [U], set by the index; empty before
  std::vector<std::uint32_t> slot_of_position;  // [M], kNoSlot for padding; set by scatter_slots

  std::uint64_t num_unique() const { return rows.size(); }

  // Fills rows, csr, positions by a stable radix sort. Positions that name `padding_row` are left out.
  // Returns the first bad index and leaves the plan empty, or nothing.
  // `first_position` .. : the plan is over `indices`; positions are counted from 0 within it.
  std::optional<BadIndex> build(const IndexSpan& indices, std::uint64_t num_rows, std::int64_t padding_row);

  // Fills bag_of_position. `offsets` has num_bags + 1 entries, ascending from 0 to num_positions.
  void set_bags(const std::int64_t* offsets, std::uint64_t num_bags);

  // Reorders rows, slots, csr and positions by ascending slot (stable radix). REQUIRES: slots set.
  void order_by_slot();

  // Fills slot_of_position from slots and csr. REQUIRES: slots set.
  void scatter_slots();
};

}  // namespace mtrains
