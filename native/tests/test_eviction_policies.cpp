#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <tuple>
#include <vector>

#include "check.h"
#include "mtrains/lfu_policy.h"
#include "mtrains/lru_policy.h"
#include "mtrains/next_use_policy.h"
#include "mtrains/s3_fifo_policy.h"

using namespace mtrains;

namespace {

// An index and a window that random batches pass through, with slow oracles of who must leave.
struct Tier {
  explicit Tier(std::uint32_t capacity, std::uint32_t seed) : index(capacity, memory), random(seed) {
    index.grow(capacity);
  }

  void use(std::unique_ptr<EvictionPolicy> policy) { index.set_policy(std::move(policy)); }
  void use_window(std::unique_ptr<EvictionPolicy> beyond) {
    auto policy = std::make_unique<NextUsePolicy>(window, std::move(beyond));
    next_use = policy.get();
    use(std::move(policy));
  }
  auto changed() {
    return [this](RowKey key, std::uint32_t next) {
      if (const auto it = slot_of.find(key); it != slot_of.end())
        next_use->next_use_changed(index, it->second, next);
    };
  }
  void enter(RowKey num_keys, std::size_t n) {
    std::vector<RowKey> keys(random() % (n + 1));
    for (RowKey& key : keys) key = random() % num_keys;
    window.enter();
    window.add(keys.data(), keys.size(), changed());
  }
  void insert(RowKey key) { slot_of[key] = index.insert(key, 0, clock); }
  void evict(std::uint32_t slot) {
    slot_of.erase(index.key(slot));
    index.evict(slot);
  }
  // The slot of the least `priority`, ties by slot number, of those that may leave; -1 if there is none.
  template <typename Priority>
  std::int64_t least(const Priority& priority) const {
    std::int64_t best = -1;
    for (std::uint32_t slot = 0; slot < index.capacity(); ++slot) {
      if (!index.evictable(slot, clock)) continue;
      if (best < 0 || priority(slot) < priority(static_cast<std::uint32_t>(best))) best = slot;
    }
    return best;
  }

  HostMemory memory;
  SlotIndex index;
  LookaheadWindow window;
  NextUsePolicy* next_use = nullptr;
  std::mt19937 random;
  std::map<RowKey, std::uint32_t> slot_of;
  std::uint32_t clock = 0;
};

// Random accesses, pins, moves and batches; each victim must be what `expected` says.
template <typename Expected>
void check_victims(Tier& tier, RowKey num_keys, const Expected& expected) {
  std::vector<std::uint32_t> pinned;
  const auto unpin_all = [&] {
    for (const std::uint32_t slot : pinned) tier.index.unpin(slot);
    pinned.clear();
  };
  for (int round = 0; round < 3000; ++round) {
    ++tier.clock;
    if (tier.next_use != nullptr) {
      if (tier.window.size() < 6) tier.enter(num_keys, tier.index.capacity() / 3 + 1);
      if (tier.random() % 3 == 0 && tier.window.size() > 0) tier.window.leave(tier.changed());
      if (tier.random() % 200 == 0) tier.window.clear(tier.changed());
    }
    for (int access = 0; access < 3; ++access) {
      const RowKey key = tier.random() % num_keys;
      if (const auto it = tier.slot_of.find(key); it != tier.slot_of.end()) {
        tier.index.policy().accessed(tier.index, it->second);
        tier.index.touch(it->second, tier.clock);
        if (tier.random() % 4 == 0 && tier.index.hot(it->second).pins() < 3) {
          tier.index.pin(it->second);
          pinned.push_back(it->second);
        }
        continue;
      }
      if (tier.random() % 16 == 0) unpin_all();
      if (tier.index.num_free() == 0) {
        const std::int64_t wanted = expected(tier);
        Victim peeked;
        CHECK_EQ(tier.index.policy().peek(tier.index, tier.clock, &peeked), wanted >= 0);
        CHECK_EQ(tier.index.policy().victim(tier.index, tier.clock), wanted);
        if (wanted < 0) continue;
        CHECK_EQ(std::int64_t{peeked.slot}, wanted);
        tier.evict(static_cast<std::uint32_t>(wanted));
      }
      tier.insert(key);
    }
    if (tier.random() % 500 == 0) {
      unpin_all();
      while (tier.index.num_free() < tier.index.capacity() / 4) {
        const std::int64_t victim = tier.index.policy().victim(tier.index, tier.clock + 1);
        tier.evict(static_cast<std::uint32_t>(victim));
      }
      const std::uint32_t capacity = tier.index.capacity();
      const SlotMoves moves = tier.index.moves_below(capacity - capacity / 4);
      for (std::size_t i = 0; i < moves.from.size(); ++i)
        tier.slot_of[tier.index.key(moves.from[i])] = moves.to[i];
      tier.index.shrink(capacity - capacity / 4);
      tier.index.grow(capacity);
    }
  }
}

std::int64_t least_recent(const Tier& tier) {
  return tier.least([&](std::uint32_t slot) { return +tier.index.hot(slot).last_use; });
}

std::int64_t least_frequent(const Tier& tier) {
  return tier.least([&](std::uint32_t slot) {
    const SlotRecord& record = tier.index.hot(slot);
    return std::pair(+record.rank, +record.last_use);
  });
}

// Belady's rule inside the window, then whatever `beyond` ranks by.
template <typename Beyond>
std::int64_t farthest(const Tier& tier, const Beyond& beyond) {
  return tier.least([&](std::uint32_t slot) {
    const std::uint32_t next_use = tier.window.next_use(tier.index.key(slot));
    const bool wanted = next_use != kNoUse;
    return std::tuple(wanted, wanted ? ~next_use : beyond(tier.index.hot(slot)));
  });
}

constexpr std::uint32_t kCapacities[] = {1, 2, 19, 300};

}  // namespace

