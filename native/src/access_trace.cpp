#include "mtrains/access_trace.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "mtrains/flat_map.h"

namespace mtrains {
namespace {

constexpr std::uint32_t kNoNumber = 0xffffffffu;

struct NumberedRow {
  std::int64_t row = 0;
  std::uint32_t table = 0;
  std::uint32_t number = kNoNumber;
  bool empty() const { return number == kNoNumber; }
  std::uint64_t hash() const { return static_cast<std::uint64_t>(row) ^ (std::uint64_t{table} << 40); }
  bool same(const NumberedRow& other) const { return row == other.row && table == other.table; }
};

void require(bool condition, const char* what, std::size_t position) {
  if (!condition) throw std::invalid_argument(what + (" at position " + std::to_string(position)));
}

}  // namespace

AccessTrace::AccessTrace(std::span<const std::uint32_t> tables, std::span<const std::int64_t> rows,
                         std::span<const std::uint32_t> batches, std::uint32_t num_batches)
    : num_accesses_(rows.size()), begins_(std::size_t{num_batches} + 1) {
  if (tables.size() != rows.size() || batches.size() != rows.size())
    throw std::invalid_argument("tables, rows and batches of a trace differ in length");
  FlatMap<NumberedRow> numbers;
  std::vector<std::uint32_t> last_batch;  // of each row, plus 1
  std::uint32_t batch = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    require(batches[i] < num_batches, "a batch number is beyond the number of batches", i);
    require(batches[i] >= batch, "batch numbers of a trace descend", i);
    while (batch < batches[i]) begins_[++batch] = accesses_.size();
    const auto number = static_cast<std::uint32_t>(table_of_row_.size());
    require(number < kNoNumber, "more than 2^32 - 1 distinct rows", i);
    const auto [entry, is_new] = numbers.insert({rows[i], tables[i], number});
    if (is_new) {
      table_of_row_.push_back(tables[i]);
      last_batch.push_back(0);
      num_tables_ = std::max(num_tables_, tables[i] + 1);
    }
    if (last_batch[entry->number] == batch + 1) continue;
    last_batch[entry->number] = batch + 1;
    accesses_.push_back(entry->number);
  }
  while (batch < num_batches) begins_[++batch] = accesses_.size();
}

std::size_t AccessTrace::largest_batch() const {
  std::uint64_t largest = 0;
  for (std::size_t i = 1; i < begins_.size(); ++i) largest = std::max(largest, begins_[i] - begins_[i - 1]);
  return largest;
}

}  // namespace mtrains
