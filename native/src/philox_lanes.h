// Philox4x32-10 for sixteen counters at a time. Compiled for each instruction set, like kernels_vector.h.
#pragma once

#include "counters.h"
#include "kernels_vector.h"

namespace mtrains {
namespace {

constexpr std::uint32_t kLaneNumbers[kLanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

// 32-bit products of all lanes: low and high words.
MTRAINS_INLINE void multiply_wide(VecU a, std::uint32_t factor, VecU& low, VecU& high) {
  const VecL factors = VecL{} + factor;
  const VecL low_half = VecL{} + 0xffffffffu;
  const VecL even = multiply_even((VecL)a, factors);
  const VecL odd = multiply_even((VecL)a >> 32, factors);
  low = (VecU)((even & low_half) | (odd << 32));
  high = (VecU)((even >> 32) | (odd & ~low_half));
}

// Word j of counter (low, high + i) goes to out[16 * j + i], for i in [0, 16). REQUIRES: the low 32 bits of
// high + 15 do not overflow.
MTRAINS_INLINE void philox_lanes(std::uint64_t key, std::uint64_t low, std::uint64_t high,
                                 std::uint32_t* out) {
  for (int part = 0; part < kParts; ++part) {
    VecU c0 = VecU{} + (std::uint32_t)low;
    VecU c1 = VecU{} + (std::uint32_t)(low >> 32);
    VecU c2 = *(const VecUMemory*)(kLaneNumbers + part * kWidth) + (std::uint32_t)high;
    VecU c3 = VecU{} + (std::uint32_t)(high >> 32);
    std::uint32_t k0 = (std::uint32_t)key, k1 = (std::uint32_t)(key >> 32);
    for (int round = 0; round < kPhiloxRounds; ++round) {
      VecU low0, high0, low1, high1;
      multiply_wide(c0, kPhiloxMultiplier0, low0, high0);
      multiply_wide(c2, kPhiloxMultiplier1, low1, high1);
      c0 = high1 ^ c1 ^ k0;
      c1 = low1;
      c2 = high0 ^ c3 ^ k1;
      c3 = low0;
      k0 += kPhiloxWeyl0;
      k1 += kPhiloxWeyl1;
    }
    const VecU words[4] = {c0, c1, c2, c3};
    for (int j = 0; j < 4; ++j) *(VecUMemory*)(out + kLanes * j + part * kWidth) = words[j];
  }
}

// The word that rounds column d of a row, at out[d]; `out` has room for dim padded to a multiple of 64.
//
// Sixteen counters give four vectors of sixteen columns: column d takes word (d / 16) % 4 of counter block
// (d / 64) * 16 + d % 16.
MTRAINS_INLINE void fill_rounding_words(std::uint64_t key, std::uint64_t update_count, std::uint64_t row,
                                        std::uint32_t dim, std::uint32_t* out) {
  for (std::uint32_t group = 0; group < dim; group += 4 * kLanes) {
    philox_lanes(key, row, kRoundingDomain | (update_count << kRoundingBlockBits) | (group / 4), out + group);
  }
}

}  // namespace
}  // namespace mtrains
