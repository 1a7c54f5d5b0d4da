#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "check.h"
#include "mtrains/batch_plan.h"

using namespace mtrains;

namespace {

constexpr std::int64_t kNoPadding = -1;

IndexSpan span(const std::vector<std::int64_t>& indices) { return {indices.data(), indices.size(), true}; }

// Against a map from row to positions, which is ordered as the plan must be.
void check_plan(const BatchPlan& plan, const std::vector<std::int64_t>& indices, std::int64_t padding_row) {
  std::map<std::uint64_t, std::vector<std::uint32_t>> expected;
  for (std::size_t p = 0; p < indices.size(); ++p) {
    if (indices[p] == padding_row) continue;
    expected[static_cast<std::uint64_t>(indices[p])].push_back(static_cast<std::uint32_t>(p));
  }
  CHECK_EQ(plan.num_positions, indices.size());
  CHECK_EQ(plan.num_unique(), expected.size());
  CHECK_EQ(plan.csr.size(), expected.size() + 1);
  std::size_t u = 0, filled = 0;
  for (const auto& [row, positions] : expected) {
    CHECK_EQ(plan.rows[u], row);
    CHECK_EQ(plan.csr[u], filled);
    filled += positions.size();
    CHECK_EQ(plan.csr[++u], filled);
    CHECK(std::equal(positions.begin(), positions.end(), plan.positions.begin() + plan.csr[u - 1]));
  }
  CHECK_EQ(plan.positions.size(), filled);
}

std::vector<std::int64_t> random_indices(std::mt19937_64& random, std::size_t n, std::uint64_t num_rows) {
  std::vector<std::int64_t> indices(n);
  for (std::int64_t& index : indices) {
    const std::uint64_t range = random() % 3 ? std::min<std::uint64_t>(num_rows, 50) : num_rows;
    index = static_cast<std::int64_t>(num_rows - 1 - random() % range);
  }
  return indices;
}

}  // namespace

TEST(build_equals_a_map) {
  std::mt19937_64 random(1);
  for (std::size_t n : {1u, 2u, 63u, 1000u, 30000u}) {
    for (std::uint64_t num_rows :
         {std::uint64_t{1}, std::uint64_t{2}, std::uint64_t{1000}, std::uint64_t{1} << 20,
          (std::uint64_t{1} << 22) + 1, std::uint64_t{1} << 33, std::uint64_t{1} << 46}) {
      const std::vector<std::int64_t> indices = random_indices(random, n, num_rows);
      for (std::int64_t padding_row : {kNoPadding, indices[0]}) {
        BatchPlan plan;
        CHECK(!plan.build(span(indices), num_rows, padding_row));
        check_plan(plan, indices, padding_row);
      }
    }
  }
}

// 2^19 positions and 2^46 rows do not fit one word.
TEST(build_with_wide_keys) {
  std::mt19937_64 random(2);
  const std::vector<std::int64_t> indices =
      random_indices(random, (std::size_t{1} << 18) + 3, std::uint64_t{1} << 46);
  BatchPlan plan;
  CHECK(!plan.build(span(indices), std::uint64_t{1} << 46, kNoPadding));
  check_plan(plan, indices, kNoPadding);
}

TEST(build_from_int32) {
  const std::vector<std::int32_t> narrow = {7, 3, 7, 0, 3, 3};
  const std::vector<std::int64_t> wide(narrow.begin(), narrow.end());
  BatchPlan plan;
  CHECK(!plan.build({narrow.data(), narrow.size(), false}, 8, 0));
  check_plan(plan, wide, 0);
}

TEST(build_of_nothing) {
  BatchPlan plan;
  CHECK(!plan.build({nullptr, 0, true}, 10, kNoPadding));
  CHECK_EQ(plan.num_unique(), 0);
  CHECK(plan.csr == std::vector<std::uint32_t>{0});
  const std::int64_t offsets[] = {0, 0, 0};
  plan.set_bags(offsets, 2);
  plan.order_by_slot();
  plan.scatter_slots();
  CHECK(plan.slot_of_position.empty());
  const std::vector<std::int64_t> padding = {4, 4};
  CHECK(!plan.build(span(padding), 10, 4));
  CHECK_EQ(plan.num_unique(), 0);
  CHECK_EQ(plan.num_positions, 2);
  plan.scatter_slots();
  CHECK(plan.slot_of_position == std::vector<std::uint32_t>(2, kNoSlot));
}

