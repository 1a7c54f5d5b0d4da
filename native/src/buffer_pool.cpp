#include "mtrains/buffer_pool.h"

#include <utility>

namespace mtrains {

BufferPool::BufferPool(std::size_t buffer_bytes, std::size_t max_spare)
    : buffer_bytes_(buffer_bytes), max_spare_(max_spare) {
  spare_.reserve(max_spare);
}

MemoryMap BufferPool::take() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!spare_.empty()) {
      MemoryMap buffer = std::move(spare_.back());
      spare_.pop_back();
      return buffer;
    }
  }
  return MemoryMap(buffer_bytes_, /*huge=*/false);
}

void BufferPool::give(MemoryMap buffer) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (spare_.size() < max_spare_) spare_.push_back(std::move(buffer));
}

}  // namespace mtrains
