#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <stdexcept>
#include <vector>

#include "check.h"
#include "mtrains/reuse.h"
#include "mtrains/tracked_table.h"

using namespace mtrains;

namespace {

struct Stream {
  std::vector<std::int64_t> rows, samples;
};

Stream random_stream(std::mt19937& random, std::size_t size, int num_rows) {
  Stream stream;
  std::int64_t sample = 0;
  for (std::size_t i = 0; i < size; ++i) {
    stream.rows.push_back(random() % (random() % num_rows + 1));
    stream.samples.push_back(sample);
    sample += random() % 3;
  }
  return stream;
}

}  // namespace

TEST(whatever_happens_on_the_way_tracked_rows_have_all_their_accesses) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    TrackingSpec spec;
    spec.max_rows = 2 + random() % 30;
    spec.hot_rows = random() % spec.max_rows;
    spec.seed = random();
    if (round % 2) spec.batch_sizes = {2, 4, 8};
    TrackedTable table(spec);
    const Stream stream = random_stream(random, 400, 80);
    for (std::size_t begin = 0; begin < stream.rows.size(); begin += 50) {
      table.add(std::span(stream.rows).subspan(begin, 50), std::span(stream.samples).subspan(begin, 50));
      if (random() % 8 == 0) table.sample();
      if (random() % 8 == 0) table.coarsen();
    }
    const TrackedAccesses tracked = table.tracked();
    const auto unit = static_cast<std::int64_t>(table.samples_a_unit());
    std::map<std::int64_t, std::set<std::uint32_t>> times;
    for (std::size_t i = 0; i < stream.rows.size(); ++i)
      times[stream.rows[i]].insert(static_cast<std::uint32_t>(stream.samples[i] / unit));
    std::map<std::int64_t, std::set<std::uint32_t>> found;
    for (std::size_t i = 0; i < tracked.accesses.size(); ++i) {
      const auto row = tracked.rows.at(tracked.accesses[i]);
      const auto& before = found[row];
      CHECK_EQ(tracked.gaps[i],
               before.empty() ? TrackedAccesses::kFirst : tracked.times[i] - *before.rbegin());
      found[row].insert(tracked.times[i]);
    }
    CHECK_EQ(found.size(), tracked.rows.size());
    for (const auto& [row, at] : found) CHECK(at == times.at(row));
    CHECK(tracked.weight == 1 ? tracked.rows.size() <= times.size() : tracked.rows.size() <= spec.max_rows);
    if (!table.sampled() && times.size() <= spec.max_rows) CHECK_EQ(tracked.rows.size(), times.size());
    CHECK(std::is_sorted(tracked.times.begin(), tracked.times.end()));
  }
}

TEST(the_rows_that_others_stand_for_are_about_as_many_as_there_are) {
  TrackingSpec spec;
  spec.max_rows = 4000;
  spec.hot_rows = 100;
  TrackedTable table(spec);
  std::vector<std::int64_t> rows(100'000), samples(rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = samples[i] = static_cast<std::int64_t>(i);
  table.add(std::span(rows).first(10'000), std::span(samples).first(10'000));
  table.sample();
  table.add(std::span(rows).subspan(10'000), std::span(samples).subspan(10'000));
  const TrackedAccesses tracked = table.tracked();
  const double stands =
      tracked.num_hot + double(tracked.weight) * double(tracked.rows.size() - tracked.num_hot);
  CHECK(stands > 0.93 * 100'000 && stands < 1.07 * 100'000);
  CHECK(tracked.rows.size() <= 4000 && tracked.rows.size() > 3000);
}

template <typename Index>
void check_bags(unsigned seed) {
  std::mt19937 random(seed);
  for (int round = 0; round < 100; ++round) {
    TrackingSpec spec;
    spec.max_rows = 2 + random() % 40;
    spec.hot_rows = random() % 2 ? 0 : spec.max_rows / 2;
    spec.samples_a_unit = 1 + random() % 5;
    spec.sample_at_rows = random() % 2 ? 0 : spec.max_rows;
    TrackedTable table(spec);
    std::map<std::int64_t, std::set<std::uint32_t>> times;
    std::uint64_t num_lookups = 0;
    std::int64_t sample = 0;
    for (int call = 0; call < 12; ++call) {
      // Two features over the same samples, the second behind the first.
      const std::int64_t num_bags = 1 + random() % 20;
      for (int feature = 0; feature < 2; ++feature) {
        std::vector<Index> indices;
        std::vector<std::int64_t> offsets;
        for (std::int64_t bag = 0; bag < num_bags; ++bag) {
          offsets.push_back(static_cast<std::int64_t>(indices.size()));
          for (unsigned i = feature == 0 ? 2 : random() % 4; i > 0; --i) {
            const auto row = static_cast<Index>(random() % (random() % 70 + 1));
            indices.push_back(row);
            if (row == 3) continue;
            ++num_lookups;
            times[row].insert(static_cast<std::uint32_t>((sample + bag) / spec.samples_a_unit));
          }
        }
        if (feature == 0) offsets.clear();
        table.add_bags(std::span<const Index>(indices), offsets, num_bags, sample, /*padding_row=*/3);
      }
      sample += num_bags;
    }
    CHECK_EQ(table.num_lookups(), num_lookups);
    const TrackedAccesses tracked = table.tracked();
    std::map<std::int64_t, std::set<std::uint32_t>> found;
    for (std::size_t i = 0; i < tracked.accesses.size(); ++i)
      CHECK(found[tracked.rows.at(tracked.accesses[i])].insert(tracked.times[i]).second);
    CHECK(std::is_sorted(tracked.times.begin(), tracked.times.end()));
    CHECK_EQ(found.size(), tracked.rows.size());
    for (const auto& [row, at] : found) CHECK(at == times.at(row));
  }
}

TEST(bags_of_several_features_are_tracked_in_the_order_of_their_samples) {
  check_bags<std::int32_t>(1);
  check_bags<std::int64_t>(2);
}

TEST(what_cannot_be_tracked_is_refused) {
  CHECK_THROWS(TrackedTable(TrackingSpec{1, 0, 0, {}, 16}), std::invalid_argument);
  CHECK_THROWS(TrackedTable(TrackingSpec{10, 10, 0, {}, 16}), std::invalid_argument);
  CHECK_THROWS(TrackedTable(TrackingSpec{10, 5, 0, {4, 2}, 16}), std::invalid_argument);
  CHECK_THROWS(TrackedTable(TrackingSpec{10, 5, 0, {}, 0}), std::invalid_argument);
  TrackedTable table(TrackingSpec{});
  const std::vector<std::int64_t> rows{1, 2}, samples{5, 4};
  CHECK_THROWS(table.add(rows, samples), std::invalid_argument);
  const std::vector<std::int64_t> offsets{0, 3}, descending{1, 0};
  const std::span<const std::int64_t> two(rows);
  CHECK_THROWS(table.add_bags(two, offsets, 2, 0, -1), std::invalid_argument);
  CHECK_THROWS(table.add_bags(two, descending, 2, 0, -1), std::invalid_argument);
  CHECK_THROWS(table.add_bags(two, offsets, 3, 0, -1), std::invalid_argument);
  CHECK_THROWS(table.add_bags(two, {}, 2, -1, -1), std::invalid_argument);
  CHECK_EQ(table.num_lookups(), 0u);
}

TEST_MAIN()
