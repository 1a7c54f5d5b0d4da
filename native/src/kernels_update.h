// Row gradients and the fused optimizer pass over rows. Part of kernels_impl.h.
#pragma once

#include "kernel_table.h"
#include "kernels_columns.h"

namespace mtrains {
namespace {

// Gradient rows asked for ahead of their use, in occurrences.
constexpr std::uint32_t kGradPrefetch = 8;

// What the fold of unique row u continues from, or null: nothing, it starts from 0.
MTRAINS_INLINE const float* fold_start(const GradSource& source, std::uint32_t dim, std::uint64_t u) {
  if (!source.sums) return nullptr;
  if (!source.sum_of_unique) return source.sums + u * dim;
  const std::uint32_t sum = source.sum_of_unique[u];
  return sum == kSkipped ? nullptr : source.sums + std::size_t{sum} * dim;
}

MTRAINS_INLINE const float* grad_of(const GradSource& source, std::uint32_t position) {
  const std::size_t bag = source.bag_of_position ? source.bag_of_position[position] : position;
  return source.grad + bag * source.grad_stride;
}

// Sums of some columns for unique rows [begin, end) to out + (u - begin) * out_stride.
template <bool kWeighted, std::uint32_t kBlocks>
void fold_columns(const GradSource& source, std::uint32_t dim, Columns columns, std::uint64_t begin,
                  std::uint64_t end, float* out, std::size_t out_stride) {
  const std::size_t piece_bytes = 4 * std::size_t{kLanes * kBlocks + columns.tail};
  const std::uint32_t last = source.csr ? source.csr[end] : 0;
  for (std::uint64_t u = begin; u < end; ++u, out += out_stride) {
    Accumulators<kBlocks> sums;
    const float* start = fold_start(source, dim, u);
    if (start) {
      load_columns(sums, start, columns);
    } else {
      clear(sums);
    }
    const std::uint32_t first = source.csr ? source.csr[u] : 0, stop = source.csr ? source.csr[u + 1] : 0;
    for (std::uint32_t i = first; i < stop; ++i) {
      if (i + kGradPrefetch < last) {
        prefetch(grad_of(source, source.positions[i + kGradPrefetch]) + columns.begin, piece_bytes);
      }
      const std::uint32_t position = source.positions[i];
      add_row<Float32, kWeighted>(sums, (const std::byte*)grad_of(source, position), columns,
                                  kWeighted ? source.per_sample_weights[position] : 0.0f);
    }
    if (source.scale != 1.0f) {
      const Block scale = broadcast(source.scale);
#pragma GCC unroll 8
      for (std::uint32_t i = 0; i < kBlocks; ++i) sums.block[i] = sums.block[i] * scale;
      sums.tail = sums.tail * scale;
    }
    store_columns(sums, out, columns);
  }
}

// The same for max pooling, where an occurrence counts only in the columns that it won.
void fold_maxima(const GradSource& source, std::uint32_t dim, std::uint64_t begin, std::uint64_t end,
                 float* out, std::size_t out_stride) {
  for (std::uint64_t u = begin; u < end; ++u, out += out_stride) {
    const float* start = fold_start(source, dim, u);
    for (std::uint32_t d = 0; d < dim; ++d) out[d] = start ? start[d] : 0.0f;
    for (std::uint32_t i = source.csr[u]; i < source.csr[u + 1]; ++i) {
      const std::uint32_t position = source.positions[i];
      const std::size_t bag = source.bag_of_position ? source.bag_of_position[position] : position;
      const float* grad = source.grad + bag * source.grad_stride;
      const std::int64_t* winner = source.argmax + bag * dim;
      const float factor = source.per_sample_weights ? source.per_sample_weights[position] : 1.0f;
      for (std::uint32_t d = 0; d < dim; ++d) {
        if (winner[d] == (std::int64_t)position) out[d] = out[d] + grad[d] * factor;
      }
    }
    for (std::uint32_t d = 0; d < dim && source.scale != 1.0f; ++d) out[d] = out[d] * source.scale;
  }
}

[[gnu::noinline]] void fold(const GradSource& source, std::uint32_t dim, std::uint64_t begin,
                            std::uint64_t end, float* out, std::size_t out_stride) {
  if (source.csr && source.argmax) return fold_maxima(source, dim, begin, end, out, out_stride);
  for_each_columns(dim, [&](Columns columns, auto blocks) {
    constexpr std::uint32_t kBlocks = decltype(blocks)::value;
    if (source.csr && source.per_sample_weights) {
      fold_columns<true, kBlocks>(source, dim, columns, begin, end, out, out_stride);
    } else {
      fold_columns<false, kBlocks>(source, dim, columns, begin, end, out, out_stride);
    }
  });
}

void sum_rows_kernel(const GradSource& source, std::uint32_t dim, std::uint64_t begin, std::uint64_t end,
                     float* out) {
  fold(source, dim, begin, end, out + begin * dim, dim);
}

}  // namespace
}  // namespace mtrains
