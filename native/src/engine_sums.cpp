// Where gradients come from, and their sums by row.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "engine_tasks.h"
#include "mtrains/engine.h"
#include "mtrains/errors.h"

namespace mtrains {

// Of a mean, the gradient of a position is its bag's gradient over the bag's count: one division for all its
// positions.
void Engine::divide_by_counts(TableUpdate& update) {
  if (update.lookup == nullptr) return;
  const FeatureLookup& feature = update.lookup->features.at(update.feature);
  if (feature.mode != PoolMode::kMean) return;
  const std::size_t dim = store_->table(feature.table).record().dim;
  const std::size_t bags = feature.counts.size();
  update.divided.resize(bags * dim);
  const std::size_t tasks = num_tasks(bags, threads_.num_threads());
  threads_.run(tasks, [&](std::size_t task) {
    for (std::size_t bag = bags * task / tasks; bag < bags * (task + 1) / tasks; ++bag) {
      if (feature.counts[bag] == 0) continue;  // no position refers to it
      const float* grad = update.grad + bag * update.grad_stride;
      for (std::size_t d = 0; d < dim; ++d) update.divided[bag * dim + d] = grad[d] / feature.counts[bag];
    }
  });
  update.grad = update.divided.data();
  update.grad_stride = dim;
}

GradSource Engine::grad_source(const TableUpdate& update) const {
  GradSource source;
  source.scale = update.scale;
  if (update.lookup == nullptr) {
    source.sums = update.sums;
    return source;
  }
  const FeatureLookup& feature = update.lookup->features.at(update.feature);
  const BatchPlan& plan = feature.plan;
  source.csr = plan.csr.data();
  source.positions = plan.positions.data();
  source.bag_of_position = plan.bag_of_position.empty() ? nullptr : plan.bag_of_position.data();
  source.grad = update.grad;
  source.grad_stride = update.grad_stride;
  source.per_sample_weights = update.per_sample_weights;
  source.argmax = update.argmax;
  return source;
}

RowSums Engine::row_sums(TableUpdate update, const std::int64_t* prior_rows, const float* prior_sums,
                         std::size_t num_prior) {
  const Pass pass(*this);
  const FeatureLookup& feature = update.lookup->features.at(update.feature);
  const std::uint32_t dim = table_at(feature.table).record().dim;
  divide_by_counts(update);
  const BatchPlan& plan = feature.plan;
  const std::size_t unique = plan.num_unique();
  // The plan may be ordered by slot; the result is ordered by row.
  std::vector<std::uint32_t> order(unique);
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(),
            [&plan](std::uint32_t x, std::uint32_t y) { return plan.rows[x] < plan.rows[y]; });
  std::vector<std::uint32_t> prior_of_unique(unique, kNoSlot), place_of_unique(unique);
  std::vector<std::pair<std::uint32_t, std::uint32_t>>
      prior_places;  // (prior, place) of rows that only the prior sums have
  RowSums result;
  std::size_t prior = 0;
  const auto take_prior = [&] {
    prior_places.emplace_back(static_cast<std::uint32_t>(prior),
                              static_cast<std::uint32_t>(result.rows.size()));
    result.rows.push_back(prior_rows[prior++]);
  };
  for (const std::uint32_t u : order) {
    const auto row = static_cast<std::int64_t>(plan.rows[u]);
    while (prior < num_prior && prior_rows[prior] < row) take_prior();
    if (prior < num_prior && prior_rows[prior] == row)
      prior_of_unique[u] = static_cast<std::uint32_t>(prior++);
    place_of_unique[u] = static_cast<std::uint32_t>(result.rows.size());
    result.rows.push_back(row);
  }
  while (prior < num_prior) take_prior();
  result.sums.resize(result.rows.size() * dim);
  GradSource source = grad_source(update);
  source.scale = 1.0f;
  source.sums = num_prior > 0 ? prior_sums : nullptr;
  source.sum_of_unique = num_prior > 0 ? prior_of_unique.data() : nullptr;
  std::vector<float> sums(unique * dim);  // in the plan's order
  const std::size_t tasks = num_tasks(unique, threads_.num_threads());
  threads_.run(tasks, [&](std::size_t task) {
    const std::size_t begin = unique * task / tasks, end = unique * (task + 1) / tasks;
    sum_rows(source, dim, begin, end, sums.data());
    for (std::size_t u = begin; u < end; ++u) {
      std::memcpy(&result.sums[std::size_t{place_of_unique[u]} * dim], &sums[u * dim], dim * 4);
    }
  });
  for (const auto& [from, to] : prior_places) {
    std::memcpy(&result.sums[std::size_t{to} * dim], prior_sums + std::size_t{from} * dim, dim * 4);
  }
  return result;
}

}  // namespace mtrains
