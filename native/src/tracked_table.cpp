#include "mtrains/tracked_table.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

namespace mtrains {
namespace {

constexpr std::size_t kMaxRecent = std::size_t{1} << 16;  // entries that outlive their batch, at most
constexpr std::uint64_t kPageSampling = 8;                // one page of so many is counted
constexpr std::uint32_t kSlack = 8;  // one of so many sampled rows leaves at least when there is no room
constexpr std::uint64_t kMaxTime = 0xfffffffeu;
constexpr std::size_t kSeen = 4096;
constexpr int kHotBits = 16;

// The finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

std::uint64_t limit_of(std::uint32_t weight) {
  return weight <= 1 ? ~std::uint64_t{0} : ~std::uint64_t{0} / weight;
}

std::int64_t floor_divide(std::int64_t x, std::int64_t y) { return x / y - (x % y < 0); }

}  // namespace

TrackedTable::TrackedTable(TrackingSpec spec)
    : spec_(std::move(spec)),
      key_(mix(spec_.seed + 0x9e3779b97f4a7c15u)),
      begins_(spec_.batch_sizes.size()),
      num_unique_(spec_.batch_sizes.size()) {
  if (spec_.max_rows < 2 || spec_.hot_rows >= spec_.max_rows)
    throw std::invalid_argument("at least 2 rows are tracked, fewer of them as the hottest; got " +
                                std::to_string(spec_.max_rows) + " and " + std::to_string(spec_.hot_rows));
  if (spec_.rows_per_page == 0) throw std::invalid_argument("a page has one row at least");
  if (spec_.samples_a_unit == 0) throw std::invalid_argument("a unit of time has one sample at least");
  samples_a_unit_ = spec_.samples_a_unit;
  for (std::size_t i = 0; i < spec_.batch_sizes.size(); ++i) {
    if (spec_.batch_sizes[i] <= (i > 0 ? spec_.batch_sizes[i - 1] : 0))
      throw std::invalid_argument("batch sizes must ascend from above 0");
  }
}

std::uint64_t TrackedTable::hash(std::int64_t row) const {
  return mix(static_cast<std::uint64_t>(row) ^ key_);
}

std::uint32_t TrackedTable::time_of(std::int64_t sample) const {
  const std::uint64_t time = static_cast<std::uint64_t>(sample) / samples_a_unit_;
  if (time > kMaxTime)
    throw std::invalid_argument("sample " + std::to_string(sample) +
                                " is beyond what is tracked, 2^32 - 2 units of " +
                                std::to_string(samples_a_unit_) + " samples");
  return static_cast<std::uint32_t>(time);
}

void TrackedTable::add(std::span<const std::int64_t> rows, std::span<const std::int64_t> samples) {
  if (rows.size() != samples.size()) throw std::invalid_argument("rows and samples differ in length");
  if (rows.empty()) return;
  std::int64_t last = last_sample_;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    if (samples[i] < last)
      throw std::invalid_argument("sample numbers descend at position " + std::to_string(i) + ": " +
                                  std::to_string(samples[i]) + " after " + std::to_string(last));
    last = samples[i];
  }
  time_of(last);
  if (num_lookups_ == 0) least_row_ = largest_row_ = rows[0];
  num_lookups_ += rows.size();
  std::int64_t sample = -1;
  std::uint32_t time = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (samples[i] != sample) {
      sample = samples[i];
      time = time_of(sample);
      begin_batches(sample);
    }
    least_row_ = std::min(least_row_, rows[i]);
    largest_row_ = std::max(largest_row_, rows[i]);
    if (!begins_.empty()) count_unique(rows[i], sample);
    track(rows[i], hash(rows[i]), time);
  }
  last_sample_ = last;
}

