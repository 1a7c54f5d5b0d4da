#include "mtrains/kernels.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "float_mode.h"
#include "half.h"
#include "kernel_table.h"

namespace mtrains {
namespace {

const KernelTable* table_of(Isa isa) {
  switch (isa) {
    case Isa::kAvx512:
      return avx512_kernels();
    case Isa::kAvx2:
      return avx2_kernels();
    case Isa::kPortable:
      break;
  }
  return portable_kernels();
}

std::atomic<Isa>& current_isa() {
  static std::atomic<Isa> current{best_isa()};
  return current;
}

const KernelTable& kernels() { return *table_of(current_isa().load(std::memory_order_relaxed)); }

RecordShape shape_of(const RecordLayout& layout) {
  return {layout.dtype, layout.dim, layout.stride(), layout.state_offset()};
}

// Room for the gradients of a batch of rows; about 16 KiB, so that they stay in the L1 cache.
struct UpdateMemory {
  std::vector<float> gradients;
  std::vector<std::uint32_t> words;

  UpdateScratch of(std::uint32_t dim) {
    constexpr std::size_t kMaxBatch = 16, kMaxFloats = 4096;
    const std::size_t padded = (std::size_t{dim} + 15) / 16 * 16;
    const std::size_t batch = std::clamp<std::size_t>(kMaxFloats / padded, 1, kMaxBatch);
    if (gradients.size() < batch * padded) gradients.resize(batch * padded);
    if (words.size() < padded + 64) words.resize(padded + 64);
    return {batch, gradients.data(), words.data()};
  }
};

}  // namespace

Isa best_isa() {
#if defined(__x86_64__) || defined(__i386__)
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  if (avx512 && avx512_kernels()) return Isa::kAvx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c") && avx2_kernels()) return Isa::kAvx2;
#endif
  return Isa::kPortable;
}

Isa isa() { return current_isa().load(std::memory_order_relaxed); }

void set_isa(Isa isa) { current_isa().store(isa, std::memory_order_relaxed); }

void pool(const PoolTask& task) {
  const FloatMode mode;
  kernels().pool(task, shape_of(task.layout));
}

void sum_rows(const GradSource& source, std::uint32_t dim, std::uint64_t unique_begin,
              std::uint64_t unique_end, float* out) {
  const FloatMode mode;
  kernels().sum_rows(source, dim, unique_begin, unique_end, out);
}

void update_rows(const UpdateTask& task) {
  static thread_local UpdateMemory memory;
  const FloatMode mode;
  kernels().update_rows(task, shape_of(task.layout), memory.of(task.layout.dim));
}

void per_sample_weight_grad(const WeightGradTask& task) {
  const FloatMode mode;
  kernels().per_sample_weight_grad(task, shape_of(task.layout));
}

void load_rows(const RecordLayout& layout, const std::byte* records, const std::uint32_t* slots,
               std::uint64_t n, float* out, std::size_t out_stride) {
  const FloatMode mode;
  kernels().load_rows(shape_of(layout), records, slots, n, out, out_stride);
}

void store_row(const RecordLayout& layout, const float* row, std::byte* record) {
  const std::size_t weight_bytes = weight_size(layout.dtype) * layout.dim;
  if (layout.dtype == WeightType::kFloat32) {
    std::memcpy(record, row, weight_bytes);
    return;
  }
  for (std::uint32_t d = 0; d < layout.dim; ++d) {
    const std::uint16_t bits =
        layout.dtype == WeightType::kFloat16 ? round_to_float16(row[d]) : round_to_bfloat16(row[d]);
    std::memcpy(record + 2 * std::size_t{d}, &bits, 2);
  }
  std::memset(record + weight_bytes, 0, layout.state_offset() - weight_bytes);
}

}  // namespace mtrains
