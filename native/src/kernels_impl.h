// All kernels of one instruction set: the compiler's. Included by kernels_portable.cpp, kernels_avx2.cpp and
// kernels_avx512.cpp, which differ in their compile options only.
#pragma once

#include "kernels_optimizer.h"
#include "kernels_pool.h"
#include "kernels_update.h"
#include "philox_lanes.h"

namespace mtrains {
namespace {

MTRAINS_INLINE void prefetch_records(const UpdateTask& task, const RecordShape& shape, std::uint64_t begin,
                                     std::uint64_t end) {
  for (std::uint64_t u = begin; u < end; ++u) {
    prefetch((const char*)task.records + task.slots[u] * shape.stride, shape.stride);
  }
}

// Rows are taken in batches: while one is summed up, the records of the next are on their way.
template <typename W, typename Rule>
void update_rows_by(const UpdateTask& task, const RecordShape& shape, const UpdateScratch& scratch) {
  const std::size_t padded = (shape.dim + kLanes - 1) / kLanes * kLanes;
  const float decay_factor = task.decay == WeightDecay::kDecoupled ? task.decay_factor : 1.0f;
  std::uint64_t end = task.unique_begin + scratch.batch;
  end = end < task.unique_end ? end : task.unique_end;
  prefetch_records(task, shape, task.unique_begin, end);
  for (std::uint64_t begin = task.unique_begin; begin < task.unique_end;) {
    std::uint64_t next = end + scratch.batch;
    next = next < task.unique_end ? next : task.unique_end;
    prefetch_records(task, shape, end, next);
    fold(task.source, shape.dim, begin, end, scratch.gradients, padded);
    for (std::uint64_t u = begin; u < end; ++u) {
      std::byte* record = task.records + task.slots[u] * shape.stride;
      if constexpr (W::kRounds)
        fill_rounding_words(task.rounding_key, task.update_count, task.rows[u], shape.dim, scratch.words);
      const RowStep row{task,
                        shape.dim,
                        record,
                        (float*)(record + shape.state_offset),
                        scratch.gradients + (u - begin) * padded,
                        scratch.words,
                        decay_factor};
      adjust_gradient<W>(row);
      Rule::template apply<W>(row);
    }
    begin = end;
    end = next;
  }
}

template <typename W>
void update_rows_of(const UpdateTask& task, const RecordShape& shape, const UpdateScratch& scratch) {
  switch (task.optimizer) {
    case Optimizer::kSgd:
      return update_rows_by<W, Sgd>(task, shape, scratch);
    case Optimizer::kAdagrad:
      return update_rows_by<W, Adagrad>(task, shape, scratch);
    case Optimizer::kRowWiseAdagrad:
      return update_rows_by<W, RowWiseAdagrad>(task, shape, scratch);
    case Optimizer::kSparseAdam:
      return update_rows_by<W, SparseAdam>(task, shape, scratch);
    case Optimizer::kPartialRowWiseAdam:
      return update_rows_by<W, PartialRowWiseAdam>(task, shape, scratch);
  }
}

void update_rows_kernel(const UpdateTask& task, const RecordShape& shape, const UpdateScratch& scratch) {
  with_weights(shape.dtype, [&]<typename W>() { update_rows_of<W>(task, shape, scratch); });
}

constexpr KernelTable kKernels = {pool_kernel, sum_rows_kernel, update_rows_kernel, weight_grad_kernel,
                                  load_rows_kernel};

}  // namespace
}  // namespace mtrains
