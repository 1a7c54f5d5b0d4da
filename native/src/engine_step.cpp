// Step: one fused update of each row that has a gradient.
#include <algorithm>
#include <numeric>

#include "engine_tasks.h"
#include "mtrains/engine.h"
#include "mtrains/errors.h"

namespace mtrains {

struct Engine::Located {
  TableUpdate* update;
  std::size_t number;  // of the update
  Table* table;
  const std::uint64_t* rows;
  std::uint64_t num_rows;
  const std::uint32_t* slots = nullptr;  // of the plan if it still holds, else of own_slots
  std::vector<std::uint32_t> own_slots;
  std::uint64_t begin = 0, end = 0;  // of rows, with slots[i] for row begin + i
};

void Engine::step(std::vector<TableUpdate>& updates, DeviceCompute* device) {
  const Pass pass(*this);
  const Changing changing(*this);
  check_whole();
  for (TableUpdate& update : updates) {
    table_at(update.table);
    if (device == nullptr) divide_by_counts(update);
  }
  store_->settle_residency();
  store_->next_clock();
  std::vector<Located> located;
  for (TableUpdate& update : updates) {
    Located item{
        &update, located.size(), &store_->table(update.table), update.rows, update.num_rows, nullptr, {}, 0,
        0};
    if (update.lookup != nullptr) {
      const BatchPlan& plan = update.lookup->features.at(update.feature).plan;
      item.rows = plan.rows.data();
      item.num_rows = plan.num_unique();
    }
    item.end = item.num_rows;
    located.push_back(std::move(item));
  }
  bool changed = false;
  try {
    if (locate_updates(located)) {
      for (const Located& item : located) store_->settle_owed(*item.table, item.slots, item.num_rows);
      std::vector<Located*> all;
      for (Located& item : located) all.push_back(&item);
      changed = true;
      run_updates(all, device);
    } else {
      for (Located& item : located) update_in_pieces(item, device, &changed);
    }
  } catch (...) {
    torn_ = changed;
    throw;
  }
  for (const Located& item : located) ++item.table->update_count;
}

// Finds or brings the rows of all updates at once; false if they do not fit together.
bool Engine::locate_updates(std::vector<Located>& located) {
  const bool unmoved = std::all_of(located.begin(), located.end(), [this](const Located& item) {
    return item.update->lookup != nullptr &&
           item.update->lookup->features[item.update->feature].generation == generation(*item.table);
  });
  for (Located& item : located) {
    if (unmoved) {
      item.slots = item.update->lookup->features[item.update->feature].plan.slots.data();
      continue;
    }
    item.own_slots.resize(item.num_rows);
    item.slots = item.own_slots.data();
    if (item.num_rows > store_->pass_capacity(*item.table) ||
        !locate(*item.table, item.rows, item.num_rows, item.own_slots.data(), Bring::kAgain)) {
      return false;
    }
  }
  return true;
}

void Engine::update_in_pieces(Located& item, DeviceCompute* device, bool* changed) {
  std::uint64_t capacity = store_->pass_capacity(*item.table);
  for (std::uint64_t begin = 0; begin < item.num_rows;) {
    const std::uint64_t count = std::min(capacity, item.num_rows - begin);
    item.own_slots.assign(count, 0);
    store_->next_clock();
    if (!locate(*item.table, item.rows + begin, count, item.own_slots.data(), Bring::kAgain)) {
      if (capacity == 1)
        throw CapacityError("table '" + item.table->name + "': no slot could be freed in the compute tier");
      capacity = std::max<std::uint64_t>(1, capacity / 2);
      continue;
    }
    item.slots = item.own_slots.data();
    item.begin = begin;
    item.end = begin + count;
    store_->settle_owed(*item.table, item.slots, count);
    ++store_->counters().pieces;
    *changed = true;
    run_updates({&item}, device);
    begin += count;
  }
}

UpdateTask Engine::update_task(const Located& item) const {
  const Table& table = *item.table;
  UpdateTask task = item.update->scalars;
  task.layout = table.record();
  task.records = table.records();
  task.slots = item.slots - item.begin;  // indexed by row of the update
  task.rows = item.rows;
  task.unique_begin = item.begin;
  task.unique_end = item.end;
  task.source = grad_source(*item.update);
  task.rounding_key = table.init.key;
  task.update_count = table.update_count;
  return task;
}

void Engine::run_on_device(const Located& item, DeviceCompute& device) {
  const UpdateTask task = update_task(item);
  store_->add_dirty(store_->mark_dirty(*item.table, task.slots, item.begin, item.end));
  const FeatureLookup* feature =
      item.update->lookup == nullptr ? nullptr : &item.update->lookup->features[item.update->feature];
  device.update(item.number, *item.table->device(), task, feature == nullptr ? nullptr : &feature->plan,
                feature == nullptr || feature->mode != PoolMode::kMean ? nullptr : &feature->counts);
}

void Engine::run_updates(const std::vector<Located*>& located, DeviceCompute* device) {
  const Stopwatch watch(times_.compute_seconds);
  struct Part {
    Located* item;
    std::uint64_t begin, end;
  };
  // One row is updated by one thread; parts hold about the same number of occurrences.
  std::vector<Part> parts;
  std::uint64_t total = 0;
  const auto weight = [](const Located& item, std::uint64_t u) {
    if (item.update->lookup == nullptr) return std::uint64_t{2};
    const auto& csr = item.update->lookup->features[item.update->feature].plan.csr;
    return std::uint64_t{2} + csr[u + 1] - csr[u];
  };
  for (const Located* item : located) {
    ++item->table->version;  // before the first change: a step that fails half way has changed the table
    if (item->begin == item->end) continue;
    const std::uint64_t rows = item->end - item->begin;
    if (!item->table->resident) store_->levels()[0]->charge(rows, rows, item->table->record().stride());
    if (item->table->device() != nullptr) run_on_device(*item, required(device));
    total += 2 * (item->end - item->begin);
    if (item->update->lookup != nullptr) {
      const auto& csr = item->update->lookup->features[item->update->feature].plan.csr;
      total += csr[item->end] - csr[item->begin];
    }
  }
  const std::uint64_t per_task = positions_per_task(total, threads_.num_threads());
  for (Located* item : located) {
    if (item->table->device() != nullptr) continue;
    std::uint64_t work = 0, begin = item->begin;
    for (std::uint64_t u = item->begin; u < item->end; ++u) {
      work += weight(*item, u);
      if (work < per_task && u + 1 < item->end) continue;
      parts.push_back({item, begin, u + 1});
      begin = u + 1;
      work = 0;
    }
  }
  std::vector<std::uint64_t> were_clean(parts.size());
  threads_.run(parts.size(), [&](std::size_t i) {
    const Part& part = parts[i];
    const Located& item = *part.item;
    UpdateTask task = update_task(item);
    task.unique_begin = part.begin;
    task.unique_end = part.end;
    were_clean[i] = store_->mark_dirty(*item.table, task.slots, part.begin, part.end);
    update_rows(task);
  });
  store_->add_dirty(std::accumulate(were_clean.begin(), were_clean.end(), std::uint64_t{0}));
}

}  // namespace mtrains
