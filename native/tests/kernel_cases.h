// Random lookups and tables for the tests of the kernels.
#pragma once

#include <cstring>
#include <random>
#include <vector>

#include "mtrains/batch_plan.h"
#include "mtrains/kernels.h"
#include "mtrains/row_init.h"

namespace mtrains::cases {

inline const std::vector<std::uint32_t>& dims() {
  static const std::vector<std::uint32_t> all = {1, 2, 3, 7, 16, 64, 130, 300};
  return all;
}

inline const std::vector<WeightType>& weight_types() {
  static const std::vector<WeightType> all = {WeightType::kFloat32, WeightType::kFloat16,
                                              WeightType::kBFloat16};
  return all;
}

inline std::vector<Isa> isas() {
  std::vector<Isa> all;
  for (int i = 0; i <= static_cast<int>(best_isa()); ++i) all.push_back(static_cast<Isa>(i));
  return all;
}

inline std::uint32_t state_floats(Optimizer optimizer, std::uint32_t dim) {
  switch (optimizer) {
    case Optimizer::kSgd:
      return 0;
    case Optimizer::kAdagrad:
      return dim;
    case Optimizer::kRowWiseAdagrad:
      return 1;
    case Optimizer::kSparseAdam:
      return 2 * dim;
    case Optimizer::kPartialRowWiseAdam:
      return dim + 1;
  }
  return 0;
}

// A table whose records start 4 bytes off any larger alignment, and a ragged lookup of it: empty bags,
// padding, repeated rows, and slots that differ from rows.
struct Case {
  static constexpr std::uint64_t kRows = 37, kBags = 23;
  static constexpr std::int64_t kPadding = 5;
  RecordLayout layout;
  std::vector<std::byte> storage;
  std::vector<std::int64_t> indices, offsets;
  BatchPlan plan;
  std::vector<float> sample_weights, grad;
  std::size_t grad_stride;

  Case(RecordLayout layout, unsigned seed) : layout(layout), storage(kRows * layout.stride() + 4) {
    std::mt19937 random(seed);
    offsets.push_back(0);
    for (std::uint64_t b = 0; b < kBags; ++b) {
      for (unsigned n = b % 5 == 3 ? 0 : random() % 9; n > 0; --n) {
        indices.push_back(static_cast<std::int64_t>(random() % (random() % kRows + 1)));
        sample_weights.push_back(static_cast<float>(random() % 1000) / 313 - 1);
      }
      offsets.push_back(static_cast<std::int64_t>(indices.size()));
    }
    plan.build({indices.data(), indices.size(), true}, kRows, kPadding);
    plan.set_bags(offsets.data(), kBags);
    for (std::uint64_t row : plan.rows)
      plan.slots.push_back(static_cast<std::uint32_t>((row * 11 + 3) % kRows));
    plan.order_by_slot();
    plan.scatter_slots();
    RowInit init{InitKind::kNormal, 0.25f, 1.5f, seed};
    init.initial_state = 0.125f;
    for (std::uint64_t s = 0; s < kRows; ++s) init.fill(layout, s, records() + s * layout.stride());
    grad_stride = layout.dim + 3;
    grad.resize(kBags * grad_stride);
    for (float& g : grad) g = static_cast<float>(random()) / 1e9f - 2;
  }

  std::byte* records() { return storage.data() + 4; }

  PoolTask pool_task(PoolMode mode, std::vector<float>& out, std::vector<std::int64_t>& argmax,
                     std::vector<float>& counts) {
    PoolTask task;
    task.layout = layout;
    task.records = records();
    task.slot_of_position = plan.slot_of_position.data();
    task.offsets = offsets.data();
    task.bag_end = kBags;
    task.position_end = indices.size();
    task.mode = mode;
    task.out_stride = layout.dim + 1;
    out.assign(kBags * task.out_stride, -99);
    argmax.assign(kBags * layout.dim, -99);
    counts.assign(kBags, -99);
    task.out = out.data();
    task.counts = counts.data();
    if (mode == PoolMode::kMax) task.argmax = argmax.data();
    return task;
  }

  GradSource source() {
    GradSource source;
    source.csr = plan.csr.data();
    source.positions = plan.positions.data();
    source.bag_of_position = plan.bag_of_position.data();
    source.grad = grad.data();
    source.grad_stride = grad_stride;
    return source;
  }

  UpdateTask update_task(Optimizer optimizer) {
    UpdateTask task;
    task.layout = layout;
    task.records = records();
    task.slots = plan.slots.data();
    task.rows = plan.rows.data();
    task.unique_end = plan.num_unique();
    task.source = source();
    task.optimizer = optimizer;
    task.lr = 0.05f;
    task.eps = 1e-8f;
    task.weight_decay = 0.01f;
    task.decay_factor = 0.9995f;
    task.one_minus_beta1 = 0.1f;
    task.one_minus_beta2 = 0.001f;
    task.rounding_key = 0x123456789abcdefu;
    task.update_count = 7;
    return task;
  }
};

// Equal bit by bit: NaN equals itself, 0 and -0 differ.
inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), 4 * a.size()) == 0;
}

}  // namespace mtrains::cases
