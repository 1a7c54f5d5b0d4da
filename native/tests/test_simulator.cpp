#include <algorithm>
#include <numeric>
#include <random>
#include <set>
#include <stdexcept>
#include <vector>

#include "check.h"
#include "mtrains/simulator.h"

using namespace mtrains;

namespace {

using Batches = std::vector<std::vector<std::int64_t>>;

Batches random_batches(std::mt19937& random, std::size_t num_batches, std::size_t most, int num_rows) {
  Batches batches(num_batches);
  for (auto& batch : batches) {
    batch.resize(random() % (most + 1));
    for (auto& row : batch) row = random() % (random() % num_rows + 1);
  }
  return batches;
}

AccessTrace trace_of(const Batches& batches) {
  std::vector<std::uint32_t> tables, numbers;
  std::vector<std::int64_t> rows;
  for (std::size_t i = 0; i < batches.size(); ++i) {
    for (const std::int64_t row : batches[i]) {
      tables.push_back(static_cast<std::uint32_t>(row % 3));
      rows.push_back(row);
      numbers.push_back(static_cast<std::uint32_t>(i));
    }
  }
  return AccessTrace(tables, rows, numbers, static_cast<std::uint32_t>(batches.size()));
}

std::uint64_t sum(const std::vector<std::uint64_t>& values) {
  return std::accumulate(values.begin(), values.end(), std::uint64_t{0});
}

std::uint64_t misses(const SimulationCounts& counts) { return sum(counts.new_rows) + sum(counts.fetches); }

// Belady's rule by search: evict after each batch what is used farthest.
std::uint64_t fewest_misses(const Batches& batches, std::size_t capacity) {
  std::set<std::int64_t> held;
  std::uint64_t count = 0;
  for (std::size_t i = 0; i < batches.size(); ++i) {
    for (const std::int64_t row : batches[i]) count += held.insert(row).second;
    const auto next_use = [&](std::int64_t row) {
      std::size_t next = i + 1;
      while (next < batches.size() &&
             std::find(batches[next].begin(), batches[next].end(), row) == batches[next].end()) {
        ++next;
      }
      return next;
    };
    while (held.size() > capacity) {
      held.erase(*std::max_element(held.begin(), held.end(), [&](std::int64_t x, std::int64_t y) {
        return next_use(x) < next_use(y);
      }));
    }
  }
  return count;
}

}  // namespace

TEST(a_trace_counts_unique_rows_of_batches) {
  const AccessTrace trace = trace_of({{5, 5, 8}, {}, {8, 5, 11, 11}});
  CHECK_EQ(trace.num_accesses(), 7u);
  CHECK_EQ(trace.num_unique(), 5u);
  CHECK_EQ(trace.num_rows(), 3u);
  CHECK_EQ(trace.num_batches(), 3u);
  CHECK_EQ(trace.largest_batch(), std::size_t{3});
  CHECK_EQ(trace.batch(1).size(), std::size_t{0});
  CHECK_EQ(trace.batch(2)[0], 1u);
  CHECK_EQ(trace.table_of(0), 2u);
  const std::uint32_t zero = 0;
  const std::int64_t row = 0;
  CHECK_THROWS(AccessTrace({&zero, 1}, {&row, 1}, {&zero, 1}, 0), std::invalid_argument);
}

TEST(a_window_over_all_batches_misses_least) {
  std::mt19937 random(5);
  for (int round = 0; round < 60; ++round) {
    const Batches batches = random_batches(random, 60, 8, 30);
    const AccessTrace trace = trace_of(batches);
    SimulationSpec spec;
    spec.capacity = 1 + random() % 20;
    spec.lookahead = 60;
    spec.evict_after = true;
    for (const PolicyKind policy : {PolicyKind::kLru, PolicyKind::kLfu, PolicyKind::kS3Fifo}) {
      spec.policy = policy;
      CHECK_EQ(misses(Simulator(trace, spec).run()), fewest_misses(batches, spec.capacity));
    }
  }
}

TEST(accesses_are_counted_once_whatever_the_policy_and_depth) {
  std::mt19937 random(6);
  for (int round = 0; round < 200; ++round) {
    const Batches batches = random_batches(random, 50, 12, 60);
    const AccessTrace trace = trace_of(batches);
    SimulationSpec spec;
    spec.capacity = 1 + random() % 40;
    spec.policy = static_cast<PolicyKind>(random() % 3);
    spec.lookahead = random() % 5;
    spec.depth = random() % 4;
    spec.max_pinned_ratio = random() % 2 ? 1.0 : 0.3;
    const SimulationCounts counts = Simulator(trace, spec).run();
    CHECK_EQ(sum(counts.hits) + misses(counts), trace.num_unique());
    CHECK_EQ(sum(counts.new_rows), trace.num_rows());
    CHECK(counts.batches_ahead <= std::uint64_t{spec.depth} * trace.num_batches());
    for (std::uint32_t i = 0; i < trace.num_batches(); ++i) {
      const AccessCounts& batch = counts.batches[i];
      CHECK_EQ(batch.hits + batch.new_rows + batch.fetches, trace.batch(i).size());
    }
    if (trace.largest_batch() <= spec.capacity) CHECK_EQ(counts.split_batches, 0u);
    const SimulationCounts again = Simulator(trace, spec).run();
    CHECK(again.hits == counts.hits && again.evictions == counts.evictions);
  }
}

