#include <cstddef>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "mtrains/buffer_pool.h"

using mtrains::BufferPool;
using mtrains::MemoryMap;

TEST(a_buffer_that_was_given_back_is_used_again) {
  BufferPool pool(8192, 1);
  MemoryMap first = pool.take();
  CHECK(first.size() == 8192);
  std::byte* const data = first.data();
  pool.give(std::move(first));
  CHECK(pool.take().data() == data);
}

TEST(buffers_in_use_are_apart) {
  BufferPool pool(4096, 4);
  const MemoryMap first = pool.take(), second = pool.take();
  CHECK(first.data() != second.data());
}

TEST(threads_take_and_give) {
  BufferPool pool(4096, 2);
  std::vector<std::thread> threads;
  for (int number = 0; number < 4; ++number) {
    threads.emplace_back([&pool] {
      for (int i = 0; i < 200; ++i) {
        MemoryMap buffer = pool.take();
        buffer.data()[0] = std::byte{1};
        pool.give(std::move(buffer));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_MAIN()
