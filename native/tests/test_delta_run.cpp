#include <map>
#include <random>
#include <vector>

#include "check.h"
#include "mtrains/delta_run.h"

using namespace mtrains;

namespace {

std::vector<DeltaRun::Entry> entries_of(DeltaRun& run) {
  std::vector<DeltaRun::Entry> entries;
  run.for_each([&](std::uint64_t key, Location location) { entries.emplace_back(key, location); });
  return entries;
}

}  // namespace

TEST(the_newest_place_of_each_key_ascending) {
  std::mt19937_64 random(3);
  for (const std::uint64_t num_keys : {1u, 1000u, 300000u}) {
    DeltaRun run;
    std::map<std::uint64_t, Location> expected;
    for (int i = 0; i < 700000; ++i) {
      const std::uint64_t key = random() % num_keys * 0x3fffffffu % (std::uint64_t{1} << 46);
      const Location location = random() & kLocationMask;
      run.add(key, location);
      expected[key] = location;
    }
    CHECK_EQ(run.num_keys(), expected.size());
    CHECK((entries_of(run) == std::vector<DeltaRun::Entry>(expected.begin(), expected.end())));
  }
}

TEST(a_later_run_is_newer) {
  DeltaRun first, second;
  for (std::uint64_t key = 0; key < 200000; ++key) first.add(key, 1);
  for (std::uint64_t key = 0; key < 400000; key += 2) second.add(key, 2);
  first.append(second);
  const auto entries = entries_of(first);
  CHECK_EQ(entries.size(), std::size_t{300000});
  CHECK_EQ(entries[0].second, Location{2});
  CHECK_EQ(entries[1].second, Location{1});
  CHECK_EQ(entries.back().first, std::uint64_t{399998});
}

TEST(an_empty_run_has_no_keys) {
  DeltaRun run;
  CHECK(run.empty());
  CHECK_EQ(run.num_keys(), std::size_t{0});
  CHECK(entries_of(run).empty());
  run.add(0, kLocationMask);
  CHECK(!run.empty());
  CHECK((entries_of(run) == std::vector<DeltaRun::Entry>{{0, kLocationMask}}));
}

TEST(a_row_takes_some_twelve_bytes) {
  std::mt19937_64 random(1);
  DeltaRun run;
  for (int i = 0; i < 4000000; ++i) run.add(random() % 100000000, random() & kLocationMask);
  const std::size_t keys = run.num_keys();
  for (std::size_t i = 0; i < keys / 4 - 1; ++i) run.add(i, 1);  // as many as may wait
  CHECK(run.memory_bytes() < keys * 13 + (std::size_t{1} << 20));
}

TEST_MAIN()
