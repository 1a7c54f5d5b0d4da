// The engines that read with a pool of threads. Not ThreadPool: these threads sleep in the kernel, are many
// more than the cores, and serve several callers at once.
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "mtrains/block_engines.h"

namespace mtrains {
namespace {

constexpr int kMaxReaders = 64;  // as many in flight reach the limit of the reference machine's device

class PooledEngine final : public BlockEngine {
 public:
  PooledEngine(BlockFile file, const char* engine, int num_readers, RawRead raw_read)
      : BlockEngine(std::move(file), engine), raw_read_(std::move(raw_read)) {
    try {
      // The calling thread of read() is one reader.
      for (int i = 1; i < num_readers; ++i) threads_.emplace_back([this] { work(); });
    } catch (const std::system_error& error) {
      stop();
      throw EngineRefused{error.code().value(), errno_text("creating a thread", error.code().value())};
    }
  }

  ~PooledEngine() override { stop(); }

 private:
  // One call of read(); lives on its caller's stack until nobody can reach it.
  struct Batch {
    explicit Batch(const std::vector<BlockRead>& reads) : reads(reads) {}

    const std::vector<BlockRead>& reads;
    std::atomic<std::size_t> next{0};
    int num_working = 0;              // workers inside. GUARDED_BY(mutex_)
    FirstFailure failure;             // GUARDED_BY(mutex_)
    std::condition_variable drained;  // num_working is 0
  };

  FirstFailure read_all(const std::vector<BlockRead>& reads) override {
    Batch batch(reads);
    const std::size_t num_wanted = std::min(reads.size() - 1, threads_.size());
    if (num_wanted > 0) {
      {
        const std::lock_guard lock(mutex_);
        batches_.push_back(&batch);
      }
      for (std::size_t i = 0; i < num_wanted; ++i) work_arrived_.notify_one();
    }
    read_extents(batch);
    std::unique_lock lock(mutex_);
    std::erase(batches_, &batch);
    batch.drained.wait(lock, [&] { return batch.num_working == 0; });
    return std::move(batch.failure);
  }

  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      work_arrived_.wait(lock, [this] { return stopping_ || !batches_.empty(); });
      if (stopping_) return;
      Batch& batch = *batches_.front();
      ++batch.num_working;
      lock.unlock();
      read_extents(batch);
      lock.lock();
      std::erase(batches_, &batch);  // it has no extent left to hand out
      if (--batch.num_working == 0) batch.drained.notify_one();
    }
  }

  void read_extents(Batch& batch) {
    for (std::size_t i = batch.next++; i < batch.reads.size(); i = batch.next++) {
      PendingRead pending(i, batch.reads[i]);
      PendingRead::Next next = PendingRead::Next::kResume;
      while (next == PendingRead::Next::kResume)
        next = pending.advance(file(), raw_read_(file(), pending.rest()));
      if (next == PendingRead::Next::kDone) continue;
      const std::lock_guard lock(mutex_);
      batch.failure.note(pending);
    }
  }

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    work_arrived_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  RawRead raw_read_;
  std::mutex mutex_;
  std::condition_variable work_arrived_;
  std::deque<Batch*> batches_;  // calls with extents to hand out, oldest first. GUARDED_BY(mutex_)
  bool stopping_ = false;       // GUARDED_BY(mutex_)
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<BlockEngine> make_pooled_engine(BlockFile file, const char* engine, int queue_depth,
                                                RawRead raw_read) {
  return std::make_unique<PooledEngine>(std::move(file), engine, std::min(queue_depth, kMaxReaders),
                                        std::move(raw_read));
}

}  // namespace mtrains