TEST(lru_under_pins_and_moves) {
  for (const std::uint32_t capacity : kCapacities) {
    Tier tier(capacity, capacity);
    check_victims(tier, 2 * capacity + 1, least_recent);
  }
}

TEST(lfu_under_pins_and_moves) {
  for (const LfuSpec spec : {LfuSpec{0, 0}, LfuSpec{2, 0}, LfuSpec{8, 1}}) {
    for (const std::uint32_t capacity : kCapacities) {
      Tier tier(capacity, capacity);
      tier.use(std::make_unique<LfuPolicy>(spec));
      check_victims(tier, 2 * capacity + 1, least_frequent);
    }
  }
}

TEST(next_use_beyond_which_rows_are_ranked_by_recency_or_frequency) {
  for (const std::uint32_t capacity : kCapacities) {
    Tier tier(capacity, capacity);
    tier.use_window(std::make_unique<LruPolicy>());
    check_victims(tier, 2 * capacity + 1, [](const Tier& tier) {
      return farthest(tier, [](const SlotRecord& record) { return +record.last_use; });
    });
    Tier frequent(capacity, capacity);
    frequent.use_window(std::make_unique<LfuPolicy>(LfuSpec{4, 1}));
    check_victims(frequent, 2 * capacity + 1, [](const Tier& tier) {
      return farthest(tier, [](const SlotRecord& record) { return FrequencyThenRecency::of(record); });
    });
  }
}

TEST(next_use_over_s3_fifo_finds_a_victim_whenever_there_is_one) {
  for (const std::uint32_t capacity : kCapacities) {
    Tier tier(capacity, capacity);
    tier.use_window(std::make_unique<S3FifoPolicy>());
    check_victims(tier, 2 * capacity + 1, [](Tier& tier) -> std::int64_t {
      Victim victim;
      if (!tier.index.policy().peek(tier.index, tier.clock, &victim)) {
        CHECK_EQ(least_recent(tier), std::int64_t{-1});
        return -1;
      }
      CHECK(tier.index.evictable(victim.slot, tier.clock));
      CHECK_EQ(victim.next_use, tier.window.next_use(tier.index.key(victim.slot)));
      if (victim.next_use != kNoUse) {
        CHECK_EQ(std::int64_t{victim.slot}, farthest(tier, [](const SlotRecord&) { return 0u; }));
      }
      return victim.slot;
    });
  }
}

