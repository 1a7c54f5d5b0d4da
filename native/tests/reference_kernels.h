// What the kernels compute, one float at a time and without regard to speed: the oracle of their tests.
#pragma once

#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "mtrains/batch_plan.h"
#include "mtrains/kernels.h"
#include "mtrains/row_init.h"

namespace mtrains::reference {

inline float widen(WeightType dtype, std::uint16_t half) {
  if (dtype == WeightType::kBFloat16) return std::bit_cast<float>(std::uint32_t{half} << 16);
  const int exponent = (half >> 10) & 31, fraction = half & 1023;
  const float sign = half & 0x8000 ? -1.0f : 1.0f;
  if (exponent == 31) return fraction ? std::bit_cast<float>(0x7fc00000u) : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(fraction), -24);
  return sign * std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
}

// Stochastic rounding by real arithmetic: the value in units of its last place, plus a random fraction, cut.
inline std::uint16_t round(WeightType dtype, float value, std::uint32_t word) {
  const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const bool bfloat = dtype == WeightType::kBFloat16;
  const std::uint16_t infinity = bfloat ? 0x7f80 : 0x7c00;
  if (value == 0) return sign;
  if (std::isinf(value)) return sign | infinity;
  if (std::isnan(value)) {
    return bfloat ? static_cast<std::uint16_t>((std::bit_cast<std::uint32_t>(value) >> 16) | 0x40)
                  : sign | 0x7e00;
  }
  const int significand_bits = bfloat ? 8 : 11, min_exponent = bfloat ? -126 : -14;
  const int word_bits_normal = 24 - significand_bits;
  int exponent = 0;
  const double magnitude = std::fabs(static_cast<double>(value));
  std::frexp(magnitude, &exponent);
  exponent = std::max(exponent - 1, min_exponent);
  const double units = std::ldexp(magnitude, significand_bits - 1 - exponent);
  // Bits that are cut off from a 24-bit significand, at most 31 (a bfloat16 subnormal has float's spacing).
  int float_exponent = 0;
  std::frexp(magnitude, &float_exponent);
  float_exponent = std::max(float_exponent - 1, -126);
  const int bits = std::min(word_bits_normal + (exponent - float_exponent), 31);
  const double fraction = std::floor((units - std::floor(units)) * std::ldexp(1.0, bits));
  const double random = bits == 0 ? 0 : static_cast<double>(word & ((1u << bits) - 1));
  double rounded = std::floor(units) + (fraction + random >= std::ldexp(1.0, bits) ? 1 : 0);
  std::uint32_t result = static_cast<std::uint32_t>(rounded);  // subnormal bits, or with the implicit bit
  const int biased = exponent - min_exponent;                  // 0 for subnormals and the lowest binade
  result += static_cast<std::uint32_t>(biased) << (significand_bits - 1);
  if (result >= infinity) result = infinity - 1u;
  return static_cast<std::uint16_t>(sign | result);
}

inline float weight(const RecordLayout& layout, const std::byte* record, std::uint32_t column) {
  if (layout.dtype == WeightType::kFloat32) {
    float value;
    std::memcpy(&value, record + 4 * column, 4);
    return value;
  }
  std::uint16_t half;
  std::memcpy(&half, record + 2 * column, 2);
  return widen(layout.dtype, half);
}

inline void set_weight(const RecordLayout& layout, std::byte* record, std::uint32_t column, float value,
                       std::uint32_t word) {
  if (layout.dtype == WeightType::kFloat32) {
    std::memcpy(record + 4 * column, &value, 4);
    return;
  }
  const std::uint16_t half = round(layout.dtype, value, word);
  std::memcpy(record + 2 * column, &half, 2);
}

inline float lane_sum(const std::vector<float>& terms) {
  float lane[16] = {};
  for (std::size_t d = 0; d < terms.size(); ++d) lane[d % 16] = lane[d % 16] + terms[d];
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lane[i] = lane[i] + lane[i + half];
  }
  return lane[0];
}

