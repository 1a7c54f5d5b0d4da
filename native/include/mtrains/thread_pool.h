// Native worker threads for the embedding kernels.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace mtrains {

// Runs numbered tasks on a fixed number of threads, the caller being one of them.
//
// Results never depend on the number of threads: tasks write disjoint memory. Tasks must not throw
// and must not call run() of the same pool. run() may be called by one thread at a time. Idle workers spin
// for some 20 us, since the passes of a step follow each other closely, then sleep.
class ThreadPool {
 public:
  explicit ThreadPool(int num_threads);
  ~ThreadPool();  // joins
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // REQUIRES: num_threads >= 1, no run() in progress.
  void resize(int num_threads);
  int num_threads() const { return num_threads_; }

  // Calls task(i) once for each i in [0, num_tasks), in any order, and returns when all have returned.
  // Floating-point state (MXCSR) is set to round-to-nearest without FTZ and DAZ around each task.
  void run(std::size_t num_tasks, const std::function<void(std::size_t)>& task);

 private:
  void start(int num_workers);
  void stop();
  void work();
  void drain();
  static void spin_until(const std::atomic<bool>& flag);

  int num_threads_ = 1;
  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable done_;
  // Hints for who spins before it takes the mutex; written with mutex_ held, the truth is below.
  std::atomic<bool> has_tasks_{false};
  std::atomic<bool> is_finished_{true};
  // GUARDED_BY(mutex_)
  const std::function<void(std::size_t)>* task_ = nullptr;
  std::size_t num_tasks_ = 0;
  std::size_t next_task_ = 0;
  std::size_t unfinished_ = 0;
  bool stopping_ = false;
};

}  // namespace mtrains