template <typename Index>
void TrackedTable::add_bags(std::span<const Index> indices, std::span<const std::int64_t> offsets,
                            std::int64_t num_bags, std::int64_t first_sample, std::int64_t padding_row) {
  if (num_bags <= 0) return;
  const std::int64_t size = static_cast<std::int64_t>(indices.size());
  const auto begin_of = [&](std::int64_t bag) {
    if (bag == num_bags) return size;
    return offsets.empty() ? bag * (size / num_bags) : offsets[static_cast<std::size_t>(bag)];
  };
  if (!offsets.empty() && static_cast<std::int64_t>(offsets.size()) < num_bags)
    throw std::invalid_argument("fewer offsets than bags");
  for (std::int64_t bag = 0, before = 0; bag <= num_bags; before = begin_of(bag++)) {
    if (begin_of(bag) < before || begin_of(bag) > size)
      throw std::invalid_argument("offsets must ascend up to the number of indices; not at position " +
                                  std::to_string(bag));
  }
  if (first_sample < 0)
    throw std::invalid_argument("samples are numbered from 0, got " + std::to_string(first_sample));
  const std::int64_t unit = static_cast<std::int64_t>(samples_a_unit_);
  time_of(first_sample + num_bags - 1);
  if (seen_.empty()) seen_.resize(kSeen);
  if (num_lookups_ == 0 && size > 0) least_row_ = largest_row_ = indices[0];
  num_lookups_ += indices.size();
  if (padding_row >= 0)
    num_lookups_ -= static_cast<std::uint64_t>(std::count(indices.begin(), indices.end(), padding_row));
  for (std::int64_t bag = 0; bag < num_bags;) {
    const std::int64_t sample = first_sample + bag;
    const std::int64_t end = std::min(num_bags, bag + unit - sample % unit);
    const auto begin = static_cast<std::size_t>(begin_of(bag));
    track_unit(indices.subspan(begin, static_cast<std::size_t>(begin_of(end)) - begin), time_of(sample),
               padding_row);
    bag = end;
  }
  last_sample_ = std::max(last_sample_, first_sample + num_bags - 1);
}

template void TrackedTable::add_bags(std::span<const std::int32_t>, std::span<const std::int64_t>,
                                     std::int64_t, std::int64_t, std::int64_t);
template void TrackedTable::add_bags(std::span<const std::int64_t>, std::span<const std::int64_t>,
                                     std::int64_t, std::int64_t, std::int64_t);

template <typename Index>
void TrackedTable::track_unit(std::span<const Index> indices, std::uint32_t time, std::int64_t padding_row) {
  const bool by_hash = sampled_ && num_hot_ == 0;
  for (const std::int64_t row : indices) {
    const std::uint64_t mixed = hash(row);
    if (by_hash && mixed >= limit_) continue;
    Seen& seen = seen_[mixed % kSeen];
    if (seen.row == row && seen.time > 0) {
      if (seen.time != time + 1) note(seen.number, time);
      seen.time = time + 1;
      continue;
    }
    const std::uint64_t high = mixed >> (64 - kHotBits);
    if (sampled_ && mixed >= limit_ && (hot_bits_[high / 64] >> (high % 64) & 1) == 0) continue;
    if (row == padding_row) continue;
    least_row_ = std::min(least_row_, row);
    largest_row_ = std::max(largest_row_, row);
    const std::uint32_t number = track(row, mixed, time);
    if (number != kUntracked) seen = {row, time + 1, number};
  }
}

// --- unique rows

void TrackedTable::begin_batches(std::int64_t sample) {
  if (begins_.empty()) return;
  const std::int64_t largest = begins_.back();
  for (std::size_t i = 0; i < begins_.size(); ++i) {
    const std::int64_t size = spec_.batch_sizes[i];
    if (sample >= begins_[i] + size) begins_[i] = sample / size * size;
  }
  if (begins_.back() == largest) return;
  if (recent_rows_.size() > kMaxRecent) recent_rows_.clear();
  if (recent_pages_.size() > kMaxRecent) recent_pages_.clear();
}

