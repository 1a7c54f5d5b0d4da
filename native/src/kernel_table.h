// The kernels of one instruction set, as the dispatcher in kernels.cpp sees them.
//
// Nothing here may be an inline function: three translation units with different target options include it,
// and the linker would keep one copy of each for all of them.
#pragma once

#include "mtrains/kernels.h"

namespace mtrains {

// RecordLayout with its offsets worked out.
struct RecordShape {
  WeightType dtype;
  std::uint32_t dim;
  std::size_t stride;
  std::size_t state_offset;
};

// Memory of the calling thread that an update works in.
struct UpdateScratch {
  std::size_t batch;     // unique rows taken at a time
  float* gradients;      // batch * dim, padded to a multiple of 16 floats a row
  std::uint32_t* words;  // dim, padded to a multiple of 64
};

inline constexpr std::uint32_t kSkipped = 0xffffffffu;  // kNoSlot of batch_plan.h

struct KernelTable {
  void (*pool)(const PoolTask&, const RecordShape&);
  void (*sum_rows)(const GradSource&, std::uint32_t dim, std::uint64_t begin, std::uint64_t end, float* out);
  void (*update_rows)(const UpdateTask&, const RecordShape&, const UpdateScratch&);
  void (*per_sample_weight_grad)(const WeightGradTask&, const RecordShape&);
  void (*load_rows)(const RecordShape&, const std::byte* records, const std::uint32_t* slots, std::uint64_t n,
                    float* out, std::size_t out_stride);
};

// Null where this build has no such path.
const KernelTable* portable_kernels();
const KernelTable* avx2_kernels();
const KernelTable* avx512_kernels();

}  // namespace mtrains
