// One optimizer step of one row, given its gradient. Part of kernels_impl.h.
#pragma once

#include "kernel_table.h"
#include "kernels_vector.h"

namespace mtrains {
namespace {

// One row in the middle of its update. `gradient` may be changed.
struct RowStep {
  const UpdateTask& task;
  std::uint32_t dim;
  std::byte* weights;
  float* state;
  float* gradient;
  const std::uint32_t* words;  // of stochastic rounding; 16-bit weights only
  float decay_factor;          // 1 unless the decay is decoupled
};

// Calls step(column, n) for each block of at most 16 columns.
template <typename Step>
MTRAINS_INLINE void for_each_block(std::uint32_t dim, const Step& step) {
  std::uint32_t d = 0;
  for (; d + kLanes <= dim; d += kLanes) step(d, (std::uint32_t)kLanes);
  if (d < dim) step(d, dim - d);
}

// w = decay(w) - change(column, n), rounded to the weight type once.
template <typename W, typename Change>
MTRAINS_INLINE void change_weights(const RowStep& row, const Change& change) {
  const Block decay = broadcast(row.decay_factor);
  for_each_block(row.dim, [&](std::uint32_t d, std::uint32_t n) {
    std::byte* p = row.weights + W::kSize * d;
    const Block w = W::load(p, n) * decay;
    W::store(p, w - change(d, n), n, row.words + d);
  });
}

// The mean over D of the squared gradient.
MTRAINS_INLINE float mean_square(const RowStep& row) {
  Block sums = {};
  for_each_block(row.dim, [&](std::uint32_t d, std::uint32_t n) {
    const Block g = load(row.gradient + d, n);
    sums = sums + g * g;
  });
  return sum_lanes(sums) / (float)row.dim;
}

MTRAINS_INLINE float scalar_sqrt(float x) {
  VecF v = {};
  v[0] = x;
  return vector_sqrt(v)[0];
}

// state += (value - state) * rate: the moving average of Adam, in the order of torch.
MTRAINS_INLINE Block move_average(float* state, const Block& value, float rate, std::uint32_t n) {
  const Block old = load(state, n);
  const Block moved = old + (value - old) * broadcast(rate);
  store(state, moved, n);
  return moved;
}

struct Sgd {
  template <typename W>
  MTRAINS_INLINE static void apply(const RowStep& row) {
    const Block lr = broadcast(row.task.lr);
    change_weights<W>(row, [&](std::uint32_t d, std::uint32_t n) { return lr * load(row.gradient + d, n); });
  }
};

struct Adagrad {
  template <typename W>
  MTRAINS_INLINE static void apply(const RowStep& row) {
    const Block lr = broadcast(row.task.lr), eps = broadcast(row.task.eps);
    change_weights<W>(row, [&](std::uint32_t d, std::uint32_t n) {
      const Block g = load(row.gradient + d, n);
      const Block sum = load(row.state + d, n) + g * g;
      store(row.state + d, sum, n);
      return (lr * g) / (square_root(sum) + eps);
    });
  }
};

struct RowWiseAdagrad {
  template <typename W>
  MTRAINS_INLINE static void apply(const RowStep& row) {
    const float sum = row.state[0] + mean_square(row);
    row.state[0] = sum;
    const Block rate = broadcast(row.task.lr / (scalar_sqrt(sum) + row.task.eps));
    change_weights<W>(row,
                      [&](std::uint32_t d, std::uint32_t n) { return rate * load(row.gradient + d, n); });
  }
};

struct SparseAdam {
  template <typename W>
  MTRAINS_INLINE static void apply(const RowStep& row) {
    const UpdateTask& task = row.task;
    const Block lr = broadcast(task.lr), eps = broadcast(task.eps);
    change_weights<W>(row, [&](std::uint32_t d, std::uint32_t n) {
      const Block g = load(row.gradient + d, n);
      const Block average = move_average(row.state + d, g, task.one_minus_beta1, n);
      const Block square = move_average(row.state + row.dim + d, g * g, task.one_minus_beta2, n);
      return lr * (average / (square_root(square) + eps));
    });
  }
};

struct PartialRowWiseAdam {
  template <typename W>
  MTRAINS_INLINE static void apply(const RowStep& row) {
    const UpdateTask& task = row.task;
    float& square = row.state[row.dim];
    square = square + (mean_square(row) - square) * task.one_minus_beta2;
    const Block rate = broadcast(task.lr / (scalar_sqrt(square) + task.eps));
    change_weights<W>(row, [&](std::uint32_t d, std::uint32_t n) {
      return rate * move_average(row.state + d, load(row.gradient + d, n), task.one_minus_beta1, n);
    });
  }
};

// The sign of maximize and the l2 decay, which belong to the gradient.
template <typename W>
MTRAINS_INLINE void adjust_gradient(const RowStep& row) {
  const bool l2 = row.task.decay == WeightDecay::kL2;
  if (!l2 && !row.task.maximize) return;
  const Block weight_decay = broadcast(row.task.weight_decay);
  for_each_block(row.dim, [&](std::uint32_t d, std::uint32_t n) {
    Block g = load(row.gradient + d, n);
    if (row.task.maximize) g = negate(g);
    if (l2) g = g + weight_decay * W::load(row.weights + W::kSize * d, n);
    store(row.gradient + d, g, n);
  });
}

}  // namespace
}  // namespace mtrains
