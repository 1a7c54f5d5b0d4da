#include "mtrains/reuse.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace mtrains {
namespace {

// The weights of rows by the place of their latest use: a Fenwick tree over twice as many places as there are
// rows, numbered anew when they are used up, so that it stays in the caches whatever the trace's length.
class LatestUses {
 public:
  explicit LatestUses(std::uint32_t num_rows)
      : sums_(2 * std::size_t{num_rows} + 2),
        weight_at_(sums_.size()),
        row_at_(sums_.size()),
        place_of_(num_rows) {}

  // The weight of the rows used after this one, or kNoDistance; then the row is the latest used.
  std::uint64_t use(std::uint32_t row, std::uint32_t weight) {
    if (next_ == sums_.size()) renumber();
    std::uint32_t& place = place_of_[row];
    std::uint64_t after = kNoDistance;
    if (place != 0) {
      after = total_ - sum_up_to(place);
      add(place, -std::int64_t{weight});
      weight_at_[place] = 0;
      total_ -= weight;
    }
    place = next_++;
    weight_at_[place] = weight;
    row_at_[place] = row;
    add(place, weight);
    total_ += weight;
    return after;
  }

 private:
  void add(std::size_t place, std::int64_t weight) {
    for (; place < sums_.size(); place += place & -place) sums_[place] += static_cast<std::uint64_t>(weight);
  }
  std::uint64_t sum_up_to(std::size_t place) const {
    std::uint64_t sum = 0;
    for (; place > 0; place -= place & -place) sum += sums_[place];
    return sum;
  }
  void renumber() {
    std::uint32_t kept = 1;
    for (std::uint32_t place = 1; place < next_; ++place) {
      if (weight_at_[place] == 0) continue;
      weight_at_[kept] = weight_at_[place];
      row_at_[kept] = row_at_[place];
      place_of_[row_at_[kept]] = kept;
      ++kept;
    }
    next_ = kept;
    std::fill(weight_at_.begin() + kept, weight_at_.end(), 0);
    std::fill(sums_.begin(), sums_.end(), 0);
    for (std::size_t place = 1; place < sums_.size(); ++place) {
      sums_[place] += weight_at_[place];
      const std::size_t parent = place + (place & -place);
      if (parent < sums_.size()) sums_[parent] += sums_[place];
    }
  }

  std::vector<std::uint64_t> sums_;
  std::vector<std::uint32_t> weight_at_, row_at_;  // of each place; weight 0: no row's latest use
  std::vector<std::uint32_t> place_of_;            // of each row; 0: not used yet
  std::uint32_t next_ = 1;
  std::uint64_t total_ = 0;
};

}  // namespace

std::vector<std::uint32_t> reuse_times(const AccessTrace& trace) {
  std::vector<std::uint32_t> times;
  times.reserve(trace.num_unique());
  std::vector<std::uint32_t> last(trace.num_rows());  // batch, plus 1
  for (std::uint32_t batch = 0; batch < trace.num_batches(); ++batch) {
    for (const std::uint32_t row : trace.batch(batch)) {
      times.push_back(last[row] == 0 ? kNoReuse : batch + 1 - last[row]);
      last[row] = batch + 1;
    }
  }
  return times;
}

std::vector<std::uint64_t> reuse_distances(const AccessTrace& trace, std::span<const std::uint32_t> weights) {
  if (!weights.empty() && weights.size() < trace.num_tables())
    throw std::invalid_argument("a trace of " + std::to_string(trace.num_tables()) +
                                " tables and weights of " + std::to_string(weights.size()));
  if (trace.num_rows() > 0x7ffffff0u)
    throw std::invalid_argument("reuse distances are of at most 2^31 - 17 rows");
  std::vector<std::uint64_t> distances;
  distances.reserve(trace.num_unique());
  LatestUses latest(trace.num_rows());
  for (std::uint32_t batch = 0; batch < trace.num_batches(); ++batch) {
    for (const std::uint32_t row : trace.batch(batch))
      distances.push_back(latest.use(row, weights.empty() ? 1 : weights[trace.table_of(row)]));
  }
  return distances;
}

}  // namespace mtrains
