#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "mtrains/errors.h"
#include "mtrains/slot_memory.h"

using namespace mtrains;

namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kBudget = std::size_t{4} << 20;

// A memfd that is given out in extents with a page between them, as the values of an LMDB file lie.
struct Arena {
  explicit Arena(std::size_t bytes, std::size_t chunk) : left(bytes), chunk(chunk) {
    fd = memfd_create("test_slot_memory", MFD_CLOEXEC);
  }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena() { close(fd); }

  std::optional<FileExtent> grow() {
    ++num_calls;
    if (fail_with != 0) throw IoError(fail_with, "no room for the arena");
    if (left == 0) return std::nullopt;
    const std::size_t length = std::min(chunk, left);
    const FileExtent extent = {end + kPage, length};
    end += kPage + length;
    left -= length;
    if (ftruncate(fd, static_cast<off_t>(end)) != 0) throw IoError(errno, "ftruncate");
    return extent;
  }

  std::size_t left, chunk;
  std::uint64_t end = 0;
  int fd;
  int num_calls = 0;
  int fail_with = 0;
};

std::unique_ptr<FileMemory> memory_over(Arena& arena, std::size_t budget) {
  return std::make_unique<FileMemory>(arena.fd, budget, [&arena] { return arena.grow(); });
}

using Suite = std::function<void(SlotMemory&)>;

void with_each_memory(const Suite& suite) {
  HostMemory host;
  suite(host);
  Arena arena(kBudget, kBudget / 4);
  const auto file = memory_over(arena, kBudget);
  suite(*file);
  CHECK_EQ(file->bytes_in_use(), 0);
}

void fill(SlotRange& range, std::size_t begin, std::size_t end, int value) {
  std::memset(range.data() + begin, value, end - begin);
}

bool holds(const SlotRange& range, std::size_t begin, std::size_t end, int value) {
  return std::all_of(range.data() + begin, range.data() + end,
                     [&](std::byte b) { return b == static_cast<std::byte>(value); });
}

// Whether forked children are left without the map that holds `at`.
bool not_inherited(const std::byte* at) {
  std::ifstream maps("/proc/self/smaps");
  bool found = false;
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t begin = 0, end = 0;
    const auto address = reinterpret_cast<std::uintptr_t>(at);
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) found = begin <= address && address < end;
    if (found && line.starts_with("VmFlags:")) return line.find(" dc") != std::string::npos;
  }
  return false;
}

// Runs `body` in a forked child; returns its exit status.
int status_in_child(const std::function<int()>& body) {
  const pid_t pid = fork();
  if (pid == 0) _exit(body());
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + status;
}

}  // namespace

TEST(a_range_grows_in_place_and_keeps_its_contents) {
  with_each_memory([](SlotMemory& memory) {
    const auto range = memory.reserve(kBudget, false);
    std::byte* const base = range->data();
    CHECK_EQ(range->committed(), 0);
    CHECK(range->commit(0));
    CHECK_EQ(range->committed(), 0);
    const std::size_t unit = memory.unit_bytes();
    for (std::size_t units : {1, 2, 3, 40, 41, 300}) {
      const std::size_t before = range->committed();
      CHECK(range->commit(units * unit - unit / 2));
      CHECK_EQ(range->committed(), units * unit);
      CHECK_EQ(memory.bytes_in_use(), units * unit);
      CHECK(range->data() == base);
      CHECK(holds(*range, 0, before, 7));
      fill(*range, before, range->committed(), 7);
      CHECK(range->commit(unit));  // less than there is: nothing happens
      CHECK_EQ(range->committed(), units * unit);
    }
  });
}

TEST(what_is_given_back_is_used_again_and_the_rest_stays) {
  with_each_memory([](SlotMemory& memory) {
    const std::size_t unit = memory.unit_bytes();
    const auto first = memory.reserve(kBudget, false);
    const auto second = memory.reserve(kBudget, false);
    CHECK(first->commit(600 * unit));
    CHECK(second->commit(400 * unit));
    fill(*first, 0, first->committed(), 1);
    fill(*second, 0, second->committed(), 2);
    first->decommit(100 * unit - 1);
    CHECK_EQ(first->committed(), 100 * unit);
    CHECK_EQ(memory.bytes_in_use(), 500 * unit);
    first->decommit(200 * unit);  // more than there is
    CHECK_EQ(first->committed(), 100 * unit);
    CHECK(second->commit(900 * unit));
    fill(*second, 400 * unit, 900 * unit, 2);
    CHECK(holds(*first, 0, 100 * unit, 1));
    CHECK(holds(*second, 0, 900 * unit, 2));
    second->decommit(0);
    CHECK(first->commit(1000 * unit));
    CHECK(holds(*first, 0, 100 * unit, 1));
    fill(*first, 0, 1000 * unit, 3);
  });
}

