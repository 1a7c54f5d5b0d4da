// Anonymous memory that costs nothing until it is touched.
#pragma once

#include <cstddef>

namespace mtrains {

// A private anonymous mapping, zero until written, not inherited by forked children (a child that destroys
// its copy of the object unmaps nothing: the addresses are its own).
//
// Owns the mapping. `huge`: ask for huge pages (dense use); otherwise a touch costs one small page.
class MemoryMap {
 public:
  MemoryMap() = default;
  MemoryMap(std::size_t size, bool huge);  // throws CapacityError if the address space is refused
  ~MemoryMap();
  MemoryMap(MemoryMap&& other) noexcept;
  MemoryMap& operator=(MemoryMap&& other) noexcept;

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

  // Gives the whole pages inside [begin, end) back; they read as zero afterwards.
  void discard(std::size_t begin, std::size_t end);

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  int owner_ = 0;  // process
};

}  // namespace mtrains
