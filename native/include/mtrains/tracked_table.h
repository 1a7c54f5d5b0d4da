// What a profile keeps of the lookups of one table, in bounded memory.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "mtrains/flat_map.h"

namespace mtrains {

struct TrackingSpec {
  std::uint32_t max_rows = 16384;  // tracked once the table is sampled
  std::uint32_t hot_rows = 2048;   // of them, the ones with the most accesses; at most max_rows
  std::uint64_t seed = 0;          // of the hash that chooses the others
  // Unique rows are counted at these batch sizes, in samples: ascending, none for not at all. Costs a look
  // into a table of the rows of the largest batch for each lookup.
  std::vector<std::uint32_t> batch_sizes;
  std::uint32_t rows_per_page = 16;  // of a layout by row number
  std::uint32_t samples_a_unit = 1;  // of time, to begin with
  std::uint32_t sample_at_rows = 0;  // sample() is called at more rows than these; 0: by the owner alone
};

// Numbered rows and their accesses in time order: access i is of row accesses[i], in the unit of time
// times[i]. The first num_hot rows stand for themselves, each later one for `weight` rows.
struct TrackedAccesses {
  std::vector<std::int64_t> rows;
  std::uint32_t num_hot = 0;
  std::uint32_t weight = 1;
  static constexpr std::uint32_t kFirst = 0xffffffffu;
  std::vector<std::uint32_t> accesses, times, gaps;
};

// At first every row is tracked. sample() goes over to at most max_rows: the hottest so far, and of the
// others those whose hash is below 2^64 / weight, a uniform sample; weight grows with the rows that come. An
// access is one row of one unit of time. Not thread-safe.
class TrackedTable {
 public:
  // Throws std::invalid_argument.
  explicit TrackedTable(TrackingSpec spec);

  // Lookups of rows[i] by sample samples[i], ascending over all calls. Throws std::invalid_argument for a
  // descent and where the time does not fit 32 bits; nothing is added then.
  void add(std::span<const std::int64_t> rows, std::span<const std::int64_t> samples);

  // The same for bags, one a sample, from `first_sample` on: indices of bag b from offsets[b] to the next
  // bag's, of the last one to the end; without offsets all have as many. Lookups of padding_row are none.
  // Samples of several calls may come in any order; unique rows are not counted. A row that repeats in a unit
  // of time or is not tracked costs little more than its hash. Throws std::invalid_argument; nothing is added
  // then.
  template <typename Index>  // std::int32_t or std::int64_t
  void add_bags(std::span<const Index> indices, std::span<const std::int64_t> offsets, std::int64_t num_bags,
                std::int64_t first_sample, std::int64_t padding_row);

  void sample();
  bool sampled() const { return sampled_; }
  // Joins two units of time to one.
  void coarsen();

  // All that is tracked, or what sample() would keep of it.
  TrackedAccesses tracked() const;

  std::uint64_t num_lookups() const { return num_lookups_; }
  std::uint64_t num_accesses() const { return accesses_.size(); }  // tracked
  std::uint32_t num_rows() const { return static_cast<std::uint32_t>(rows_.size()); }
  std::int64_t least_row() const { return least_row_; }  // of all lookups; 0 and -1 if there are none
  std::int64_t largest_row() const { return largest_row_; }
  std::uint64_t samples_a_unit() const { return samples_a_unit_; }
  // Accesses at each of the batch sizes.
  const std::vector<std::uint64_t>& num_unique() const { return num_unique_; }
  // In batches of the middle size: accesses to a sample of pages, and the pages of each batch, summed.
  std::uint64_t num_page_accesses() const { return num_page_accesses_; }
  std::uint64_t num_pages() const { return num_pages_; }

 private:
  static constexpr std::uint32_t kUntracked = 0xffffffffu;
  struct Numbered {
    std::int64_t row = 0;
    std::uint32_t number = kUntracked;
    bool empty() const { return number == kUntracked; }
    std::uint64_t hash() const { return static_cast<std::uint64_t>(row); }
    bool same(const Numbered& other) const { return row == other.row; }
  };
  struct Recent {
    std::int64_t key = 0;
    std::int64_t sample = -1;
    bool empty() const { return sample < 0; }
    std::uint64_t hash() const { return static_cast<std::uint64_t>(key); }
    bool same(const Recent& other) const { return key == other.key; }
  };
  // Which rows stay: new numbers by old ones, or kUntracked; hot ones first.
  struct Choice {
    std::vector<std::uint32_t> numbers;
    std::uint32_t num_kept = 0, num_hot = 0, weight = 1;
  };

  // Tracked rows that were used last, by their hash: what repeats ends here.
  struct Seen {
    std::int64_t row = 0;
    std::uint32_t time = 0;  // of its last use, plus 1; 0: there is no row
    std::uint32_t number = kUntracked;
  };

  std::uint64_t hash(std::int64_t row) const;
  std::uint32_t time_of(std::int64_t sample) const;
  template <typename Index>
  void track_unit(std::span<const Index> indices, std::uint32_t time, std::int64_t padding_row);
  void begin_batches(std::int64_t sample);
  void count_unique(std::int64_t row, std::int64_t sample);
  // Returns the row's number, or kUntracked if it has none or numbers have changed.
  std::uint32_t track(std::int64_t row, std::uint64_t hash, std::uint32_t time);
  void note(std::uint32_t number, std::uint32_t time);
  // with_slack: leaves room for rows to come, so that not each of them costs a pass over all accesses.
  Choice choose(bool with_slack) const;
  void keep(const Choice& choice);

  const TrackingSpec spec_;
  const std::uint64_t key_;  // of the hash
  std::uint64_t num_lookups_ = 0;
  std::int64_t least_row_ = 0, largest_row_ = -1;
  std::int64_t last_sample_ = 0;

  std::vector<std::int64_t> begins_;  // of the present batch of each size: its first sample
  std::vector<std::uint64_t> num_unique_;
  FlatMap<Recent> recent_rows_, recent_pages_;  // of the present batch of the largest size, at least
  std::uint64_t num_page_accesses_ = 0, num_pages_ = 0;

  bool sampled_ = false;
  std::uint32_t num_hot_ = 0;
  std::uint32_t weight_ = 1;
  std::uint64_t limit_ = 0;              // hashes below it are tracked, once sampled
  std::vector<std::uint64_t> hot_bits_;  // by the hash's highest 16 bits: whether a hot row has them
  std::vector<Seen> seen_;
  std::uint64_t samples_a_unit_ = 1;
  FlatMap<Numbered> numbers_;
  std::vector<std::int64_t> rows_;
  std::vector<std::uint32_t> last_time_;  // of each row, plus 1; of bags some accesses are not in it
  std::vector<std::uint32_t> accesses_, times_;
  bool ascending_ = true;  // times_
};

}  // namespace mtrains
