// Engine "mmap": copies from a shared map by a pool of threads, for file systems without O_DIRECT. A device
// error there is a SIGBUS, which nothing can turn into an error; so "auto" takes it last.
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <mutex>
#include <shared_mutex>

#include "mtrains/block_engines.h"

namespace mtrains {
namespace {

// Address space only: pages beyond the end of the file are mapped but never touched, so that a growing file
// is mapped again once a GiB.
constexpr std::uint64_t kMapStep = std::uint64_t{1} << 30;
constexpr std::uint64_t kMaxCopy = std::uint64_t{1} << 30;  // keeps a result within int

// Thread-safe.
class GrowingMap {
 public:
  GrowingMap() = default;
  GrowingMap(const GrowingMap&) = delete;
  GrowingMap& operator=(const GrowingMap&) = delete;
  ~GrowingMap() { unmap(); }

  // The file's size is asked each time: a page beyond its end is a SIGBUS.
  int copy(const BlockFile& file, const BlockRead& asked) {
    std::uint64_t end = 0;
    const int failed = file.stat_size(&end);
    if (failed != 0) return -failed;
    if (asked.offset >= end) return 0;
    const std::uint64_t size = std::min({std::uint64_t{asked.size}, end - asked.offset, kMaxCopy});
    while (true) {
      {
        const std::shared_lock lock(mutex_);
        if (asked.offset + size <= size_) {
          std::memcpy(asked.buffer, base_ + asked.offset, size);
          return static_cast<int>(size);
        }
      }
      const int refused = grow(file.fd(), end);
      if (refused != 0) return -refused;
    }
  }

 private:
  int grow(int fd, std::uint64_t end) {
    const std::unique_lock lock(mutex_);
    if (end <= size_) return 0;
    const std::uint64_t size = (end / kMapStep + 1) * kMapStep;
    void* base = ::mmap(nullptr, size, PROT_READ, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (base == MAP_FAILED) return errno;
    ::madvise(base, size, MADV_RANDOM);    // rows are scattered: read-ahead would only cost memory
    ::madvise(base, size, MADV_DONTFORK);  // a child never reads through it
    unmap();
    base_ = static_cast<const std::byte*>(base);
    size_ = size;
    return 0;
  }

  void unmap() {
    if (base_ != nullptr) ::munmap(const_cast<std::byte*>(base_), size_);
  }

  std::shared_mutex mutex_;
  const std::byte* base_ = nullptr;  // GUARDED_BY(mutex_)
  std::uint64_t size_ = 0;           // GUARDED_BY(mutex_)
};

}  // namespace

std::unique_ptr<BlockEngine> open_mmap_engine(const std::string& path, int queue_depth,
                                              const ReadFilter& filter) {
  const auto map = std::make_shared<GrowingMap>();
  const auto raw_read = [map](const BlockFile& file, const BlockRead& asked) {
    return map->copy(file, asked);
  };
  return make_pooled_engine(BlockFile::open_buffered(path, filter), "mmap", queue_depth, raw_read);
}

}  // namespace mtrains
