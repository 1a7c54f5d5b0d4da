// The choice of segments to empty, against one that looks at all of them.
#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <vector>

#include "check.h"
#include "mtrains/garbage_index.h"

using mtrains::GarbageIndex;
using mtrains::GarbagePolicy;
using mtrains::ShareOrder;

namespace {

using Numbers = std::vector<std::uint32_t>;

constexpr std::uint32_t kWhole = ShareOrder::kWhole;

std::uint32_t share(double of_whole) { return static_cast<std::uint32_t>(of_whole * kWhole); }

GarbagePolicy eager() {
  GarbagePolicy policy;
  policy.slack = 0;
  return policy;
}

Numbers sorted(Numbers numbers) {
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

}  // namespace

TEST(an_order_of_shares_keeps_up_with_changes) {
  ShareOrder order;
  std::map<std::uint32_t, std::uint32_t> expected;
  std::mt19937 random(1);
  for (int i = 0; i < 20000; ++i) {
    const std::uint32_t number = random() % 300, value = random() % (kWhole + 1);
    if (random() % 4 == 0) {
      order.erase(number);
      expected.erase(number);
    } else {
      order.set(number, value);
      expected[number] = value;
    }
    if (i % 100 != 0) continue;
    Numbers seen;
    std::uint32_t last = 0;
    order.scan([&](std::uint32_t n) {
      seen.push_back(n);
      CHECK(expected.count(n) == 1 && expected[n] / (kWhole / 64) >= last);
      CHECK_EQ(order.share(n), expected[n] / static_cast<double>(kWhole));
      last = expected[n] / (kWhole / 64);
      return true;
    });
    double sum = 0;
    for (const auto& [n, s] : expected) sum += s / static_cast<double>(kWhole);
    CHECK_EQ(seen.size(), expected.size());
    CHECK_EQ(order.size(), expected.size());
    CHECK(std::abs(order.sum() - sum) < 1e-9);
  }
}

TEST(nothing_is_chosen_while_enough_is_live) {
  GarbageIndex index;
  CHECK(index.choose(4, eager()).empty());
  for (std::uint32_t i = 1; i <= 3; ++i) index.set_young(i, share(0.85));
  for (std::uint32_t i = 4; i <= 6; ++i) index.set_old(i, share(0.7), share(0.75));
  CHECK(index.choose(4, eager()).empty());
}

TEST(young_segments_go_by_what_is_live_until_enough_is) {
  GarbageIndex index;
  std::mt19937 random(2);
  double live = 0;
  for (std::uint32_t i = 0; i < 200; ++i) {
    const double part = (1 + random() % 100) / 100.0;
    index.set_young(i, share(part));
    live += part;
  }
  const Numbers chosen = index.choose(200, eager());
  double count = 200, most = 0;
  for (const std::uint32_t number : chosen) {
    count += index.live_share(number, true) - 1;
    most = std::max(most, index.live_share(number, true));
  }
  CHECK(live / count >= eager().young_target - 0.01);
  CHECK(live / count < eager().young_target + 0.01);
  for (std::uint32_t i = 0; i < 200; ++i) {
    const bool is_chosen = std::find(chosen.begin(), chosen.end(), i) != chosen.end();
    if (!is_chosen) CHECK(index.live_share(i, true) >= most - 1 / 64.0);
  }
  GarbagePolicy limited = eager();
  CHECK_EQ(index.choose(3, limited).size(), 3U);
  limited.slack = 300;
  CHECK(index.choose(200, limited).empty());
}

TEST(old_segments_go_when_nearly_empty_and_first) {
  GarbageIndex index;
  for (std::uint32_t i = 0; i < 20; ++i) index.set_old(i, share((i + 0.5) / 22), share(0.97));
  index.set_young(30, share(0.1));
  CHECK(index.choose(10, eager()) == Numbers({0, 1, 2, 3, 30}));
  GarbagePolicy only_young = eager();
  only_young.only_young = true;
  CHECK(index.choose(10, only_young) == Numbers({30}));
  GarbagePolicy policy = eager();
  policy.slack = 40;  // 10 of what the others lack may stay, and 20 of the young ones
  CHECK_EQ(index.choose(10, policy).size(), 1U);
}

TEST(what_no_checkpoint_needs_any_more_goes_where_it_is_too_much) {
  GarbageIndex index;
  for (std::uint32_t i = 0; i < 50; ++i) index.set_old(i, share(0.5), share(0.5));
  for (std::uint32_t i = 50; i < 100; ++i) index.set_old(i, share(0.5), share(0.85));
  const Numbers chosen = index.choose(100, eager());
  CHECK(!chosen.empty());
  CHECK(sorted(chosen).back() < 50);
  const double needed = 50 * 0.5 + 50 * 0.85, count = 100 - 0.5 * static_cast<double>(chosen.size());
  CHECK(needed / count >= 0.7 && needed / count < 0.71);
}

TEST(what_checkpoints_of_few_rows_left_empty_is_not_live) {
  GarbageIndex index;
  for (std::uint32_t i = 0; i < 200; ++i) index.set_old(i, share(4 / 256.0), share(4 / 256.0));
  const GarbagePolicy policy;
  CHECK(index.choose(200, policy).size() > 200 - policy.slack);
  for (std::uint32_t i = policy.slack / 4; i < 200; ++i) index.erase(i);
  CHECK(index.choose(200, policy).empty());  // a little is left alone
}

TEST_MAIN()
