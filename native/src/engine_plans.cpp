// The rows of a plan: finding them again, in pieces where they do not fit together; gradients of
// per_sample_weights.
#include <algorithm>

#include "engine_tasks.h"
#include "mtrains/engine.h"
#include "mtrains/errors.h"

namespace mtrains {

bool Engine::bring(Table& table, const std::uint64_t* rows, std::size_t n, std::uint32_t* slots,
                   const std::vector<std::uint32_t>& missing, Bring why) {
  std::vector<std::uint32_t> found;
  if (why == Bring::kAccess && !table.resident && store_->hears_accesses(table)) {
    for (std::size_t i = 0, m = 0; i < n; ++i) {
      if (m < missing.size() && missing[m] == i) {
        ++m;
      } else {
        found.push_back(slots[i]);
      }
    }
  }
  while (!store_->bring(table, rows, slots, missing, why)) {
    if (!unpin_latest()) return false;
  }
  if (why == Bring::kAccess) {
    store_->accessed(table, found.data(), found.size());
    store_->count_hits(table, n - missing.size());
  }
  return true;
}

bool Engine::bring_found(FeatureLookup& feature, const std::vector<std::uint32_t>& missing, Bring why) {
  const Stopwatch watch(times_.move_seconds);
  Table& table = store_->table(feature.table);
  BatchPlan& plan = feature.plan;
  return bring(table, plan.rows.data(), plan.num_unique(), plan.slots.data(), missing, why);
}

bool Engine::bring_all(FeatureLookup& feature, Bring why) {
  const Stopwatch watch(times_.move_seconds);
  return locate(store_->table(feature.table), feature.plan.rows.data(), feature.plan.num_unique(),
                feature.plan.slots.data(), why);
}

bool Engine::locate(Table& table, const std::uint64_t* rows, std::size_t n, std::uint32_t* slots, Bring why) {
  std::vector<std::uint32_t> missing;
  store_->find(table, rows, n, slots, missing);
  return bring(table, rows, n, slots, missing, why);
}

void Engine::each_piece(FeatureLookup& feature,
                        const std::function<void(const std::uint32_t*, std::uint64_t, std::uint64_t)>& run) {
  Table& table = store_->table(feature.table);
  const BatchPlan& plan = feature.plan;
  std::vector<std::uint64_t> row_of_position(plan.num_positions, kNoKey);
  for (std::uint64_t u = 0; u < plan.num_unique(); ++u) {
    for (std::uint32_t i = plan.csr[u]; i < plan.csr[u + 1]; ++i)
      row_of_position[plan.positions[i]] = plan.rows[u];
  }
  std::vector<std::uint32_t> slot_of_position(plan.num_positions, kNoSlot);
  std::vector<std::uint64_t> rows;
  std::vector<std::uint32_t> slots;
  std::uint64_t capacity = store_->pass_capacity(table);
  for (std::uint64_t begin = 0; begin < plan.num_positions;) {
    const std::uint64_t end = begin + std::min(capacity, plan.num_positions - begin);
    rows.clear();
    for (std::uint64_t p = begin; p < end; ++p) {
      if (row_of_position[p] != kNoKey) rows.push_back(row_of_position[p]);
    }
    std::sort(rows.begin(), rows.end());
    rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
    slots.resize(rows.size());
    store_->next_clock();
    if (!locate(table, rows.data(), rows.size(), slots.data(), Bring::kAgain)) {
      // Slots of other strides could not be taken over whole; a smaller piece does.
      if (capacity == 1)
        throw CapacityError("table '" + table.name + "': no slot could be freed in the compute tier");
      capacity = std::max<std::uint64_t>(1, capacity / 2);
      continue;
    }
    for (std::uint64_t p = begin; p < end; ++p) {
      if (row_of_position[p] == kNoKey) continue;
      const auto at = std::lower_bound(rows.begin(), rows.end(), row_of_position[p]) - rows.begin();
      slot_of_position[p] = slots[static_cast<std::size_t>(at)];
    }
    ++store_->counters().pieces;
    run(slot_of_position.data(), begin, end);
    begin = end;
  }
}

void Engine::weight_grad(Lookup& lookup, std::size_t which, const float* grad, std::size_t grad_stride,
                         float* out, DeviceCompute* device) {
  const Pass pass(*this);
  FeatureLookup& feature = lookup.features.at(which);
  Table& table = table_at(feature.table);
  if (table.version != feature.version) {
    throw StateError(
        "table '" + table.name +
        "' was changed between forward and backward; the gradient of per_sample_weights needs the rows as "
        "they were: call backward before step and write_rows");
  }
  store_->settle_residency();
  store_->next_clock();
  WeightGradTask task;
  task.layout = table.record();
  task.offsets = feature.offsets.data();
  task.bag_end = feature.offsets.size() - 1;
  task.grad = grad;
  task.grad_stride = grad_stride;
  task.out = out;
  const auto run = [&](const std::uint32_t* slots, std::uint64_t begin, std::uint64_t end) {
    task.records = table.records();
    task.slot_of_position = slots;
    task.position_begin = begin;
    task.position_end = end;
    if (DeviceRecords* records = table.device()) {
      required(device).weight_grad(*records, task, feature.plan.num_positions);
    } else {
      per_sample_weight_grad(task);
    }
  };
  BatchPlan& plan = feature.plan;
  std::vector<std::uint32_t> slots(plan.num_unique());
  if (plan.num_unique() <= store_->pass_capacity(table) &&
      locate(table, plan.rows.data(), plan.num_unique(), slots.data(), Bring::kAgain)) {
    plan.slots = std::move(slots);
    finish_plan(feature, true);
    run(plan.slot_of_position.data(), 0, plan.num_positions);
  } else {
    each_piece(feature, run);
  }
}

}  // namespace mtrains
