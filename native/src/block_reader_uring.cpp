// Engine "uring": O_DIRECT through io_uring by its system calls.
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>

#include "mtrains/block_engines.h"

namespace mtrains {
namespace {

unsigned load_acquire(unsigned* shared) { return std::atomic_ref(*shared).load(std::memory_order_acquire); }
void store_release(unsigned* shared, unsigned value) {
  std::atomic_ref(*shared).store(value, std::memory_order_release);
}

// One mapping shared with the kernel.
class RingMap {
 public:
  RingMap(int ring_fd, std::size_t size, std::uint64_t offset) : size_(size) {
    base_ = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring_fd,
                   static_cast<off_t>(offset));
    if (base_ == MAP_FAILED) throw EngineRefused{errno, errno_text("mmap of the io_uring queues", errno)};
  }
  RingMap(const RingMap&) = delete;
  RingMap& operator=(const RingMap&) = delete;
  ~RingMap() { ::munmap(base_, size_); }

  template <typename T>
  T* at(std::size_t offset) const {
    return reinterpret_cast<T*>(static_cast<std::byte*>(base_) + offset);
  }

 private:
  std::size_t size_;
  void* base_;
};

// Descriptor made by io_uring_setup, which sets close-on-exec.
class RingDescriptor {
 public:
  RingDescriptor(unsigned num_entries, io_uring_params* params) {
    fd_ = static_cast<int>(::syscall(__NR_io_uring_setup, num_entries, params));
    if (fd_ < 0) throw EngineRefused{errno, errno_text("io_uring_setup", errno)};
  }
  RingDescriptor(const RingDescriptor&) = delete;
  RingDescriptor& operator=(const RingDescriptor&) = delete;
  ~RingDescriptor() { ::close(fd_); }
  int get() const { return fd_; }

 private:
  int fd_;
};

// The two queues: reads go in by push(), come back by pop(). Not thread-safe.
class Ring {
 public:
  explicit Ring(unsigned num_entries)
      : fd_(num_entries, &params_),
        queues_(fd_.get(), checked_queue_bytes(params_), IORING_OFF_SQ_RING),
        entries_(fd_.get(), params_.sq_entries * sizeof(io_uring_sqe), IORING_OFF_SQES),
        sq_head_(queues_.at<unsigned>(params_.sq_off.head)),
        sq_tail_(queues_.at<unsigned>(params_.sq_off.tail)),
        cq_head_(queues_.at<unsigned>(params_.cq_off.head)),
        cq_tail_(queues_.at<unsigned>(params_.cq_off.tail)),
        completions_(queues_.at<io_uring_cqe>(params_.cq_off.cqes)) {
    auto* order = queues_.at<unsigned>(params_.sq_off.array);
    for (unsigned i = 0; i < params_.sq_entries; ++i) order[i] = i;
  }

  // REQUIRES: fewer than num_entries pushed and not yet popped.
  void push(int fd, const BlockRead& read, std::uint32_t tag) {
    const unsigned tail = *sq_tail_;
    io_uring_sqe& entry = *this->entry(tail);
    std::memset(&entry, 0, sizeof entry);
    entry.opcode = IORING_OP_READ;
    entry.fd = fd;
    entry.off = read.offset;
    entry.addr = reinterpret_cast<std::uintptr_t>(read.buffer);
    entry.len = read.size;
    entry.user_data = tag;
    store_release(sq_tail_, tail + 1);
  }

  // Submits what was pushed and waits for a completion (waiting for several at once saved no measurable CPU
  // time). Returns 0 or an errno; after an error or a partial submission it has not waited.
  int enter() {
    const long entered = ::syscall(__NR_io_uring_enter, fd_.get(), num_unsubmitted(), 1U,
                                   IORING_ENTER_GETEVENTS, nullptr, std::size_t{0});
    return entered < 0 ? errno : 0;
  }

  unsigned num_unsubmitted() const { return *sq_tail_ - load_acquire(sq_head_); }

  // Takes back the newest read that the kernel has not seen. REQUIRES: num_unsubmitted() > 0, no enter() in
  // progress.
  std::uint32_t withdraw() {
    const unsigned tail = *sq_tail_ - 1;
    store_release(sq_tail_, tail);
    return static_cast<std::uint32_t>(entry(tail)->user_data);
  }

