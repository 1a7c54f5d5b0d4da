#include "mtrains/memory_map.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "mtrains/errors.h"

namespace mtrains {
namespace {
constexpr std::size_t kPage = 4096;
constexpr std::size_t kHugePage = std::size_t{2} << 20;
}  // namespace

MemoryMap::MemoryMap(std::size_t size, bool huge) : size_((size + kPage - 1) / kPage * kPage) {
  if (size_ == 0) return;
  void* data =
      mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) {
    throw CapacityError("cannot reserve " + std::to_string(size_) +
                        " bytes of address space: " + std::strerror(errno));
  }
  data_ = static_cast<std::byte*>(data);
  owner_ = getpid();
  madvise(data_, size_, MADV_DONTFORK);
  madvise(data_, size_, huge && size_ >= kHugePage ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
}

MemoryMap::~MemoryMap() {
  if (data_ != nullptr && owner_ == getpid()) munmap(data_, size_);
}

MemoryMap::MemoryMap(MemoryMap&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      owner_(other.owner_) {}

MemoryMap& MemoryMap::operator=(MemoryMap&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(owner_, other.owner_);
  return *this;
}

void MemoryMap::discard(std::size_t begin, std::size_t end) {
  begin = (begin + kPage - 1) / kPage * kPage;
  end = end / kPage * kPage;
  if (begin < end) madvise(data_ + begin, end - begin, MADV_DONTNEED);
}

}  // namespace mtrains