TEST(s3_fifo_as_published) {
  // Two queues of names and their accesses, and a third of names only.
  struct Published {
    std::size_t capacity;
    std::deque<RowKey> small{}, main{}, ghosts{};
    std::map<RowKey, int> accesses{};
    RowKey evict() {
      for (;;) {
        if (small.size() >= std::max<std::size_t>(1, capacity / 10) || main.empty()) {
          const RowKey key = small.front();
          small.pop_front();
          if (accesses[key] > 1) {
            accesses[key] = 0;
            main.push_back(key);
            continue;
          }
          accesses.erase(key);
          ghosts.push_back(key);
          if (ghosts.size() > capacity - std::max<std::size_t>(1, capacity / 10)) ghosts.pop_front();
          return key;
        }
        const RowKey key = main.front();
        main.pop_front();
        if (accesses[key]-- > 0) {
          main.push_back(key);
          continue;
        }
        accesses.erase(key);
        return key;
      }
    }
    void insert(RowKey key) {
      accesses[key] = 0;
      const auto ghost = std::find(ghosts.begin(), ghosts.end(), key);
      if (ghost == ghosts.end()) return small.push_back(key);
      ghosts.erase(ghost);
      main.push_back(key);
    }
  };
  for (const std::uint32_t capacity : {2u, 10u, 50u, 200u}) {
    Tier tier(capacity, capacity);
    tier.use(std::make_unique<S3FifoPolicy>());
    Published published{capacity};
    for (int round = 0; round < 20000; ++round) {
      ++tier.clock;
      const std::uint64_t spread = tier.random() % (3 * capacity) + 1;
      const RowKey key = tier.random() % spread;
      if (const auto it = tier.slot_of.find(key); it != tier.slot_of.end()) {
        tier.index.policy().accessed(tier.index, it->second);
        tier.index.touch(it->second, tier.clock);
        published.accesses[key] = std::min(3, published.accesses[key] + 1);
        continue;
      }
      if (tier.index.num_free() == 0) {
        const auto victim = static_cast<std::uint32_t>(tier.index.policy().victim(tier.index, tier.clock));
        CHECK_EQ(tier.index.key(victim), published.evict());
        tier.evict(victim);
      }
      tier.insert(key);
      published.insert(key);
    }
  }
}

TEST(lfu_forgets_by_halves) {
  Tier tier(2, 1);
  tier.use(std::make_unique<LfuPolicy>(LfuSpec{8, 0}));
  tier.insert(1);
  for (int i = 0; i < 13; ++i) tier.index.policy().accessed(tier.index, 0);
  CHECK_EQ(tier.index.hot(0).rank, 14u);
  tier.insert(2);
  tier.index.policy().accessed(tier.index, 1);  // the 16th access of two slots
  CHECK_EQ(tier.index.hot(0).rank, 7u);
  CHECK_EQ(tier.index.hot(1).rank, 1u);
}

TEST(lfu_remembers_rows_that_left) {
  Tier tier(1, 1);
  tier.use(std::make_unique<LfuPolicy>(LfuSpec{0, 1}));
  tier.insert(1);
  tier.index.policy().accessed(tier.index, 0);
  tier.evict(0);
  tier.insert(1);
  CHECK_EQ(tier.index.hot(0).rank, 3u);
  tier.evict(0);
  tier.insert(2);
  tier.evict(0);  // one row too many: 1 keeps half of its 3 accesses, 2 is forgotten
  tier.insert(2);
  CHECK_EQ(tier.index.hot(0).rank, 1u);
  tier.evict(0);
  tier.insert(1);
  CHECK(tier.index.hot(0).rank <= 2);
}

TEST_MAIN()
