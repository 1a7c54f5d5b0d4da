// Where the slots of a tier are: ranges of memory that grow and shrink without ever moving.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>

namespace mtrains {

// One range. Its address stays for life, so pointers to slots do. Not inherited by forked children: one that
// destroys its copy of the object changes nothing. Not thread-safe.
class SlotRange {
 public:
  virtual ~SlotRange() = default;
  SlotRange(const SlotRange&) = delete;
  SlotRange& operator=(const SlotRange&) = delete;

  std::byte* data() const { return data_; }
  std::size_t max_bytes() const { return max_bytes_; }
  std::size_t committed() const { return committed_; }  // whole units: data()[0, committed()) may be used

  // Makes [0, bytes) usable; what is new holds anything. false: the tier has no free memory, nothing changed.
  // REQUIRES: bytes <= max_bytes(). Throws IoError or CapacityError if the memory cannot be had though the
  // budget allows it; committed() says what is usable then.
  virtual bool commit(std::size_t bytes) = 0;
  // Gives the whole units beyond `bytes` back to the tier.
  virtual void decommit(std::size_t bytes) = 0;

 protected:
  SlotRange() = default;
  std::byte* data_ = nullptr;
  std::size_t max_bytes_ = 0;
  std::size_t committed_ = 0;
};

// The memory of one tier, shared by ranges of any strides. Outlives its ranges. reserve, commit and decommit
// of different ranges may run in different threads.
class SlotMemory {
 public:
  virtual ~SlotMemory() = default;

  // Address space for a range that can grow to `max_bytes`; nothing is committed. `huge`: ask for huge pages.
  // Throws CapacityError if the address space is refused.
  virtual std::unique_ptr<SlotRange> reserve(std::size_t max_bytes, bool huge) = 0;
  virtual std::size_t unit_bytes() const = 0;  // a range is committed in units of so much
  std::size_t bytes_in_use() const { return bytes_in_use_.load(std::memory_order_relaxed); }

 protected:
  std::atomic<std::size_t> bytes_in_use_{0};  // the sum of committed()
};

// Anonymous memory, zero until written. It has no budget of its own: commit always succeeds and costs nothing
// until the memory is touched.
class HostMemory : public SlotMemory {
 public:
  std::unique_ptr<SlotRange> reserve(std::size_t max_bytes, bool huge) override;
  std::size_t unit_bytes() const override { return 4096; }

 private:
  class Range;
};

// A part of a file, both whole pages.
struct FileExtent {
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
};

// Units of a file, mapped shared into the ranges that need them: an arena on byte-addressable memory.
//
// What a range gives back is kept for others and never given back to the file. A unit is a power of two such
// that a budget makes at most 4,096 of them, which bounds the kernel's maps (65,530 a process): 4 KiB to 64
// MiB.
class FileMemory : public SlotMemory {
 public:
  // The next extent of the file, allocated on the device already (else a store to it is SIGBUS) and never
  // given before; nothing: there are no more. Called with the arena locked; may throw.
  using Grow = std::function<std::optional<FileExtent>()>;

  // `fd` is duplicated. At most budget_bytes / unit_bytes() units are ever taken.
  FileMemory(int fd, std::size_t budget_bytes, Grow grow);  // throws IoError
  ~FileMemory() override;
  FileMemory(const FileMemory&) = delete;
  FileMemory& operator=(const FileMemory&) = delete;

  static std::size_t unit_for(std::size_t budget_bytes);
  std::unique_ptr<SlotRange> reserve(std::size_t max_bytes, bool huge) override;
  std::size_t unit_bytes() const override { return unit_bytes_; }
  std::size_t budget_bytes() const { return max_units_ * unit_bytes_; }

 private:
  class Range;
  static constexpr std::uint64_t kNone = ~std::uint64_t{0};

  // A free unit, that after `previous` if it is free, so that neighbours share a map; kNone if there is none.
  std::uint64_t take(std::uint64_t previous);  // REQUIRES: mutex_
  bool grow();                                 // REQUIRES: mutex_

  const std::size_t unit_bytes_;
  const std::size_t max_units_;
  const Grow grow_;
  int fd_ = -1;
  std::mutex mutex_;
  std::set<std::uint64_t> free_;  // GUARDED_BY(mutex_): file offsets of units
  std::size_t num_units_ = 0;     // GUARDED_BY(mutex_): taken from the file so far
};

}  // namespace mtrains
