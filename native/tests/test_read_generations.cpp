#include <array>
#include <atomic>
#include <cstdint>
#include <stdexcept>
#include <thread>
#include <vector>

#include "check.h"
#include "mtrains/read_generations.h"

using mtrains::ReadGeneration;
using mtrains::ReadGenerations;

TEST(a_mark_without_readers_is_drained_at_once) {
  ReadGenerations generations;
  CHECK(generations.drained(generations.mark()));
}

TEST(a_mark_waits_for_the_reads_begun_before_it) {
  ReadGenerations generations;
  const std::uint64_t first = generations.begin();
  const std::uint64_t second = generations.begin();
  const std::uint64_t mark = generations.mark();
  CHECK(!generations.drained(mark));
  generations.end(first);
  CHECK(!generations.drained(mark));
  generations.end(second);
  CHECK(generations.drained(mark));
}

TEST(a_mark_does_not_wait_for_later_reads) {
  ReadGenerations generations;
  const std::uint64_t early = generations.begin();
  const std::uint64_t mark = generations.mark();
  const std::uint64_t late = generations.begin();
  const std::uint64_t later_mark = generations.mark();
  generations.end(early);
  CHECK(generations.drained(mark));
  CHECK(!generations.drained(later_mark));
  generations.end(late);
  CHECK(generations.drained(later_mark));
}

TEST(reads_may_end_in_any_order) {
  ReadGenerations generations;
  const std::uint64_t early = generations.begin();
  const std::uint64_t mark = generations.mark();
  generations.end(generations.begin());
  CHECK(!generations.drained(mark));
  generations.end(early);
  CHECK(generations.drained(mark));
}

TEST(a_token_ends_once) {
  ReadGenerations generations;
  const std::uint64_t token = generations.begin();
  generations.end(token);
  CHECK_THROWS(generations.end(token), std::invalid_argument);
}

TEST(the_guard_ends_its_read) {
  ReadGenerations generations;
  std::uint64_t mark = 0;
  {
    const ReadGeneration guard(generations);
    mark = generations.mark();
    CHECK(!generations.drained(mark));
  }
  CHECK(generations.drained(mark));
}

// Readers load the current slot inside a generation; the owner replaces it, and reuses the old one only when
// its mark has drained. A reader that sees a reused slot proves a generation missing (TSan: reports the race
// on `value`).
TEST(no_reader_sees_a_slot_that_was_reused) {
  constexpr std::uint64_t kPoison = ~std::uint64_t{0};
  struct Slot {
    std::uint64_t value = 0;  // written only while no read can reach the slot
  };
  ReadGenerations generations;
  std::array<Slot, 3> slots;
  std::atomic<Slot*> current{slots.data()};
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> num_bad{0};
  std::atomic<std::uint64_t> num_reads{0};
  std::vector<std::thread> readers;
  for (int i = 0; i < 3; ++i) {
    readers.emplace_back([&] {
      while (!stop.load()) {
        const ReadGeneration guard(generations);
        const Slot* slot = current.load();
        if (slot->value == kPoison) ++num_bad;
        ++num_reads;
      }
    });
  }
  for (std::size_t round = 1; round <= 2000; ++round) {
    Slot* const old = current.load();
    Slot* const next = &slots[round % slots.size()];
    next->value = round;
    current.store(next);
    const std::uint64_t mark = generations.mark();
    while (!generations.drained(mark)) std::this_thread::yield();
    old->value = kPoison;
  }
  while (num_reads.load() == 0) std::this_thread::yield();
  stop.store(true);
  for (std::thread& reader : readers) reader.join();
  CHECK_EQ(num_bad.load(), 0U);
  CHECK(generations.drained(generations.mark()));
}

TEST_MAIN()
