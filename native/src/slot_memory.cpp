#include "mtrains/slot_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "mtrains/errors.h"
#include "mtrains/memory_map.h"

namespace mtrains {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kMaxUnit = std::size_t{64} << 20;
constexpr std::size_t kMaxUnits = 4096;
constexpr std::size_t kHugePage = std::size_t{2} << 20;

std::size_t round_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

void check_commit(std::size_t bytes, std::size_t max_bytes) {
  if (bytes > max_bytes) {
    throw std::invalid_argument("cannot commit " + std::to_string(bytes) + " bytes of a range of " +
                                std::to_string(max_bytes));
  }
}

}  // namespace

class HostMemory::Range : public SlotRange {
 public:
  Range(HostMemory* memory, std::size_t max_bytes, bool huge) : memory_(memory), map_(max_bytes, huge) {
    data_ = map_.data();
    max_bytes_ = map_.size();
  }
  ~Range() override { account(0); }

  bool commit(std::size_t bytes) override {
    check_commit(bytes, max_bytes_);
    account(std::max(committed_, round_up(bytes, kPage)));
    return true;
  }

  void decommit(std::size_t bytes) override {
    const std::size_t kept = round_up(bytes, kPage);
    if (kept >= committed_) return;
    map_.discard(kept, committed_);
    account(kept);
  }

 private:
  void account(std::size_t committed) {
    memory_->bytes_in_use_ += committed - committed_;  // modulo 2^64 where it shrinks
    committed_ = committed;
  }

  HostMemory* memory_;
  MemoryMap map_;
};

std::unique_ptr<SlotRange> HostMemory::reserve(std::size_t max_bytes, bool huge) {
  return std::make_unique<Range>(this, max_bytes, huge);
}

class FileMemory::Range : public SlotRange {
 public:
  Range(FileMemory* memory, std::size_t max_bytes, bool huge)
      : memory_(memory), huge_(huge && memory->unit_bytes_ >= kHugePage), owner_(getpid()) {
    max_bytes_ = round_up(max_bytes, memory->unit_bytes_);
    if (max_bytes_ != 0) data_ = hide(nullptr, max_bytes_);
  }

  ~Range() override {
    if (data_ == nullptr || owner_ != getpid()) return;
    munmap(data_, max_bytes_);
    give_back(0);
  }

  bool commit(std::size_t bytes) override {
    check_commit(bytes, max_bytes_);
    const std::size_t unit = memory_->unit_bytes_;
    if (bytes <= committed_) return true;
    const std::size_t num_units = (bytes + unit - 1) / unit;
    const std::size_t before = units_.size();
    if (!take(num_units)) return false;
    try {
      for (std::size_t i = before; i < num_units;) i += map_run(i);
    } catch (...) {
      give_back(committed_ / unit);
      throw;
    }
    return true;
  }

  void decommit(std::size_t bytes) override {
    const std::size_t kept = round_up(bytes, memory_->unit_bytes_);
    if (kept >= committed_) return;
    hide(data_ + kept, committed_ - kept);
    give_back(kept / memory_->unit_bytes_);
  }

 private:
  // Addresses that cannot be used and cost nothing. `at` nullptr: anywhere.
  static std::byte* hide(std::byte* at, std::size_t bytes) {
    void* data = mmap(at, bytes, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (at != nullptr ? MAP_FIXED : 0), -1, 0);
    if (data == MAP_FAILED) {
      throw CapacityError("cannot reserve " + std::to_string(bytes) +
                          " bytes of address space: " + std::strerror(errno));
    }
    madvise(data, bytes, MADV_DONTFORK);
    return static_cast<std::byte*>(data);
  }

  bool take(std::size_t num_units) {
    const std::size_t before = units_.size();
    const std::lock_guard lock(memory_->mutex_);
    const auto undo = [&] {
      memory_->free_.insert(units_.begin() + static_cast<std::ptrdiff_t>(before), units_.end());
      units_.resize(before);
    };
    try {
      while (units_.size() < num_units) {
        const std::uint64_t unit = memory_->take(units_.empty() ? kNone : units_.back());
        if (unit == kNone) {
          undo();
          return false;
        }
        units_.push_back(unit);
      }
    } catch (...) {
      undo();
      throw;
    }
    return true;
  }

  // Maps unit `first` and those after it that follow in the file too; returns how many.
  std::size_t map_run(std::size_t first) {
    const std::size_t unit = memory_->unit_bytes_;
    std::size_t count = 1;
    while (first + count < units_.size() && units_[first + count] == units_[first] + count * unit) ++count;
    std::byte* at = data_ + first * unit;
    const std::size_t bytes = count * unit;
    if (mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memory_->fd_,
             static_cast<off_t>(units_[first])) == MAP_FAILED) {
      const int code = errno;
      throw IoError(code, "cannot map " + std::to_string(bytes) + " bytes of the arena at offset " +
                              std::to_string(units_[first]));
    }
    madvise(at, bytes, MADV_DONTFORK);
    if (huge_) madvise(at, bytes, MADV_HUGEPAGE);
    committed_ = (first + count) * unit;
    memory_->bytes_in_use_ += bytes;
    return count;
  }

  // Gives the units from `kept` on back, mapped or not.
  void give_back(std::size_t kept) {
    const std::lock_guard lock(memory_->mutex_);
    memory_->free_.insert(units_.begin() + static_cast<std::ptrdiff_t>(kept), units_.end());
    units_.resize(kept);
    const std::size_t mapped = std::min(committed_, kept * memory_->unit_bytes_);
    memory_->bytes_in_use_ -= committed_ - mapped;
    committed_ = mapped;
  }

  FileMemory* memory_;
  bool huge_;
  int owner_;                         // process
  std::vector<std::uint64_t> units_;  // file offsets, in order of addresses
};

FileMemory::FileMemory(int fd, std::size_t budget_bytes, Grow grow)
    : unit_bytes_(unit_for(budget_bytes)), max_units_(budget_bytes / unit_bytes_), grow_(std::move(grow)) {
  fd_ = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (fd_ < 0) {
    const int code = errno;
    throw IoError(code, "cannot duplicate the descriptor of an arena");
  }
}

FileMemory::~FileMemory() { close(fd_); }

std::size_t FileMemory::unit_for(std::size_t budget_bytes) {
  const std::size_t unit = std::bit_ceil((budget_bytes + kMaxUnits - 1) / kMaxUnits);
  return std::clamp(unit, kPage, kMaxUnit);
}

std::unique_ptr<SlotRange> FileMemory::reserve(std::size_t max_bytes, bool huge) {
  return std::make_unique<Range>(this, max_bytes, huge);
}

std::uint64_t FileMemory::take(std::uint64_t previous) {
  while (free_.empty()) {
    if (!grow()) return kNone;
  }
  auto found = previous == kNone ? free_.end() : free_.find(previous + unit_bytes_);
  if (found == free_.end()) found = free_.begin();
  const std::uint64_t unit = *found;
  free_.erase(found);
  return unit;
}

bool FileMemory::grow() {
  if (num_units_ == max_units_) return false;
  const std::optional<FileExtent> extent = grow_();
  if (!extent) return false;
  if (extent->offset % kPage != 0 || extent->length % kPage != 0) {
    throw std::invalid_argument("an extent of an arena must be whole pages");
  }
  const std::size_t count = std::min<std::size_t>(extent->length / unit_bytes_, max_units_ - num_units_);
  for (std::size_t i = 0; i < count; ++i) free_.insert(extent->offset + i * unit_bytes_);
  num_units_ += count;
  return true;
}

}  // namespace mtrains