TEST(random_growing_and_shrinking_keeps_every_range_apart) {
  with_each_memory([](SlotMemory& memory) {
    std::mt19937 random(1);
    std::vector<std::unique_ptr<SlotRange>> ranges;
    std::vector<std::byte*> bases;
    for (int i = 0; i < 5; ++i) {
      ranges.push_back(memory.reserve(kBudget, i % 2 == 0));
      bases.push_back(ranges.back()->data());
    }
    for (int step = 0; step < 400; ++step) {
      const std::size_t i = random() % ranges.size();
      SlotRange& range = *ranges[i];
      const int value = static_cast<int>(i) + 1;
      const std::size_t before = range.committed(), target = random() % (kBudget / 3);
      if (target > before) {
        if (range.commit(target)) {
          fill(range, before, range.committed(), value);
        } else {
          CHECK_EQ(range.committed(), before);
        }
      } else {
        range.decommit(target);
      }
      std::size_t sum = 0;
      for (std::size_t j = 0; j < ranges.size(); ++j) {
        CHECK(ranges[j]->data() == bases[j]);
        sum += ranges[j]->committed();
        if (step % 20 == 0) CHECK(holds(*ranges[j], 0, ranges[j]->committed(), static_cast<int>(j) + 1));
      }
      CHECK_EQ(memory.bytes_in_use(), sum);
    }
  });
}

