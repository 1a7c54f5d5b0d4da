// Large buffers of one size that are used again.
#pragma once

#include <cstddef>
#include <mutex>
#include <vector>

#include "mtrains/memory_map.h"

namespace mtrains {

// Mapping new memory and touching it first costs more than what is then copied there: a quarter of the CPU
// time of writing the log. Thread-safe.
class BufferPool {
 public:
  // max_spare: buffers that are kept while nobody uses them.
  BufferPool(std::size_t buffer_bytes, std::size_t max_spare);

  MemoryMap take();  // contents are arbitrary; throws CapacityError
  void give(MemoryMap buffer);

 private:
  const std::size_t buffer_bytes_;
  const std::size_t max_spare_;
  std::mutex mutex_;
  std::vector<MemoryMap> spare_;  // GUARDED_BY(mutex_)
};

}  // namespace mtrains
