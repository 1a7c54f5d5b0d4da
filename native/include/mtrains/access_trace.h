// A recorded stream of accesses, cut into batches of unique rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace mtrains {

// For each batch its unique rows, in the order of their first access in it. Rows are numbered anew, from 0 in
// order of first access, so that a simulation needs 4 bytes a row. Immutable, may be shared by threads.
class AccessTrace {
 public:
  // Access i is of row `rows[i]` of table `tables[i]`, in batch `batches[i]`: ascending, each below
  // num_batches; a batch may be empty. Throws std::invalid_argument naming the position.
  AccessTrace(std::span<const std::uint32_t> tables, std::span<const std::int64_t> rows,
              std::span<const std::uint32_t> batches, std::uint32_t num_batches);

  std::uint32_t num_batches() const { return static_cast<std::uint32_t>(begins_.size()) - 1; }
  std::uint64_t num_accesses() const { return num_accesses_; }
  std::uint64_t num_unique() const { return accesses_.size(); }  // summed over batches
  std::uint32_t num_rows() const { return static_cast<std::uint32_t>(table_of_row_.size()); }  // distinct
  std::uint32_t num_tables() const { return num_tables_; }
  std::uint32_t table_of(std::uint32_t row) const { return table_of_row_[row]; }
  std::span<const std::uint32_t> row_tables() const { return table_of_row_; }
  std::span<const std::uint32_t> batch(std::uint32_t number) const {
    return {accesses_.data() + begins_[number], accesses_.data() + begins_[number + 1]};
  }
  std::span<const std::uint32_t> accesses() const { return accesses_; }  // of all batches
  std::span<const std::uint64_t> begins() const { return begins_; }      // of each batch, and the end
  std::size_t largest_batch() const;

 private:
  std::uint64_t num_accesses_;
  std::uint32_t num_tables_ = 0;
  std::vector<std::uint32_t> accesses_;  // rows, batch after batch
  std::vector<std::uint64_t> begins_;    // of each batch, and the end
  std::vector<std::uint32_t> table_of_row_;
};

}  // namespace mtrains