TEST(all_rows_fit) {
  std::mt19937 random(7);
  const AccessTrace trace = trace_of(random_batches(random, 100, 12, 60));
  for (const std::uint32_t lookahead : {0u, 4u}) {
    SimulationSpec spec;
    spec.capacity = trace.num_rows();
    spec.lookahead = lookahead;
    spec.depth = 2;
    const SimulationCounts counts = Simulator(trace, spec).run();
    CHECK_EQ(sum(counts.fetches), 0u);
    CHECK_EQ(counts.evictions, 0u);
  }
}

TEST(rows_of_several_slots_are_a_cache_of_as_many_fewer) {
  std::mt19937 random(8);
  for (int round = 0; round < 60; ++round) {
    const AccessTrace trace = trace_of(random_batches(random, 60, 12, 60));
    SimulationSpec spec;
    spec.capacity = 1 + random() % 40;
    spec.lookahead = random() % 5;
    spec.depth = random() % 4;
    spec.rows_per_block = 4;
    const SimulationCounts one = Simulator(trace, spec).run();
    spec.capacity = 7 * spec.capacity + random() % 7;
    spec.weights.assign(trace.num_tables(), 7);
    const SimulationCounts seven = Simulator(trace, spec).run();
    CHECK(one.hits == seven.hits && one.fetches == seven.fetches && one.evictions == seven.evictions);
    CHECK_EQ(one.block_reads, seven.block_reads);
    for (std::size_t i = 0; i < one.batches.size(); ++i) {
      CHECK_EQ(7 * one.batches[i].hits, seven.batches[i].hits);
      CHECK_EQ(7 * one.batches[i].fetches, seven.batches[i].fetches);
    }
  }
}

TEST(rows_of_any_weights_are_counted_once) {
  std::mt19937 random(9);
  for (int round = 0; round < 200; ++round) {
    const AccessTrace trace = trace_of(random_batches(random, 50, 12, 60));
    SimulationSpec spec;
    spec.capacity = 1 + random() % 60;
    spec.lookahead = random() % 5;
    spec.depth = random() % 4;
    spec.evict_after = spec.depth == 0 && random() % 2;
    spec.weights = {1, static_cast<std::uint32_t>(1 + random() % 9),
                    static_cast<std::uint32_t>(1 + random() % 99)};
    const SimulationCounts counts = Simulator(trace, spec).run();
    CHECK_EQ(sum(counts.hits) + misses(counts), trace.num_unique());
    CHECK_EQ(sum(counts.new_rows), trace.num_rows());
  }
}

TEST(fetches_of_a_batch_that_lie_in_one_block_are_one_read) {
  // Two groups of four rows take turns in room for one: each group leaves as it came and comes back from one
  // block.
  Batches batches;
  for (int i = 0; i < 10; ++i) {
    batches.push_back(i % 2 ? std::vector<std::int64_t>{1, 2, 3, 4} : std::vector<std::int64_t>{5, 6, 7, 8});
  }
  const AccessTrace trace = trace_of(batches);
  for (const auto& [rows_per_block, reads] : {std::pair{4u, 8u}, {2u, 16u}, {1u, 32u}}) {
    SimulationSpec spec;
    spec.capacity = 4;
    spec.rows_per_block = rows_per_block;
    const SimulationCounts counts = Simulator(trace, spec).run();
    CHECK_EQ(sum(counts.fetches), 32u);
    CHECK_EQ(counts.block_reads, reads);
  }
}

TEST(specs_that_mean_nothing_are_refused) {
  const AccessTrace trace = trace_of({{1}});
  SimulationSpec weightless;
  weightless.weights = {0, 1, 1};
  CHECK_THROWS(Simulator(trace, weightless), std::invalid_argument);
  weightless.weights = {1};
  CHECK_THROWS(Simulator(trace, weightless), std::invalid_argument);
  CHECK_THROWS(Simulator(trace, {.capacity = 0}), std::invalid_argument);
  CHECK_THROWS(Simulator(trace, {.depth = kMaxDepth + 1}), std::invalid_argument);
  CHECK_THROWS(Simulator(trace, {.depth = 1, .evict_after = true}), std::invalid_argument);
  CHECK_THROWS(Simulator(trace, {.max_pinned_ratio = 0}), std::invalid_argument);
}

TEST_MAIN()
