// How a row is cut into pieces of columns whose accumulators fit the registers. Part of kernels_impl.h.
#pragma once

#include "kernels_vector.h"

namespace mtrains {
namespace {

// Whole blocks that one piece may have: 8 vectors of accumulators, or 16 where a vector is 4 floats. Results
// do not depend on it; a build with sanitizers takes minutes with more than 2.
#if defined(__SANITIZE_ADDRESS__)
constexpr std::uint32_t kMaxBlocks = 2;
#else
constexpr std::uint32_t kMaxBlocks = kWidth == 16 ? 8 : 4;
#endif

// Columns [begin, begin + 16 * blocks + tail) of a row; tail < 16.
struct Columns {
  std::uint32_t begin;
  std::uint32_t blocks;
  std::uint32_t tail;
  std::uint32_t tail_begin() const { return begin + kLanes * blocks; }
};

// Accumulators of a piece. kBlocks is a constant so that they are registers.
template <std::uint32_t kBlocks>
struct Accumulators {
  Block block[kBlocks > 0 ? kBlocks : 1];
  Block tail;
};

template <std::uint32_t kBlocks>
MTRAINS_INLINE void clear(Accumulators<kBlocks>& sums) {
#pragma GCC unroll 8
  for (std::uint32_t i = 0; i < kBlocks; ++i) sums.block[i] = Block{};
  sums.tail = Block{};
}

template <std::uint32_t kBlocks>
MTRAINS_INLINE void load_columns(Accumulators<kBlocks>& sums, const float* row, Columns columns) {
  clear(sums);
#pragma GCC unroll 8
  for (std::uint32_t i = 0; i < kBlocks; ++i) sums.block[i] = load(row + columns.begin + kLanes * i);
  if (columns.tail) sums.tail = load_some(row + columns.tail_begin(), columns.tail);
}

template <std::uint32_t kBlocks>
MTRAINS_INLINE void store_columns(const Accumulators<kBlocks>& sums, float* row, Columns columns) {
#pragma GCC unroll 8
  for (std::uint32_t i = 0; i < kBlocks; ++i) store(row + columns.begin + kLanes * i, sums.block[i]);
  if (columns.tail) store_some(row + columns.tail_begin(), sums.tail, columns.tail);
}

// Adds a row of weights, times a factor if kWeighted.
template <typename W, bool kWeighted, std::uint32_t kBlocks>
MTRAINS_INLINE void add_row(Accumulators<kBlocks>& sums, const std::byte* row, Columns columns,
                            float factor) {
  const Block times = broadcast(factor);
  const std::byte* first = row + W::kSize * columns.begin;
#pragma GCC unroll 8
  for (std::uint32_t i = 0; i < kBlocks; ++i) {
    Block values = W::load(first + W::kSize * kLanes * i);
    if constexpr (kWeighted) values = values * times;
    sums.block[i] = sums.block[i] + values;
  }
  if (columns.tail) {
    Block values = W::load(row + W::kSize * columns.tail_begin(), columns.tail);
    if constexpr (kWeighted) values = values * times;
    sums.tail = sums.tail + values;
  }
}

// Calls function(columns, std::integral_constant-like blocks) for each piece of a row, in order.
template <std::uint32_t kBlocks>
struct Constant {
  static constexpr std::uint32_t value = kBlocks;
};

template <std::uint32_t kBlocks, typename Function>
MTRAINS_INLINE void with_blocks(Columns columns, const Function& function) {
  if (columns.blocks == kBlocks) {
    function(columns, Constant<kBlocks>{});
  } else if constexpr (kBlocks > 0) {
    with_blocks<kBlocks - 1>(columns, function);
  }
}

template <typename Function>
MTRAINS_INLINE void for_each_columns(std::uint32_t dim, const Function& function) {
  for (std::uint32_t begin = 0; begin < dim;) {
    const std::uint32_t whole = (dim - begin) / kLanes;
    const bool last = whole <= kMaxBlocks;
    const Columns columns{begin, last ? whole : kMaxBlocks, last ? (dim - begin) % kLanes : 0};
    with_blocks<kMaxBlocks>(columns, function);
    begin = columns.tail_begin() + columns.tail;
  }
}

}  // namespace
}  // namespace mtrains
