#include "mtrains/thread_pool.h"

#include <chrono>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "float_mode.h"

namespace mtrains {

ThreadPool::ThreadPool(int num_threads) { resize(num_threads); }

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::resize(int num_threads) {
  if (num_threads == num_threads_) return;
  stop();
  num_threads_ = num_threads;
  start(num_threads - 1);
}

void ThreadPool::run(std::size_t num_tasks, const std::function<void(std::size_t)>& task) {
  const FloatMode mode;
  if (num_tasks <= 1 || workers_.empty()) {
    for (std::size_t i = 0; i < num_tasks; ++i) task(i);
    return;
  }
  std::unique_lock lock(mutex_);
  task_ = &task;
  num_tasks_ = num_tasks;
  next_task_ = 0;
  unfinished_ = num_tasks;
  is_finished_.store(false, std::memory_order_relaxed);
  has_tasks_.store(true, std::memory_order_relaxed);
  lock.unlock();
  wake_.notify_all();
  drain();
  spin_until(is_finished_);
  lock.lock();
  done_.wait(lock, [this] { return unfinished_ == 0; });
  task_ = nullptr;
}

// Takes tasks until none is left.
void ThreadPool::drain() {
  std::unique_lock lock(mutex_);
  while (next_task_ < num_tasks_) {
    const std::size_t i = next_task_++;
    if (next_task_ == num_tasks_) has_tasks_.store(false, std::memory_order_relaxed);
    const std::function<void(std::size_t)>* task = task_;
    lock.unlock();
    (*task)(i);
    lock.lock();
    if (--unfinished_ > 0) continue;
    is_finished_.store(true, std::memory_order_relaxed);
    done_.notify_one();
  }
}

void ThreadPool::work() {
  const FloatMode mode;
  while (true) {
    spin_until(has_tasks_);
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [this] { return stopping_ || next_task_ < num_tasks_; });
    if (stopping_) return;
    lock.unlock();
    drain();
  }
}

void ThreadPool::spin_until(const std::atomic<bool>& flag) {
  constexpr auto kSpinTime = std::chrono::microseconds(20);
  const auto deadline = std::chrono::steady_clock::now() + kSpinTime;
  while (!flag.load(std::memory_order_relaxed) && std::chrono::steady_clock::now() < deadline) {
#if defined(__SSE2__)
    _mm_pause();
#endif
  }
}

void ThreadPool::start(int num_workers) {
  stopping_ = false;
  for (int i = 0; i < num_workers; ++i) workers_.emplace_back([this] { work(); });
}

void ThreadPool::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
  workers_.clear();
}

}  // namespace mtrains