void TrackedTable::count_unique(std::int64_t row, std::int64_t sample) {
  const auto [recent, is_new] = recent_rows_.insert({row, sample});
  const std::int64_t before = is_new ? -1 : recent->sample;
  if (before == sample) return;
  recent->sample = sample;
  for (std::size_t i = 0; i < begins_.size() && before < begins_[i]; ++i) ++num_unique_[i];
  const std::int64_t begin = begins_[begins_.size() / 2];
  if (before >= begin) return;
  const std::int64_t page = floor_divide(row, spec_.rows_per_page);
  if (hash(~page) % kPageSampling != 0) return;
  ++num_page_accesses_;
  const auto [seen, is_first] = recent_pages_.insert({page, sample});
  num_pages_ += is_first || seen->sample < begin;
  seen->sample = sample;
}

// --- tracked rows

std::uint32_t TrackedTable::track(std::int64_t row, std::uint64_t hash, std::uint32_t time) {
  const Numbered wanted{row, num_rows()};
  Numbered* found = nullptr;
  if (sampled_ && hash >= limit_) {
    found = numbers_.find(wanted);
    if (found == nullptr) return kUntracked;
  } else {
    bool is_new = false;
    std::tie(found, is_new) = numbers_.insert(wanted);
    if (is_new) {
      rows_.push_back(row);
      last_time_.push_back(0);
    }
  }
  const std::uint32_t number = found->number;
  if (last_time_[number] == time + 1) return number;
  last_time_[number] = time + 1;
  note(number, time);
  const std::uint32_t most = sampled_ ? spec_.max_rows : spec_.sample_at_rows;
  if (num_rows() <= most || most == 0) return number;
  if (sampled_) {
    keep(choose(/*with_slack=*/true));
  } else {
    sample();
  }
  return kUntracked;  // by this number
}

void TrackedTable::note(std::uint32_t number, std::uint32_t time) {
  ascending_ = ascending_ && (times_.empty() || times_.back() <= time);
  accesses_.push_back(number);
  times_.push_back(time);
}

TrackedTable::Choice TrackedTable::choose(bool with_slack) const {
  Choice choice{std::vector<std::uint32_t>(num_rows(), kUntracked), 0, num_hot_, weight_};
  if (num_rows() <= spec_.max_rows) {
    std::iota(choice.numbers.begin(), choice.numbers.end(), 0u);
    choice.num_kept = num_rows();
    return choice;
  }
  if (sampled_) {
    std::iota(choice.numbers.begin(), choice.numbers.begin() + num_hot_, 0u);
  } else {
    std::vector<std::uint32_t> uses(num_rows());
    for (const std::uint32_t number : accesses_) ++uses[number];
    std::vector<std::uint32_t> by_uses(num_rows());
    std::iota(by_uses.begin(), by_uses.end(), 0u);
    choice.num_hot = spec_.hot_rows;
    std::partial_sort(by_uses.begin(), by_uses.begin() + choice.num_hot, by_uses.end(), [&](auto a, auto b) {
      return uses[a] != uses[b] ? uses[a] > uses[b] : a < b;  // not by hash: it chooses the others
    });
    for (std::uint32_t i = 0; i < choice.num_hot; ++i) choice.numbers[by_uses[i]] = i;
  }
  std::vector<std::pair<std::uint64_t, std::uint32_t>> others;
  for (std::uint32_t number = 0; number < num_rows(); ++number) {
    if (choice.numbers[number] == kUntracked) others.emplace_back(hash(rows_[number]), number);
  }
  // The least weight whose limit leaves no more than there is room for.
  const std::uint32_t most = spec_.max_rows - choice.num_hot;
  const std::uint32_t room = with_slack ? std::max(1u, most - most / kSlack) : most;
  std::nth_element(others.begin(), others.begin() + room, others.end());
  const std::uint64_t weight = ~std::uint64_t{0} / std::max<std::uint64_t>(others[room].first, 1) + 1;
  choice.weight = static_cast<std::uint32_t>(std::min<std::uint64_t>(weight, 0x7fffffffu));
  choice.num_kept = choice.num_hot;
  const std::uint64_t limit = limit_of(choice.weight);
  std::sort(others.begin(), others.begin() + room, [](auto a, auto b) { return a.second < b.second; });
  for (std::uint32_t i = 0; i < room; ++i) {
    if (others[i].first < limit) choice.numbers[others[i].second] = choice.num_kept++;
  }
  return choice;
}

