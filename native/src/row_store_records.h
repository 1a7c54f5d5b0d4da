// Records of slots, wherever they are.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "mtrains/row_store.h"

namespace mtrains {

inline constexpr std::size_t kDeviceRecords = 1024;  // copied from a device at a time

template <typename Visit>
void RowStore::each_record(SlotPool& pool, const std::vector<std::uint32_t>& slots, const Visit& visit) {
  if (pool.device == nullptr) {
    for (const std::uint32_t slot : slots) visit(slot, pool.record(slot));
    return;
  }
  std::vector<std::byte> copies(std::min(slots.size(), kDeviceRecords) * pool.stride);
  for (std::size_t begin = 0; begin < slots.size(); begin += kDeviceRecords) {
    const std::size_t n = std::min(slots.size() - begin, kDeviceRecords);
    pool.device->load(&slots[begin], n, copies.data());
    for (std::size_t i = 0; i < n; ++i) visit(slots[begin + i], copies.data() + i * pool.stride);
  }
}

}  // namespace mtrains
