#include "mtrains/thread_pool.h"

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
  lock.unlock();
  wake_.notify_all();
  drain();
  lock.lock();
  done_.wait(lock, [this] { return unfinished_ == 0; });
  task_ = nullptr;
}

// Takes tasks until none is left.
void ThreadPool::drain() {
  std::unique_lock lock(mutex_);
  while (next_task_ < num_tasks_) {
    const std::size_t i = next_task_++;
    const std::function<void(std::size_t)>* task = task_;
    lock.unlock();
    (*task)(i);
    lock.lock();
    if (--unfinished_ == 0) done_.notify_one();
  }
}

void ThreadPool::work() {
  const FloatMode mode;
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stopping_ || next_task_ < num_tasks_; });
    if (stopping_) return;
    lock.unlock();
    drain();
    lock.lock();
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