// The whole bag at once: REQUIRES a task of one piece.
inline void pool(const PoolTask& task) {
  const std::uint32_t dim = task.layout.dim;
  for (std::uint64_t b = task.bag_begin; b < task.bag_end; ++b) {
    for (std::uint32_t d = 0; d < dim; ++d) {
      float result = 0;
      int count = 0;
      std::int64_t winner = -1;
      for (std::int64_t p = task.offsets[b]; p < task.offsets[b + 1]; ++p) {
        if (task.slot_of_position[p] == kNoSlot) continue;
        float value = weight(task.layout, task.records + task.slot_of_position[p] * task.layout.stride(), d);
        if (task.mode == PoolMode::kMax) {
          const bool wins = winner < 0 || value > result || (std::isnan(value) && !std::isnan(result));
          if (wins) result = value, winner = p;
        } else {
          if (task.per_sample_weights) value = value * task.per_sample_weights[p];
          result = result + value;
        }
        ++count;
      }
      if (task.mode == PoolMode::kMean && count > 0) result = result / static_cast<float>(count);
      task.out[b * task.out_stride + d] = result;
      if (task.argmax) task.argmax[b * dim + d] = winner;
      if (task.counts) task.counts[b] = static_cast<float>(count);
    }
  }
}

inline float row_gradient(const GradSource& source, std::uint32_t dim, std::uint64_t u, std::uint32_t d) {
  float sum = 0;
  if (source.sums) {
    const std::uint32_t index =
        source.sum_of_unique ? source.sum_of_unique[u] : static_cast<std::uint32_t>(u);
    if (index != kNoSlot) sum = source.sums[std::size_t{index} * dim + d];
  }
  for (std::uint32_t i = source.csr ? source.csr[u] : 0; source.csr && i < source.csr[u + 1]; ++i) {
    const std::uint32_t p = source.positions[i];
    const std::uint32_t bag = source.bag_of_position ? source.bag_of_position[p] : p;
    if (source.argmax && source.argmax[std::size_t{bag} * dim + d] != p) continue;
    float g = source.grad[bag * source.grad_stride + d];
    if (source.per_sample_weights) g = g * source.per_sample_weights[p];
    sum = sum + g;
  }
  return sum * source.scale;
}

inline void update_row(const UpdateTask& task, std::uint64_t u) {
  const RecordLayout& layout = task.layout;
  const std::uint32_t dim = layout.dim;
  std::byte* record = task.records + task.slots[u] * layout.stride();
  std::vector<float> state(layout.state_floats), g(dim), squares(dim);
  if (!state.empty()) std::memcpy(state.data(), record + layout.state_offset(), 4 * state.size());
  std::vector<std::uint32_t> words(dim);
  rounding_words(task.rounding_key, task.update_count, task.rows[u], dim, words.data());
  for (std::uint32_t d = 0; d < dim; ++d) {
    g[d] = row_gradient(task.source, dim, u, d);
    if (task.maximize) g[d] = -g[d];
    if (task.decay == WeightDecay::kL2) g[d] = g[d] + task.weight_decay * weight(layout, record, d);
    squares[d] = g[d] * g[d];
  }
  const float mean_square = lane_sum(squares) / static_cast<float>(dim);
  float rate = 0;  // of the row-wise rules
  if (task.optimizer == Optimizer::kRowWiseAdagrad) {
    state[0] = state[0] + mean_square;
    rate = task.lr / (std::sqrt(state[0]) + task.eps);
  } else if (task.optimizer == Optimizer::kPartialRowWiseAdam) {
    state[dim] = state[dim] + (mean_square - state[dim]) * task.one_minus_beta2;
    rate = task.lr / (std::sqrt(state[dim]) + task.eps);
  }
  for (std::uint32_t d = 0; d < dim; ++d) {
    float w = weight(layout, record, d);
    if (task.decay == WeightDecay::kDecoupled) w = w * task.decay_factor;
    switch (task.optimizer) {
      case Optimizer::kSgd:
        w = w - task.lr * g[d];
        break;
      case Optimizer::kAdagrad:
        state[d] = state[d] + squares[d];
        w = w - (task.lr * g[d]) / (std::sqrt(state[d]) + task.eps);
        break;
      case Optimizer::kRowWiseAdagrad:
        w = w - rate * g[d];
        break;
      case Optimizer::kSparseAdam:
        state[d] = state[d] + (g[d] - state[d]) * task.one_minus_beta1;
        state[dim + d] = state[dim + d] + (squares[d] - state[dim + d]) * task.one_minus_beta2;
        w = w - task.lr * (state[d] / (std::sqrt(state[dim + d]) + task.eps));
        break;
      case Optimizer::kPartialRowWiseAdam:
        state[d] = state[d] + (g[d] - state[d]) * task.one_minus_beta1;
        w = w - rate * state[d];
        break;
    }
    set_weight(layout, record, d, w, words[d]);
  }
  if (!state.empty()) std::memcpy(record + layout.state_offset(), state.data(), 4 * state.size());
}

}  // namespace mtrains::reference