TEST(build_names_the_first_bad_index) {
  for (std::int64_t value :
       {std::int64_t{10}, std::int64_t{-1}, std::int64_t{1} << 40, INT64_MIN, INT64_MAX}) {
    const std::vector<std::int64_t> indices = {1, 9, value, 2, value};
    BatchPlan plan;
    const auto bad = plan.build(span(indices), 10, kNoPadding);
    CHECK(bad.has_value());
    CHECK_EQ(bad->position, 2);
    CHECK_EQ(bad->value, value);
    CHECK_EQ(plan.num_positions, 0);
    CHECK_EQ(plan.num_unique(), 0);
    CHECK(!plan.build(span({1, 9}), 10, kNoPadding));  // the plan can be used again
    check_plan(plan, {1, 9}, kNoPadding);
  }
  const std::int32_t narrow[] = {0, -5};
  BatchPlan plan;
  const auto bad = plan.build({narrow, 2, false}, 10, kNoPadding);
  CHECK(bad && bad->position == 1 && bad->value == -5);
}

TEST(set_bags) {
  BatchPlan plan;
  CHECK(!plan.build(span({1, 2, 3, 1}), 10, kNoPadding));
  const std::int64_t ragged[] = {0, 0, 3, 3, 4};
  plan.set_bags(ragged, 4);
  CHECK(plan.bag_of_position == (std::vector<std::uint32_t>{1, 1, 1, 3}));
  const std::int64_t trivial[] = {0, 1, 2, 3, 4};
  plan.set_bags(trivial, 4);
  CHECK(plan.bag_of_position.empty());
}

TEST(order_by_slot_and_scatter) {
  std::mt19937_64 random(3);
  for (std::size_t n : {5u, 5000u}) {
    const std::vector<std::int64_t> indices = random_indices(random, n, 3000);
    BatchPlan plan;
    CHECK(!plan.build(span(indices), 3000, indices[0]));
    std::map<std::uint64_t, std::vector<std::uint32_t>> positions_of;
    for (std::size_t u = 0; u < plan.num_unique(); ++u) {
      plan.slots.push_back(static_cast<std::uint32_t>(plan.rows[u] * 7919 % 3001 * 1000003));
      positions_of[plan.rows[u]] = {plan.positions.begin() + plan.csr[u],
                                    plan.positions.begin() + plan.csr[u + 1]};
    }
    plan.order_by_slot();
    CHECK(std::is_sorted(plan.slots.begin(), plan.slots.end()));
    CHECK_EQ(plan.num_unique(), positions_of.size());
    std::set<std::uint64_t> rows;
    for (std::size_t u = 0; u < plan.num_unique(); ++u) {
      rows.insert(plan.rows[u]);
      CHECK_EQ(plan.slots[u], static_cast<std::uint32_t>(plan.rows[u] * 7919 % 3001 * 1000003));
      const std::vector<std::uint32_t>& expected = positions_of[plan.rows[u]];
      CHECK_EQ(plan.csr[u + 1] - plan.csr[u], expected.size());
      CHECK(std::equal(expected.begin(), expected.end(), plan.positions.begin() + plan.csr[u]));
    }
    CHECK_EQ(rows.size(), plan.num_unique());
    plan.scatter_slots();
    for (std::size_t p = 0; p < n; ++p) {
      const std::uint32_t slot = static_cast<std::uint32_t>(indices[p] * 7919 % 3001 * 1000003);
      CHECK_EQ(plan.slot_of_position[p], indices[p] == indices[0] ? kNoSlot : slot);
    }
  }
}

TEST_MAIN()
