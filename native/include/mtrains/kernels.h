// Gather-and-pool, row-gradient sums and fused optimizer updates over rows in an arena of records.
//
// Bits: every operation is one correctly rounded float32 + - * / sqrt, no FMA; sums over D use 16
// lanes and one fixed tree; sums over occurrences are left folds in position order. The portable,
// AVX2 and AVX-512 paths give the same bits, for any split of the work over threads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "mtrains/record_layout.h"

namespace mtrains {

enum class PoolMode : std::uint8_t { kSum = 0, kMean = 1, kMax = 2 };
enum class Optimizer : std::uint8_t {
  kSgd = 0,
  kAdagrad = 1,            // state: sum[D]
  kRowWiseAdagrad = 2,     // state: sum[1]
  kSparseAdam = 3,         // state: exp_avg[D], exp_avg_sq[D]
  kPartialRowWiseAdam = 4  // state: exp_avg[D], exp_avg_sq[1]
};
enum class WeightDecay : std::uint8_t { kNone = 0, kL2 = 1, kDecoupled = 2 };
enum class Isa : std::uint8_t { kPortable = 0, kAvx2 = 1, kAvx512 = 2 };

// Pools bags [bag_begin, bag_end), of which only positions in [position_begin, position_end) take
// part. out[b] carries over between consecutive pieces of one bag: `first_piece` says that it holds
// nothing yet, `last_piece` that the result is to be finished (mean divided; empty bags 0).
struct PoolTask {
  RecordLayout layout;
  const std::byte* records = nullptr;               // slot s is at records + s * layout.stride()
  const std::uint32_t* slot_of_position = nullptr;  // indexed by absolute position; kNoSlot: skipped
  const std::int64_t* offsets = nullptr;            // [bags + 1], absolute positions
  std::uint64_t bag_begin = 0, bag_end = 0;
  std::uint64_t position_begin = 0, position_end = 0;
  bool first_piece = true, last_piece = true;
  PoolMode mode = PoolMode::kSum;
  const float* per_sample_weights = nullptr;  // [positions], kSum only, or null
  float* out = nullptr;                       // float32; bag b at out + b * out_stride
  std::size_t out_stride = 0;                 // floats
  std::int64_t* argmax =
      nullptr;  // kMax: [bags, D] absolute position of the first maximum, -1 empty; or null
  float* counts =
      nullptr;  // [bags] positions that are not padding, carried over like out; required for kMean and kMax.
                // REQUIRES: at most 2^24 positions a bag, which float32 counts exactly
};

// Where the gradient of a row comes from: the occurrences of a lookup, or sums made before.
struct GradSource {
  // Occurrences of unique row u: positions[csr[u] .. csr[u+1]). The gradient of an occurrence p is
  // grad + bag(p) * grad_stride, times per_sample_weights[p] if given; with argmax, column d counts only
  // where argmax[bag(p) * D + d] == p. bag(p) = bag_of_position ? bag_of_position[p] : p.
  const std::uint32_t* csr = nullptr;
  const std::uint32_t* positions = nullptr;
  const std::uint32_t* bag_of_position = nullptr;
  const float* grad = nullptr;
  std::size_t grad_stride = 0;  // floats
  const float* per_sample_weights = nullptr;
  const std::int64_t* argmax = nullptr;
  // Sums that the fold continues from (or, with csr null, is): row u at sums + sum_of_unique[u] * D
  // (sum_of_unique null: u); an entry kNoSlot has none and starts from 0.
  const float* sums = nullptr;
  const std::uint32_t* sum_of_unique = nullptr;
  float scale = 1.0f;  // multiplies the finished sum
};

// float32 sums scale * fold of unique row u at out + u * dim, for u in [unique_begin, unique_end).
void sum_rows(const GradSource& source, std::uint32_t dim, std::uint64_t unique_begin,
              std::uint64_t unique_end, float* out);

struct UpdateTask {
  RecordLayout layout;
  std::byte* records = nullptr;
  const std::uint32_t* slots = nullptr;  // [U] slot of unique row u
  const std::uint64_t* rows = nullptr;   // [U] row ids (keys of stochastic rounding)
  std::uint64_t unique_begin = 0, unique_end = 0;
  GradSource source;
  Optimizer optimizer = Optimizer::kSgd;
  WeightDecay decay = WeightDecay::kNone;
  bool maximize = false;
  // Scalars, computed in double by the caller and rounded once. lr: SGD lr, Adagrad clr, RowWiseAdagrad lr,
  // Adam lr * sqrt(1 - beta2^t) / (1 - beta1^t). decoupled decay multiplies w by decay_factor = 1 - lr * wd
  // first; l2 adds weight_decay * w to the gradient (after maximize's sign).
  float lr = 0, eps = 0, weight_decay = 0, decay_factor = 1, one_minus_beta1 = 0, one_minus_beta2 = 0;
  std::uint64_t rounding_key = 0;  // of (seed, table name); 16-bit weights only
  std::uint64_t update_count = 0;
};

void pool(const PoolTask& task);

// One optimizer step of each row, in this order of operations (g: the gradient; each operation rounds once):
//   g = maximize ? -g : g;  l2: g = g + weight_decay * w;  decoupled: w = w * decay_factor
//   SGD                 w - lr * g
//   Adagrad             s = s + g * g;  w - (lr * g) / (sqrt(s) + eps)
//   RowWiseAdagrad      s = s + lane_sum(g * g) / D;  w - (lr / (sqrt(s) + eps)) * g
//   SparseAdam          m = m + (g - m) * one_minus_beta1;  v = v + (g * g - v) * one_minus_beta2;
//                       w - lr * (m / (sqrt(v) + eps))
//   PartialRowWiseAdam  m as SparseAdam;  v = v + (lane_sum(g * g) / D - v) * one_minus_beta2;
//                       w - (lr / (sqrt(v) + eps)) * m
// 16-bit weights are rounded stochastically by rounding_words(): unbiased, representable values stay,
// infinities and NaN stay, finite values beyond the largest become the largest.
void update_rows(const UpdateTask& task);

// dot products of rows and output gradients: out[p] = sum_d row(p)[d] * grad[bag(p)][d]; 0 for padding.
struct WeightGradTask {
  RecordLayout layout;
  const std::byte* records = nullptr;
  const std::uint32_t* slot_of_position = nullptr;
  const std::int64_t* offsets = nullptr;
  std::uint64_t bag_begin = 0, bag_end = 0;
  std::uint64_t position_begin = 0, position_end = 0;
  const float* grad = nullptr;
  std::size_t grad_stride = 0;
  float* out = nullptr;  // [positions]
};
void per_sample_weight_grad(const WeightGradTask& task);

// Weights of records -> float32[n, D] at out (row stride out_stride floats), and back. store_rows rounds to
// nearest even for 16-bit types, and zeroes the padding before the state; it leaves the state alone.
void load_rows(const RecordLayout& layout, const std::byte* records, const std::uint32_t* slots,
               std::uint64_t n, float* out, std::size_t out_stride);
void store_row(const RecordLayout& layout, const float* row, std::byte* record);

// The instruction set in use: the best of this CPU, or one asked for (tests). Process-wide.
Isa isa();
Isa best_isa();
void set_isa(Isa isa);  // REQUIRES: isa <= best_isa()

}  // namespace mtrains