TEST(a_forked_child_has_no_copy_and_changes_nothing) {
  with_each_memory([](SlotMemory& memory) {
    const std::size_t unit = memory.unit_bytes();
    auto range = memory.reserve(kBudget, false);
    CHECK(range->commit(10 * unit));
    fill(*range, 0, 10 * unit, 5);
    std::byte* const base = range->data();
    CHECK(not_inherited(base));
    CHECK(not_inherited(base + 9 * unit));
    CHECK(not_inherited(base + 20 * unit));
    const int status = status_in_child([&] {
      // The child's own map, at an address that the parent's range has, must survive the object's end.
      void* own = mmap(base, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      *static_cast<char*>(own) = 1;
      range.reset();
      return *static_cast<volatile char*>(own) == 1 ? 0 : 1;
    });
    CHECK_EQ(status, 0);
    CHECK(holds(*range, 0, 10 * unit, 5));
    CHECK_EQ(memory.bytes_in_use(), 10 * unit);
  });
}

TEST(more_than_was_reserved_is_refused) {
  with_each_memory([](SlotMemory& memory) {
    const auto range = memory.reserve(10 * memory.unit_bytes() - 1, false);
    CHECK_EQ(range->max_bytes(), 10 * memory.unit_bytes());
    CHECK_THROWS(range->commit(10 * memory.unit_bytes() + 1), std::invalid_argument);
    CHECK(range->commit(range->max_bytes()));
    const auto empty = memory.reserve(0, false);
    CHECK(empty->commit(0));
    empty->decommit(0);
    CHECK_THROWS(memory.reserve(std::size_t{1} << 60, false), CapacityError);
  });
}

TEST(anonymous_memory_reads_as_zero_when_it_comes_back) {
  HostMemory memory;
  const auto range = memory.reserve(kBudget, false);
  range->commit(kBudget);
  fill(*range, 0, kBudget, 9);
  range->decommit(kPage);
  range->commit(kBudget);
  CHECK(holds(*range, 0, kPage, 9));
  CHECK(holds(*range, kPage, kBudget, 0));
}

TEST(a_unit_makes_at_most_4096_of_a_budget) {
  constexpr std::size_t MiB = 1 << 20, GiB = 1 << 30;
  CHECK_EQ(FileMemory::unit_for(0), kPage);
  CHECK_EQ(FileMemory::unit_for(10'000), kPage);
  CHECK_EQ(FileMemory::unit_for(16 * MiB), kPage);
  CHECK_EQ(FileMemory::unit_for(16 * MiB + 1), 2 * kPage);
  CHECK_EQ(FileMemory::unit_for(8 * GiB), 2 * MiB);
  CHECK_EQ(FileMemory::unit_for(3000 * GiB), 64 * MiB);
}

TEST(the_budget_is_never_exceeded) {
  for (std::size_t given : {kBudget / 2, 2 * kBudget}) {  // a file smaller than the budget, one larger
    Arena arena(given, 3 * kPage);
    const auto memory = memory_over(arena, kBudget + 100);
    CHECK_EQ(memory->budget_bytes(), kBudget);
    const std::size_t limit = std::min(given, kBudget);
    const auto first = memory->reserve(2 * kBudget, false);
    const auto second = memory->reserve(2 * kBudget, false);
    CHECK(first->commit(kPage));
    CHECK(second->commit(kPage));
    while (first->commit(first->committed() + 5 * kPage) && second->commit(second->committed() + kPage)) {
    }
    CHECK(memory->bytes_in_use() <= limit);
    CHECK(memory->bytes_in_use() + 5 * kPage >= limit);
    const std::size_t before = first->committed();
    CHECK(!first->commit(2 * kBudget));
    CHECK_EQ(first->committed(), before);
    while (first->commit(first->committed() + kPage)) {
    }
    CHECK_EQ(memory->bytes_in_use(), limit);
    CHECK(!second->commit(second->committed() + 1));
    second->decommit(0);
    CHECK(first->commit(limit));
    CHECK_EQ(memory->bytes_in_use(), limit);
  }
  Arena arena(kBudget, kPage);
  const auto nothing = memory_over(arena, kPage - 1);
  CHECK(!nothing->reserve(kPage, false)->commit(1));
  CHECK_EQ(arena.num_calls, 0);
}

TEST(the_file_grows_only_when_free_units_are_used_up) {
  Arena arena(kBudget, kBudget / 4);
  const auto memory = memory_over(arena, kBudget);
  const auto range = memory->reserve(kBudget, false);
  CHECK_EQ(arena.num_calls, 0);
  CHECK(range->commit(1));
  CHECK(range->commit(kBudget / 4));
  CHECK_EQ(arena.num_calls, 1);
  range->decommit(0);
  CHECK(range->commit(kBudget / 4));
  CHECK_EQ(arena.num_calls, 1);
  CHECK(range->commit(kBudget / 4 + 1));
  CHECK_EQ(arena.num_calls, 2);
}

TEST(neighbours_in_the_file_share_one_map) {
  Arena arena(kBudget, kBudget);
  const auto memory = memory_over(arena, kBudget);
  const auto range = memory->reserve(kBudget, false);
  for (std::size_t bytes = kPage; bytes <= kBudget / 2; bytes += kPage) CHECK(range->commit(bytes));
  std::ifstream maps("/proc/self/maps");
  int num_maps = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("test_slot_memory (deleted)") != std::string::npos) ++num_maps;
  }
  CHECK_EQ(num_maps, 1);
}

TEST(a_failure_to_grow_comes_up_and_changes_nothing) {
  Arena arena(kBudget, kBudget / 4);
  const auto memory = memory_over(arena, kBudget);
  const auto range = memory->reserve(kBudget, false);
  CHECK(range->commit(kBudget / 8));
  fill(*range, 0, range->committed(), 4);
  arena.fail_with = ENOSPC;
  CHECK_THROWS(range->commit(kBudget / 2), IoError);
  CHECK_EQ(range->committed(), kBudget / 8);
  CHECK_EQ(memory->bytes_in_use(), kBudget / 8);
  CHECK(range->commit(kBudget / 4));  // what it took for the failed call is free again
  arena.fail_with = 0;
  CHECK(range->commit(kBudget / 2));
  CHECK(holds(*range, 0, kBudget / 8, 4));
}

TEST(a_file_that_cannot_be_mapped_is_an_error) {
  Arena arena(kBudget, kBudget);
  int pipe_ends[2];
  CHECK_EQ(pipe(pipe_ends), 0);
  FileMemory memory(pipe_ends[0], kBudget, [&] { return arena.grow(); });
  const auto range = memory.reserve(kBudget, false);
  CHECK_THROWS(range->commit(kPage), IoError);
  CHECK_EQ(range->committed(), 0);
  CHECK_EQ(memory.bytes_in_use(), 0);
  close(pipe_ends[0]);
  close(pipe_ends[1]);
  CHECK_THROWS(FileMemory(-1, kBudget, [&] { return arena.grow(); }), IoError);
}

TEST(contents_outlive_the_descriptor_that_was_given) {
  Arena arena(kBudget, kBudget);
  const int fd = fcntl(arena.fd, F_DUPFD_CLOEXEC, 0);
  FileMemory memory(fd, kBudget, [&] { return arena.grow(); });
  close(fd);
  const auto range = memory.reserve(kBudget, false);
  CHECK(range->commit(kBudget));
  fill(*range, 0, kBudget, 6);
  CHECK(holds(*range, 0, kBudget, 6));
}

TEST(ranges_of_several_threads_share_an_arena) {
  Arena arena(kBudget, kBudget / 8);
  const auto memory = memory_over(arena, kBudget);
  std::vector<std::thread> threads;
  for (int t = 1; t <= 4; ++t) {
    threads.emplace_back([&, t] {
      const auto range = memory->reserve(kBudget, false);
      for (int round = 0; round < 50; ++round) {
        const std::size_t target = (1 + static_cast<std::size_t>(round * t) % 20) * kPage;
        if (range->commit(target)) fill(*range, 0, target, t);
        if (range->committed() != 0 && !holds(*range, 0, kPage, t)) std::abort();
        range->decommit(target / 2);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(memory->bytes_in_use(), 0);
}

TEST_MAIN()
