// Forward: gathers rows by slot and pools them by bag; and the gradient of per-sample weights. Part of
// kernels_impl.h.
#pragma once

#include "kernel_table.h"
#include "kernels_columns.h"

namespace mtrains {
namespace {

// Rows asked for ahead of their use. Source: bench of 8 tables of 1M x 64, see kernels_update.h.
constexpr std::uint64_t kPoolPrefetch = 16;

// A row wider than one piece is pooled piece by piece over this many positions at a time, which stay in
// L1/L2.
constexpr std::uint64_t kTilePositions = 32;

struct PositionRange {
  std::uint64_t begin, end;
};

MTRAINS_INLINE PositionRange bag_positions(const std::int64_t* offsets, std::uint64_t bag,
                                           std::uint64_t begin, std::uint64_t end) {
  const std::uint64_t first = (std::uint64_t)offsets[bag];
  const std::uint64_t last = (std::uint64_t)offsets[bag + 1];
  return {first > begin ? first : begin, last < end ? last : end};
}

// The positions of bags [bag_begin, bag_end) that take part.
template <typename Task>
MTRAINS_INLINE PositionRange task_positions(const Task& task) {
  if (task.bag_begin >= task.bag_end) return {0, 0};
  const std::uint64_t first = (std::uint64_t)task.offsets[task.bag_begin];
  const std::uint64_t last = (std::uint64_t)task.offsets[task.bag_end];
  return {first > task.position_begin ? first : task.position_begin,
          last < task.position_end ? last : task.position_end};
}

template <typename Task>
MTRAINS_INLINE void prefetch_row(const Task& task, const RecordShape& shape, std::size_t row_bytes,
                                 std::uint64_t position, std::uint64_t end) {
  if (position >= end) return;
  const std::uint32_t slot = task.slot_of_position[position];
  if (slot != kSkipped) prefetch((const char*)task.records + slot * shape.stride, row_bytes);
}

template <typename Task>
MTRAINS_INLINE void prefetch_first_rows(const Task& task, const RecordShape& shape, std::size_t row_bytes,
                                        PositionRange positions) {
  for (std::uint64_t p = positions.begin; p < positions.begin + kPoolPrefetch; ++p) {
    prefetch_row(task, shape, row_bytes, p, positions.end);
  }
}

// Sum or mean of some columns of bags [bag_begin, bag_end). The piece of columns that begins at 0 comes
// first: it prefetches whole rows and counts positions.
template <typename W, bool kWeighted, std::uint32_t kBlocks>
void sum_bags(const PoolTask& task, const RecordShape& shape, Columns columns, std::uint64_t bag_begin,
              std::uint64_t bag_end, std::uint64_t prefetch_end) {
  const bool leads = columns.begin == 0;
  const std::size_t row_bytes = W::kSize * shape.dim;
  for (std::uint64_t bag = bag_begin; bag < bag_end; ++bag) {
    const PositionRange range = bag_positions(task.offsets, bag, task.position_begin, task.position_end);
    if (range.begin >= range.end && !task.first_piece && !task.last_piece) continue;
    float* out = task.out + bag * task.out_stride;
    Accumulators<kBlocks> sums;
    if (task.first_piece) {
      clear(sums);
    } else {
      load_columns(sums, out, columns);
    }
    std::uint32_t counted = 0;
    for (std::uint64_t p = range.begin; p < range.end; ++p) {
      if (leads) prefetch_row(task, shape, row_bytes, p + kPoolPrefetch, prefetch_end);
      const std::uint32_t slot = task.slot_of_position[p];
      if (slot == kSkipped) continue;
      ++counted;
      add_row<W, kWeighted>(sums, task.records + slot * shape.stride, columns,
                            kWeighted ? task.per_sample_weights[p] : 0.0f);
    }
    if (leads && task.counts)
      task.counts[bag] = (task.first_piece ? 0.0f : task.counts[bag]) + (float)counted;
    if (task.last_piece && task.mode == PoolMode::kMean && task.counts[bag] > 0) {
      const Block divisor = broadcast(task.counts[bag]);
#pragma GCC unroll 8
      for (std::uint32_t i = 0; i < kBlocks; ++i) sums.block[i] = sums.block[i] / divisor;
      sums.tail = sums.tail / divisor;
    }
    store_columns(sums, out, columns);
  }
}

// The end of a run of bags with about kTilePositions positions, or all bags if a row is one piece.
MTRAINS_INLINE std::uint64_t tile_end(const PoolTask& task, const RecordShape& shape, std::uint64_t bag) {
  if (shape.dim / kLanes <= kMaxBlocks) return task.bag_end;
  const std::uint64_t limit = (std::uint64_t)task.offsets[bag] + kTilePositions;
  ++bag;
  while (bag < task.bag_end && (std::uint64_t)task.offsets[bag + 1] <= limit) ++bag;
  return bag;
}

template <typename W, bool kWeighted>
void sum_rows_of_bags(const PoolTask& task, const RecordShape& shape) {
  const PositionRange positions = task_positions(task);
  prefetch_first_rows(task, shape, W::kSize * shape.dim, positions);
  for (std::uint64_t begin = task.bag_begin; begin < task.bag_end;) {
    const std::uint64_t end = tile_end(task, shape, begin);
    for_each_columns(shape.dim, [&](Columns columns, auto blocks) {
      sum_bags<W, kWeighted, decltype(blocks)::value>(task, shape, columns, begin, end, positions.end);
    });
    begin = end;
  }
}

// A later value takes the place only if it is greater, or the first NaN.
MTRAINS_INLINE bool exceeds(float value, float best) {
  return value > best || (value != value && best == best);
}

template <typename W>
void max_of_bags(const PoolTask& task, const RecordShape& shape) {
  const PositionRange positions = task_positions(task);
  prefetch_first_rows(task, shape, W::kSize * shape.dim, positions);
  for (std::uint64_t bag = task.bag_begin; bag < task.bag_end; ++bag) {
    const PositionRange range = bag_positions(task.offsets, bag, task.position_begin, task.position_end);
    float* out = task.out + bag * task.out_stride;
    std::int64_t* argmax = task.argmax ? task.argmax + bag * shape.dim : nullptr;
    float count = task.first_piece ? 0.0f : task.counts[bag];
    for (std::uint64_t p = range.begin; p < range.end; ++p) {
      prefetch_row(task, shape, W::kSize * shape.dim, p + kPoolPrefetch, positions.end);
      const std::uint32_t slot = task.slot_of_position[p];
      if (slot == kSkipped) continue;
      const std::byte* row = task.records + slot * shape.stride;
      for (std::uint32_t begin = 0; begin < shape.dim; begin += kLanes) {
        const std::uint32_t n = shape.dim - begin < kLanes ? shape.dim - begin : kLanes;
        float values[kLanes];
        store(values, W::load(row + W::kSize * begin, n));
        for (std::uint32_t i = 0; i < n; ++i) {
          if (count != 0 && !exceeds(values[i], out[begin + i])) continue;
          out[begin + i] = values[i];
          if (argmax) argmax[begin + i] = (std::int64_t)p;
        }
      }
      count += 1;
    }
    task.counts[bag] = count;
    if (count != 0) continue;
    for (std::uint32_t d = 0; d < shape.dim; ++d) out[d] = 0;
    for (std::uint32_t d = 0; argmax && d < shape.dim; ++d) argmax[d] = -1;
  }
}

void pool_kernel(const PoolTask& task, const RecordShape& shape) {
  with_weights(shape.dtype, [&]<typename W>() {
    if (task.mode == PoolMode::kMax) {
      max_of_bags<W>(task, shape);
    } else if (task.per_sample_weights) {
      sum_rows_of_bags<W, true>(task, shape);
    } else {
      sum_rows_of_bags<W, false>(task, shape);
    }
  });
}

template <typename W>
void dot_rows(const WeightGradTask& task, const RecordShape& shape) {
  const PositionRange positions = task_positions(task);
  prefetch_first_rows(task, shape, W::kSize * shape.dim, positions);
  const std::uint32_t tail = shape.dim % kLanes, whole = shape.dim - tail;
  for (std::uint64_t bag = task.bag_begin; bag < task.bag_end; ++bag) {
    const PositionRange range = bag_positions(task.offsets, bag, task.position_begin, task.position_end);
    const float* grad = task.grad + bag * task.grad_stride;
    for (std::uint64_t p = range.begin; p < range.end; ++p) {
      prefetch_row(task, shape, W::kSize * shape.dim, p + kPoolPrefetch, positions.end);
      const std::uint32_t slot = task.slot_of_position[p];
      if (slot == kSkipped) {
        task.out[p] = 0;
        continue;
      }
      const std::byte* row = task.records + slot * shape.stride;
      Block sums = {};
      for (std::uint32_t d = 0; d < whole; d += kLanes) {
        sums = sums + W::load(row + W::kSize * d) * load(grad + d);
      }
      if (tail) sums = sums + W::load(row + W::kSize * whole, tail) * load_some(grad + whole, tail);
      task.out[p] = sum_lanes(sums);
    }
  }
}

void weight_grad_kernel(const WeightGradTask& task, const RecordShape& shape) {
  with_weights(shape.dtype, [&]<typename W>() { dot_rows<W>(task, shape); });
}

void load_rows_kernel(const RecordShape& shape, const std::byte* records, const std::uint32_t* slots,
                      std::uint64_t n, float* out, std::size_t out_stride) {
  with_weights(shape.dtype, [&]<typename W>() {
    for (std::uint64_t u = 0; u < n; ++u) {
      if (u + kPoolPrefetch < n) {
        prefetch((const char*)records + slots[u + kPoolPrefetch] * shape.stride, W::kSize * shape.dim);
      }
      const std::byte* row = records + slots[u] * shape.stride;
      for (std::uint32_t begin = 0; begin < shape.dim; begin += kLanes) {
        const std::uint32_t size = shape.dim - begin < kLanes ? shape.dim - begin : kLanes;
        store(out + u * out_stride + begin, W::load(row + W::kSize * begin, size), size);
      }
    }
  });
}

}  // namespace
}  // namespace mtrains