void TrackedTable::keep(const Choice& choice) {
  std::vector<std::int64_t> rows(choice.num_kept);
  std::vector<std::uint32_t> last_time(choice.num_kept);
  numbers_.clear();
  std::fill(seen_.begin(), seen_.end(), Seen{});
  for (std::uint32_t old = 0; old < num_rows(); ++old) {
    const std::uint32_t number = choice.numbers[old];
    if (number == kUntracked) continue;
    rows[number] = rows_[old];
    last_time[number] = last_time_[old];
    numbers_.insert({rows_[old], number});
  }
  std::size_t kept = 0;
  for (std::size_t i = 0; i < accesses_.size(); ++i) {
    const std::uint32_t number = choice.numbers[accesses_[i]];
    if (number == kUntracked) continue;
    accesses_[kept] = number;
    times_[kept++] = times_[i];
  }
  accesses_.resize(kept);
  times_.resize(kept);
  rows_ = std::move(rows);
  last_time_ = std::move(last_time);
  num_hot_ = choice.num_hot;
  weight_ = choice.weight;
  limit_ = limit_of(weight_);
}

void TrackedTable::sample() {
  if (sampled_ || num_rows() <= spec_.max_rows) return;
  keep(choose(/*with_slack=*/true));
  accesses_.shrink_to_fit();
  times_.shrink_to_fit();
  hot_bits_.assign((std::size_t{1} << kHotBits) / 64, 0);
  for (std::uint32_t number = 0; number < num_hot_; ++number) {
    const std::uint64_t high = hash(rows_[number]) >> (64 - kHotBits);
    hot_bits_[high / 64] |= std::uint64_t{1} << (high % 64);
  }
  sampled_ = true;
}

void TrackedTable::coarsen() {
  samples_a_unit_ *= 2;
  std::fill(seen_.begin(), seen_.end(), Seen{});
  std::fill(last_time_.begin(), last_time_.end(), 0);
  std::size_t kept = 0;
  for (std::size_t i = 0; i < accesses_.size(); ++i) {
    const std::uint32_t number = accesses_[i], time = times_[i] / 2;
    if (last_time_[number] == time + 1) continue;
    last_time_[number] = time + 1;
    accesses_[kept] = number;
    times_[kept++] = time;
  }
  accesses_.resize(kept);
  times_.resize(kept);
}

TrackedAccesses TrackedTable::tracked() const {
  const Choice choice = choose(/*with_slack=*/false);
  TrackedAccesses tracked;
  tracked.num_hot = choice.num_hot;
  tracked.weight = choice.weight;
  tracked.rows.resize(choice.num_kept);
  for (std::uint32_t old = 0; old < num_rows(); ++old) {
    if (choice.numbers[old] != kUntracked) tracked.rows[choice.numbers[old]] = rows_[old];
  }
  std::vector<std::uint32_t> order(accesses_.size());
  std::iota(order.begin(), order.end(), 0u);
  if (!ascending_)
    std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return times_[a] < times_[b]; });
  std::vector<std::uint32_t> last(choice.num_kept);  // time plus 1
  for (const std::uint32_t i : order) {
    const std::uint32_t number = choice.numbers[accesses_[i]];
    if (number == kUntracked || last[number] == times_[i] + 1) continue;
    tracked.accesses.push_back(number);
    tracked.times.push_back(times_[i]);
    tracked.gaps.push_back(last[number] == 0 ? TrackedAccesses::kFirst : times_[i] + 1 - last[number]);
    last[number] = times_[i] + 1;
  }
  return tracked;
}

}  // namespace mtrains
