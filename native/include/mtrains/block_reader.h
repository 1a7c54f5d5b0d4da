// Reads of 4 KiB-aligned extents with many in flight.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace mtrains {

inline constexpr std::size_t kBlockBytes = 4096;

// One extent: `size` bytes at file offset `offset` into `buffer`; all three multiples of kBlockBytes.
struct BlockRead {
  std::uint64_t offset = 0;
  std::byte* buffer = nullptr;
  std::uint32_t size = kBlockBytes;
};

// Reads extents of one file through one engine.
//
// Engines: "uring" (O_DIRECT, io_uring by the kernel header alone), "pread" (a pool of threads, O_DIRECT),
// "mmap" (a pool of threads that copy from a shared read-only map that grows with the file; for file systems
// without O_DIRECT). "auto" tries them in that order. Short reads, EINTR and EAGAIN are resumed. The file may
// grow while it is open. Thread-safe: calls of read() from several threads are serialised or independent,
// never wrong.
class BlockReader {
 public:
  // Opens its own descriptors of `path` (O_CLOEXEC). queue_depth: reads in flight, in [1, 4096]; a pool has
  // up to 64. Throws IoError if the file cannot be opened or the named engine is refused here; `why` of the
  // engines that "auto" passed over is kept in refused().
  static std::unique_ptr<BlockReader> open(const std::string& path, const std::string& engine,
                                           int queue_depth = 128);
  virtual ~BlockReader() = default;

  // Returns when every extent is in its buffer. Throws IoError naming path, offset, size and errno for the
  // failed extent that comes first in `reads` (past the end of the file: ENODATA), after all other reads have
  // finished.
  virtual void read(const std::vector<BlockRead>& reads) = 0;

  virtual const char* engine() const = 0;          // the effective engine
  virtual const std::string& refused() const = 0;  // "" or "uring: Operation not permitted; ..."
};

}  // namespace mtrains