  bool pop(std::uint32_t* tag, int* result) {
    const unsigned head = *cq_head_;
    if (head == load_acquire(cq_tail_)) return false;
    const io_uring_cqe& completion = completions_[head & (params_.cq_entries - 1)];
    *tag = static_cast<std::uint32_t>(completion.user_data);
    *result = completion.res;
    store_release(cq_head_, head + 1);
    return true;
  }

 private:
  // IORING_OP_READ is as old as kernel 5.6, where one map holds both queues and no completion is dropped.
  static std::size_t checked_queue_bytes(const io_uring_params& params) {
    constexpr unsigned kNeeded = IORING_FEAT_SINGLE_MMAP | IORING_FEAT_NODROP | IORING_FEAT_RW_CUR_POS;
    if ((params.features & kNeeded) != kNeeded) {
      throw EngineRefused{EOPNOTSUPP, "io_uring_setup: the kernel is older than 5.6"};
    }
    return std::max(params.sq_off.array + params.sq_entries * sizeof(unsigned),
                    params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe));
  }

  io_uring_sqe* entry(unsigned position) const {
    return entries_.at<io_uring_sqe>((position & (params_.sq_entries - 1)) * sizeof(io_uring_sqe));
  }

  io_uring_params params_{};
  RingDescriptor fd_;
  RingMap queues_;
  RingMap entries_;
  unsigned* sq_head_;  // written by the kernel
  unsigned* sq_tail_;
  unsigned* cq_head_;
  unsigned* cq_tail_;  // written by the kernel
  io_uring_cqe* completions_;
};

class UringEngine final : public BlockEngine {
 public:
  UringEngine(BlockFile file, int queue_depth)
      : BlockEngine(std::move(file), "uring"),
        ring_(static_cast<unsigned>(queue_depth)),
        slots_(static_cast<std::size_t>(queue_depth)) {
    for (std::uint32_t slot = 0; slot < slots_.size(); ++slot) free_.push_back(slot);
  }

 private:
  FirstFailure read_all(const std::vector<BlockRead>& reads) override {
    const std::lock_guard lock(mutex_);
    FirstFailure failure;
    std::size_t next = 0;
    while (true) {
      for (; next < reads.size() && !free_.empty(); ++next) {
        const std::uint32_t slot = free_.back();
        free_.pop_back();
        slots_[slot] = PendingRead(next, reads[next]);
        ring_.push(file().fd(), reads[next], slot);
      }
      if (free_.size() == slots_.size()) return failure;
      submit_and_wait(&failure);
      take_completions(&failure);
    }
  }

  // No return while the kernel may still write to a buffer: after an error that is not transient, what was
  // not submitted fails and the rest is waited for.
  void submit_and_wait(FirstFailure* failure) {
    const int code = ring_.enter();
    if (code == 0) {
      num_refusals_ = 0;
      return;
    }
    if (code == EINTR) return;
    const bool transient = (code == EAGAIN || code == EBUSY) && ++num_refusals_ <= kMaxRefusals;
    if (!transient) {
      while (ring_.num_unsubmitted() > 0) {
        const std::uint32_t slot = ring_.withdraw();
        failure->note(slots_[slot].index(), code, errno_text("io_uring_enter", code));
        free_.push_back(slot);
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  void take_completions(FirstFailure* failure) {
    std::uint32_t slot = 0;
    int result = 0;
    while (ring_.pop(&slot, &result)) {
      PendingRead& pending = slots_[slot];
      const PendingRead::Next next = pending.advance(file(), result);
      if (next == PendingRead::Next::kResume) {
        ring_.push(file().fd(), pending.rest(), slot);
        continue;
      }
      if (next == PendingRead::Next::kFailed) failure->note(pending);
      free_.push_back(slot);
    }
  }

  static constexpr int kMaxRefusals =
      1000;  // a second of EAGAIN or EBUSY: the kernel is out of memory for requests

  std::mutex mutex_;                 // one call of read() at a time owns everything below
  Ring ring_;                        // GUARDED_BY(mutex_)
  std::vector<PendingRead> slots_;   // the reads in flight. GUARDED_BY(mutex_)
  std::vector<std::uint32_t> free_;  // slots not in flight. GUARDED_BY(mutex_)
  int num_refusals_ = 0;             // of io_uring_enter, in a row. GUARDED_BY(mutex_)
};

}  // namespace

std::unique_ptr<BlockEngine> open_uring_engine(const std::string& path, int queue_depth,
                                               const ReadFilter& filter) {
  return std::make_unique<UringEngine>(BlockFile::open_direct(path, filter), queue_depth);
}

}  // namespace mtrains
