#include <atomic>
#include <numeric>

#include "check.h"
#include "mtrains/thread_pool.h"

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

using namespace mtrains;

TEST(each_task_runs_once) {
  for (int num_threads : {1, 2, 5}) {
    ThreadPool pool(num_threads);
    CHECK_EQ(pool.num_threads(), num_threads);
    for (std::size_t num_tasks : {0u, 1u, 2u, 100u}) {
      for (int round = 0; round < 50; ++round) {
        std::vector<int> calls(num_tasks);  // plain ints: two calls of one task would be a data race
        pool.run(num_tasks, [&](std::size_t i) { ++calls[i]; });
        CHECK(calls == std::vector<int>(num_tasks, 1));
      }
    }
  }
}

TEST(one_task_or_one_thread_runs_on_the_caller) {
  const std::thread::id caller = std::this_thread::get_id();
  ThreadPool two(2), one(1);
  two.run(1, [&](std::size_t) { CHECK(std::this_thread::get_id() == caller); });
  one.run(5, [&](std::size_t) { CHECK(std::this_thread::get_id() == caller); });
}

TEST(resize) {
  ThreadPool pool(1);
  for (int num_threads : {3, 1, 2, 2, 4}) {
    pool.resize(num_threads);
    CHECK_EQ(pool.num_threads(), num_threads);
    std::atomic<std::size_t> sum{0};
    pool.run(1000, [&](std::size_t i) { sum += i; });
    CHECK_EQ(sum.load(), 499500);
  }
}

// All threads take part: a task waits until the others are running too.
TEST(tasks_run_at_the_same_time) {
  ThreadPool pool(3);
  std::atomic<int> running{0};
  pool.run(3, [&](std::size_t) {
    ++running;
    while (running < 3) std::this_thread::yield();
  });
  CHECK_EQ(running.load(), 3);
}

#if defined(__SSE__)
TEST(tasks_see_the_default_float_mode) {
  ThreadPool pool(2);
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | 0x8040);
  std::atomic<int> flushing{0};
  for (std::size_t num_tasks : {1u, 8u}) {
    pool.run(num_tasks, [&](std::size_t) { flushing += (_mm_getcsr() & 0x8040) != 0; });
  }
  const unsigned after = _mm_getcsr();
  _mm_setcsr(before);
  CHECK_EQ(flushing.load(), 0);
  CHECK_EQ(after & 0x8040u, 0x8040u);
}
#endif

TEST_MAIN()
