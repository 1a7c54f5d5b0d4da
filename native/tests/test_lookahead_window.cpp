#include <deque>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "check.h"
#include "mtrains/lookahead_window.h"

using namespace mtrains;

namespace {

// Batches as they are, searched from the oldest: the slow oracle.
struct Oracle {
  std::uint32_t first = 0;
  std::deque<std::set<RowKey>> batches;
  std::uint32_t next_use(RowKey key) const {
    for (std::size_t i = 0; i < batches.size(); ++i) {
      if (batches[i].count(key)) return first + static_cast<std::uint32_t>(i);
    }
    return kNoUse;
  }
};

}  // namespace

TEST(next_uses_are_those_of_the_batches_in_the_window) {
  std::mt19937 random(3);
  for (const std::uint32_t num_keys : {1u, 5u, 400u}) {
    LookaheadWindow window;
    Oracle oracle;
    std::map<RowKey, std::uint32_t> told;  // what changed() said last
    const auto changed = [&](RowKey key, std::uint32_t next_use) { told[key] = next_use; };
    for (int round = 0; round < 400; ++round) {
      if (window.size() == 0 || random() % 2) {
        CHECK_EQ(window.enter(), oracle.first + oracle.batches.size());
        oracle.batches.emplace_back();
        for (int call = 0; call < 2; ++call) {
          std::vector<RowKey> keys(random() % 40);
          for (RowKey& key : keys) key = (random() % num_keys) << 20;
          oracle.batches.back().insert(keys.begin(), keys.end());
          window.add(keys.data(), keys.size(), changed);
        }
      } else {
        window.leave(changed);
        oracle.batches.pop_front();
        ++oracle.first;
      }
      if (round == 300) {
        window.clear(changed);
        oracle.first = window.end();
        oracle.batches.clear();
      }
      CHECK_EQ(window.first(), oracle.first);
      CHECK_EQ(window.size(), oracle.batches.size());
      std::set<RowKey> rows;
      for (const auto& batch : oracle.batches) rows.insert(batch.begin(), batch.end());
      CHECK_EQ(window.num_rows(), rows.size());
      for (RowKey key = 0; key < num_keys; ++key) {
        const std::uint32_t expected = oracle.next_use(key << 20);
        CHECK_EQ(window.next_use(key << 20), expected);
        CHECK_EQ(told.count(key << 20) ? told[key << 20] : kNoUse, expected);
      }
    }
  }
}

TEST(an_empty_window_knows_nothing) {
  LookaheadWindow window;
  CHECK_EQ(window.next_use(7), kNoUse);
  window.enter();
  window.add(nullptr, 0, [](RowKey, std::uint32_t) {});
  CHECK_EQ(window.next_use(7), kNoUse);
  window.leave([](RowKey, std::uint32_t) {});
  CHECK_EQ(window.size(), 0u);
}

TEST_MAIN()
