// A 128-bit hash of what a lookup is given.
#pragma once

#include <cstdint>

#include "mtrains/batch_plan.h"
#include "mtrains/ticket.h"

namespace mtrains {

// Two lanes of folded 64 x 64-bit products. int32 and int64 of equal values hash alike. Not for adversaries.
class LookupHash {
 public:
  void add(const IndexSpan& values) {
    if (values.is_int64) {
      add_all(static_cast<const std::int64_t*>(values.data), values.size);
    } else {
      add_all(static_cast<const std::int32_t*>(values.data), values.size);
    }
  }
  LookupDigest digest() const { return {low_, high_}; }

 private:
  template <typename Value>
  void add_all(const Value* values, std::uint64_t n) {
    std::uint64_t low = fold(low_ ^ n, kLow), high = fold(high_ ^ n, kHigh);
    for (std::uint64_t i = 0; i < n; ++i) {
      const auto value = static_cast<std::uint64_t>(std::int64_t{values[i]});
      low = fold(low ^ value, kLow);
      high = fold(high + value, kHigh);
    }
    low_ = low, high_ = high;
  }
  static std::uint64_t fold(std::uint64_t x, std::uint64_t y) {
    __extension__ using Wide = unsigned __int128;
    const Wide product = Wide{x} * y;
    return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64) ^ y;
  }

  static constexpr std::uint64_t kLow = 0x9e3779b97f4a7c15u, kHigh = 0xd1b54a32d192ed03u;
  std::uint64_t low_ = 0x8c5f1b3a9d7e2461u, high_ = 0x243f6a8885a308d3u;
};

}  // namespace mtrains
