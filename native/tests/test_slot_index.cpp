#include <list>
#include <map>
#include <random>
#include <vector>

#include "check.h"
#include "mtrains/slot_index.h"

using namespace mtrains;

namespace {

// Least recently used key, ties by slot: the slow oracle.
struct Oracle {
  std::map<std::uint32_t, std::uint32_t> last_use;  // slot -> clock
  std::int64_t victim(std::uint32_t clock) const {
    std::int64_t best = -1;
    for (const auto& [slot, used] : last_use) {
      if (used < clock && (best < 0 || used < last_use.at(static_cast<std::uint32_t>(best)))) best = slot;
    }
    return best;
  }
};

}  // namespace

TEST(keys_and_locations_keep_all_their_bits) {
  HostMemory memory;
  SlotIndex index(8, memory);
  index.grow(8);
  const RowKey key = (RowKey{1} << kKeyBits) - 2;
  const std::uint32_t slot = index.insert(key, kLocationMask, 7);
  CHECK_EQ(index.key(slot), key);
  CHECK_EQ(index.location(slot), kLocationMask);
  index.hot(slot).set_stamp(2);
  CHECK_EQ(index.key(slot), key);
  CHECK_EQ(index.hot(slot).stamp(), 2u);
  index.set_location(slot, 5);
  CHECK_EQ(index.key(slot), key);
  CHECK_EQ(index.location(slot), std::uint64_t{5});
}

TEST(a_reused_slot_inherits_nothing) {
  HostMemory memory;
  SlotIndex index(1, memory);
  index.grow(1);
  const std::uint32_t slot = index.insert(3, 9, 1);
  index.hot(slot).set_stamp(1);
  index.hot(slot).rank = 200;
  index.pin(slot);
  index.set_wanted(slot, true);
  const std::uint64_t before = index.generation();
  index.evict(slot);
  CHECK(index.generation() != before);
  CHECK(!index.occupied(slot));
  const std::uint32_t again = index.insert(4, 0, 2);
  CHECK_EQ(again, slot);
  CHECK_EQ(index.hot(again).stamp(), kClean);
  CHECK_EQ(index.location(again), Location{0});
  CHECK_EQ(index.hot(again).last_use, 2u);
  CHECK_EQ(index.hot(again).rank, 0u);
  CHECK_EQ(index.hot(again).pins(), 0u);
  CHECK(!index.hot(again).wanted());
}

TEST(victims_are_exactly_the_least_recently_used) {
  std::mt19937 random(1);
  for (const std::uint32_t capacity : {1u, 2u, 17u, 300u}) {
    HostMemory memory;
    SlotIndex index(capacity, memory);
    index.grow(capacity);
    Oracle oracle;
    std::map<RowKey, std::uint32_t> slot_of;
    for (std::uint32_t clock = 1; clock < 2000; ++clock) {
      const RowKey key = random() % (2 * capacity + 1);
      if (const auto it = slot_of.find(key); it != slot_of.end()) {
        index.touch(it->second, clock);
        oracle.last_use[it->second] = clock;
        continue;
      }
      if (index.num_free() == 0) {
        const std::int64_t victim = index.policy().victim(index, clock);
        CHECK_EQ(victim, oracle.victim(clock));
        slot_of.erase(index.key(static_cast<std::uint32_t>(victim)));
        oracle.last_use.erase(static_cast<std::uint32_t>(victim));
        index.evict(static_cast<std::uint32_t>(victim));
      }
      const std::uint32_t slot = index.insert(key, 0, clock);
      slot_of[key] = slot;
      oracle.last_use[slot] = clock;
    }
  }
}

TEST(pins_are_counted_and_keep_a_row_in_its_slot) {
  HostMemory memory;
  SlotIndex index(2, memory);
  index.grow(2);
  index.insert(7, 0, 1);
  index.insert(8, 0, 2);
  const RowKey key = index.key(0);
  for (std::uint32_t i = 0; i < SlotRecord::kMaxPins; ++i) index.pin(0);
  CHECK_EQ(index.hot(0).pins(), SlotRecord::kMaxPins);
  CHECK(!index.hot(0).wanted());
  CHECK_EQ(index.key(0), key);
  CHECK_EQ(index.policy().victim(index, 5), std::int64_t{1});
  index.evict(1);
  CHECK_EQ(index.policy().victim(index, 5), std::int64_t{-1});
  for (std::uint32_t i = 1; i < SlotRecord::kMaxPins; ++i) index.unpin(0);
  CHECK_EQ(index.policy().victim(index, 5), std::int64_t{-1});
  index.unpin(0);
  CHECK_EQ(index.policy().victim(index, 5), std::int64_t{0});
}

TEST(a_victim_that_was_not_evicted_is_found_again) {
  HostMemory memory;
  SlotIndex index(300, memory);
  index.grow(300);
  for (RowKey key = 0; key < 300; ++key) index.insert(key, 0, 1 + static_cast<std::uint32_t>(key));
  for (int i = 0; i < 200; ++i) CHECK_EQ(index.policy().victim(index, 1000), std::int64_t{i});
  for (std::uint32_t slot = 200; slot < 300; ++slot) index.evict(slot);
  CHECK_EQ(index.policy().victim(index, 1000), std::int64_t{0});
}

TEST(rows_of_the_present_pass_are_no_victims) {
  HostMemory memory;
  SlotIndex index(4, memory);
  index.grow(4);
  for (RowKey key = 0; key < 4; ++key) index.insert(key, 0, 5);
  CHECK_EQ(index.policy().victim(index, 5), std::int64_t{-1});
  CHECK_EQ(index.policy().victim(index, 6), std::int64_t{0});
}

TEST(shrinking_moves_rows_down_with_all_they_have) {
  HostMemory memory;
  SlotIndex index(10, memory);
  index.grow(10);
  for (RowKey key = 0; key < 10; ++key) index.insert(100 + key, key, static_cast<std::uint32_t>(key));
  for (std::uint32_t slot = 0; slot < 5; ++slot) index.evict(slot);
  index.hot(7).set_stamp(2);
  std::map<std::uint32_t, std::uint32_t> moves;
  const SlotMoves told = index.moves_below(6);
  for (std::size_t i = 0; i < told.from.size(); ++i) moves[told.from[i]] = told.to[i];
  index.shrink(6);
  CHECK_EQ(index.capacity(), 6u);
  CHECK_EQ(moves.size(), std::size_t{4});
  for (const auto& [from, to] : moves) {
    CHECK(to < 6);
    CHECK_EQ(index.key(to), RowKey{100} + from);
    CHECK_EQ(index.location(to), Location{from});
    CHECK_EQ(index.hot(to).last_use, from);
    CHECK_EQ(index.hot(to).stamp(), from == 7 ? 2u : 0u);
  }
  CHECK_EQ(index.num_free(), 1u);
  index.grow(10);
  CHECK_EQ(index.num_free(), 5u);
  for (int i = 0; i < 5; ++i) index.insert(1, 0, 50);
  CHECK_EQ(index.num_free(), 0u);
}

TEST(a_rebased_clock_keeps_the_order) {
  HostMemory memory;
  SlotIndex index(3, memory);
  index.grow(3);
  index.insert(0, 0, 0x900000u);
  index.insert(1, 0, 0x800005u);
  index.insert(2, 0, 3);
  index.rebase(kClockRebase);
  const std::uint32_t clock = 0x700000u;
  for (const std::int64_t expected : {2, 1, 0}) {
    const std::int64_t victim = index.policy().victim(index, clock);
    CHECK_EQ(victim, expected);
    index.evict(static_cast<std::uint32_t>(victim));
  }
}

TEST_MAIN()
