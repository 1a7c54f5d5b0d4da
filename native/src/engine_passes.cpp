// Forward, backward sums and step.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>

#include "mtrains/engine.h"
#include "mtrains/errors.h"

namespace mtrains {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kMaxPositions = 0xfffffffeu;
// Work is cut into a few tasks a thread, by positions, so that threads finish together.
constexpr std::uint64_t kMinPositionsPerTask = 2048;
constexpr std::uint64_t kTasksPerThread = 4;

class Stopwatch {
 public:
  explicit Stopwatch(double& total) : total_(total), begin_(Clock::now()) {}
  ~Stopwatch() { total_ += std::chrono::duration<double>(Clock::now() - begin_).count(); }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double& total_;
  Clock::time_point begin_;
};

}  // namespace

// --- forward

void Engine::bad_index(const Table& table, std::uint64_t position, std::int64_t value) const {
  throw std::out_of_range("table '" + table.name + "': index " + std::to_string(value) + " at position " +
                          std::to_string(position) + " is out of range [0, " +
                          std::to_string(table.num_rows) + ")");
}

// Cuts the indices into features and checks the offsets.
void Engine::lay_out(const std::vector<FeatureSpec>& features, const ForwardInput& input, Lookup& lookup,
                     std::vector<std::uint64_t>& begins) const {
  const std::uint64_t size = input.indices.size, bags = input.num_bags * features.size();
  if (size > kMaxPositions) throw std::invalid_argument("one lookup takes at most 2^32 - 2 indices");
  if (bags > kMaxPositions) throw std::invalid_argument("one lookup takes at most 2^32 - 2 bags");
  const bool fixed = input.offsets.data == nullptr;
  if (!fixed) {
    const std::uint64_t expected = bags + (input.include_last_offset ? 1 : 0);
    if (input.offsets.size != expected) {
      throw std::invalid_argument("offsets has " + std::to_string(input.offsets.size) +
                                  " entries, expected " + std::to_string(expected));
    }
    std::int64_t before = 0;
    for (std::uint64_t i = 0; i < expected; ++i) {
      const std::int64_t offset = input.offsets.at(i);
      if (i == 0 && offset != 0)
        throw std::invalid_argument("offsets[0] must be 0, got " + std::to_string(offset));
      if (offset < before || offset > static_cast<std::int64_t>(size)) {
        throw std::invalid_argument("offsets[" + std::to_string(i) + "] = " + std::to_string(offset) +
                                    (offset < before
                                         ? " is below the one before, " + std::to_string(before)
                                         : " is beyond the " + std::to_string(size) + " indices"));
      }
      before = offset;
    }
    if (input.include_last_offset && before != static_cast<std::int64_t>(size)) {
      throw std::invalid_argument("the last offset is " + std::to_string(before) + ", but there are " +
                                  std::to_string(size) + " indices");
    }
  }
  const auto bag_begin = [&](std::uint64_t bag) {
    if (fixed) return bag * input.bag_size;
    return bag < input.offsets.size ? static_cast<std::uint64_t>(input.offsets.at(bag)) : size;
  };
  for (std::size_t f = 0; f < features.size(); ++f) {
    FeatureLookup& feature = lookup.features[f];
    feature.table = features[f].table;
    feature.mode = features[f].mode;
    const std::uint64_t first = bag_begin(f * input.num_bags);
    begins.push_back(first);
    feature.offsets.resize(input.num_bags + 1);
    for (std::uint64_t b = 0; b <= input.num_bags; ++b) {
      feature.offsets[b] = static_cast<std::int64_t>(bag_begin(f * input.num_bags + b) - first);
    }
    if (feature.mode != PoolMode::kSum) feature.counts.resize(input.num_bags);
  }
}

// Which rows of a feature are in the compute tier, and where. Runs in a worker.
void Engine::find_rows(FeatureLookup& feature, const IndexSpan& indices, bool plan_free,
                       std::vector<std::uint32_t>& missing, std::vector<std::uint64_t>& plain_rows) {
  Table& table = store_->table(feature.table);
  BatchPlan& plan = feature.plan;
  if (plan_free) {
    plan.num_positions = indices.size;
    plan.slot_of_position.resize(indices.size);
    const bool all_present = table.num_present == table.num_rows;
    for (std::uint64_t p = 0; p < indices.size; ++p) {
      const auto row = static_cast<std::uint64_t>(indices.at(p));
      const bool padding = static_cast<std::int64_t>(row) == table.init.padding_row;
      plan.slot_of_position[p] = padding ? kNoSlot : static_cast<std::uint32_t>(row);
      if (!all_present && !padding && !table.is_present(row)) plain_rows.push_back(row);
    }
    std::sort(plain_rows.begin(), plain_rows.end());
    plain_rows.erase(std::unique(plain_rows.begin(), plain_rows.end()), plain_rows.end());
    missing.resize(plain_rows.size());
    std::iota(missing.begin(), missing.end(), 0u);
    return;
  }
  plan.set_bags(feature.offsets.data(), feature.offsets.size() - 1);
  plan.slots.resize(plan.num_unique());
  store_->find(table, plan.rows.data(), plan.num_unique(), plan.slots.data(), missing);
}

void Engine::finish_plan(FeatureLookup& feature, bool keep) {
  const Table& table = store_->table(feature.table);
  // Update and write-back then walk memory forward. A resident table's rows are in that order already.
  if (keep && !table.resident) feature.plan.order_by_slot();
  feature.plan.scatter_slots();
  feature.generation = generation(table);
}

std::uint64_t Engine::generation(const Table& table) const {
  return store_->layout_generation() + (table.resident ? 0 : table.pool->index.generation());
}

std::shared_ptr<Lookup> Engine::forward(const std::vector<FeatureSpec>& features, const ForwardInput& input) {
  const Pass pass(*this);
  auto lookup = std::make_shared<Lookup>();
  lookup->features.resize(features.size());
  std::vector<std::uint64_t> begins;
  for (const FeatureSpec& feature : features) table_at(feature.table);
  lay_out(features, input, *lookup, begins);
  store_->settle_residency();
  store_->next_clock();

  // Features of one table are planned by one task, since they touch the same slots.
  std::vector<std::vector<std::size_t>> by_table;
  std::vector<std::size_t> group_of_table(store_->num_tables(), SIZE_MAX);
  for (std::size_t f = 0; f < features.size(); ++f) {
    std::size_t& group = group_of_table[features[f].table];
    if (group == SIZE_MAX) {
      group = by_table.size();
      by_table.emplace_back();
    }
    by_table[group].push_back(f);
  }
  std::vector<std::vector<std::uint32_t>> missing(features.size());
  std::vector<std::vector<std::uint64_t>> plain_rows(features.size());
  std::vector<std::optional<BadIndex>> bad(features.size());
  const auto span_of = [&](std::size_t f) {
    IndexSpan span = input.indices;
    const std::size_t width = span.is_int64 ? 8 : 4;
    span.data = static_cast<const char*>(span.data) + begins[f] * width;
    span.size = static_cast<std::uint64_t>(lookup->features[f].offsets.back());
    return span;
  };
  {
    const Stopwatch watch(times_.plan_seconds);
    threads_.run(by_table.size(), [&](std::size_t group) {
      for (const std::size_t f : by_table[group]) {
        const Table& table = store_->table(features[f].table);
        const IndexSpan span = span_of(f);
        if (plan_free(table, input)) {
          for (std::uint64_t p = 0; p < span.size && !bad[f]; ++p) {
            if (static_cast<std::uint64_t>(span.at(p)) >= table.num_rows) bad[f] = BadIndex{p, span.at(p)};
          }
        } else {
          bad[f] = lookup->features[f].plan.build(span, table.num_rows, table.init.padding_row);
        }
      }
    });
    for (std::size_t f = 0; f < features.size(); ++f) {
      if (bad[f]) bad_index(store_->table(features[f].table), begins[f] + bad[f]->position, bad[f]->value);
    }
    threads_.run(by_table.size(), [&](std::size_t group) {
      for (const std::size_t f : by_table[group]) {
        find_rows(lookup->features[f], span_of(f), plan_free(store_->table(features[f].table), input),
                  missing[f], plain_rows[f]);
      }
    });
  }

  // Features whose rows are in the tier together are pooled together.
  std::vector<std::size_t> ready;
  bool found_holds = true;  // nothing was evicted that find_rows saw
  for (std::size_t f = 0; f < features.size(); ++f) {
    FeatureLookup& feature = lookup->features[f];
    Table& table = store_->table(feature.table);
    const std::uint64_t unique = feature.plan.num_unique();
    if (plan_free(table, input)) {
      const Stopwatch watch(times_.move_seconds);
      store_->counters().unplanned_positions += feature.plan.num_positions;
      std::vector<std::uint32_t> unused(plain_rows[f].size());
      store_->bring(table, plain_rows[f].data(), unused.data(), missing[f], true);
    } else if (!(found_holds ? bring_found(feature, missing[f]) : bring_all(feature))) {
      // What is ready goes first; then this feature has the tier to itself.
      pool_features(ready, *lookup, features, input, begins);
      ready.clear();
      store_->next_clock();
      found_holds = false;
      if (unique > store_->pass_capacity(table) || !bring_all(feature)) {
        pool_in_pieces(f, *lookup, features, input, begins);
        store_->next_clock();
        continue;
      }
    }
    ready.push_back(f);
  }
  pool_features(ready, *lookup, features, input, begins);
  return input.keep ? lookup : nullptr;
}

PoolTask Engine::pool_task(std::size_t which, Lookup& lookup, const std::vector<FeatureSpec>& features,
                           const ForwardInput& input, const std::vector<std::uint64_t>& begins) {
  FeatureLookup& feature = lookup.features[which];
  const Table& table = store_->table(feature.table);
  PoolTask task;
  task.layout = table.record();
  task.records = table.records();
  task.slot_of_position = feature.plan.slot_of_position.data();
  task.offsets = feature.offsets.data();
  task.bag_end = input.num_bags;
  task.position_end = feature.plan.num_positions;
  task.mode = feature.mode;
  if (input.per_sample_weights != nullptr) task.per_sample_weights = input.per_sample_weights + begins[which];
  task.out = input.out + features[which].out_column;
  task.out_stride = input.out_stride;
  if (feature.mode == PoolMode::kMax && input.argmax != nullptr) {
    task.argmax = input.argmax;
    for (std::size_t f = 0; f < which; ++f) {
      if (features[f].mode == PoolMode::kMax)
        task.argmax += input.num_bags * store_->table(features[f].table).record().dim;
    }
  }
  if (feature.mode != PoolMode::kSum) task.counts = feature.counts.data();
  return task;
}

void Engine::pool_in_pieces(std::size_t which, Lookup& lookup, const std::vector<FeatureSpec>& features,
                            const ForwardInput& input, const std::vector<std::uint64_t>& begins) {
  FeatureLookup& feature = lookup.features[which];
  const Table& table = store_->table(feature.table);
  store_->count_accesses(store_->table(feature.table), feature.plan.rows.data(), feature.plan.num_unique());
  feature.plan.slots.clear();
  feature.version = table.version;
  feature.generation = ~std::uint64_t{0};  // the plan names no slots
  PoolTask task = pool_task(which, lookup, features, input, begins);
  const auto run = [&task](const std::uint32_t* slots, std::uint64_t begin, std::uint64_t end, bool first,
                           bool last) {
    task.slot_of_position = slots;
    task.position_begin = begin;
    task.position_end = end;
    task.first_piece = first;
    task.last_piece = last;
    pool(task);
  };
  run(nullptr, 0, 0, true, false);
  each_piece(feature, [&](const std::uint32_t* slots, std::uint64_t begin, std::uint64_t end) {
    task.records = table.records();
    run(slots, begin, end, false, false);
  });
  run(nullptr, 0, 0, false, true);
}

void Engine::pool_features(const std::vector<std::size_t>& which, Lookup& lookup,
                           const std::vector<FeatureSpec>& features, const ForwardInput& input,
                           const std::vector<std::uint64_t>& begins) {
  if (which.empty()) return;
  const Stopwatch watch(times_.compute_seconds);
  threads_.run(which.size(), [&](std::size_t i) {
    FeatureLookup& feature = lookup.features[which[i]];
    const Table& table = store_->table(feature.table);
    if (!plan_free(table, input)) finish_plan(feature, input.keep);
    feature.version = table.version;
  });
  struct Part {
    std::size_t feature;
    std::uint64_t bag_begin, bag_end;
  };
  std::vector<Part> parts;
  std::uint64_t total = 0;
  for (const std::size_t f : which) total += lookup.features[f].plan.num_positions + input.num_bags;
  const std::uint64_t tasks = kTasksPerThread * static_cast<std::uint64_t>(threads_.num_threads());
  const std::uint64_t per_task = std::max(kMinPositionsPerTask, total / tasks + 1);
  for (const std::size_t f : which) {
    const std::vector<std::int64_t>& offsets = lookup.features[f].offsets;
    std::uint64_t begin = 0;
    for (std::uint64_t bag = 0; bag < input.num_bags; ++bag) {
      const std::uint64_t work =
          static_cast<std::uint64_t>(offsets[bag + 1] - offsets[begin]) + bag + 1 - begin;
      if (work < per_task && bag + 1 < input.num_bags) continue;
      parts.push_back({f, begin, bag + 1});
      begin = bag + 1;
    }
  }
  threads_.run(parts.size(), [&](std::size_t i) {
    PoolTask task = pool_task(parts[i].feature, lookup, features, input, begins);
    task.bag_begin = parts[i].bag_begin;
    task.bag_end = parts[i].bag_end;
    pool(task);
  });
}

// --- rows of a plan

bool Engine::bring_found(FeatureLookup& feature, const std::vector<std::uint32_t>& missing) {
  const Stopwatch watch(times_.move_seconds);
  Table& table = store_->table(feature.table);
  if (!store_->bring(table, feature.plan.rows.data(), feature.plan.slots.data(), missing, true)) return false;
  store_->counters().hits += feature.plan.num_unique() - missing.size();
  return true;
}

bool Engine::bring_all(FeatureLookup& feature) {
  const Stopwatch watch(times_.move_seconds);
  return locate(store_->table(feature.table), feature.plan.rows.data(), feature.plan.num_unique(),
                feature.plan.slots.data(), true);
}

bool Engine::locate(Table& table, const std::uint64_t* rows, std::size_t n, std::uint32_t* slots,
                    bool counted) {
  std::vector<std::uint32_t> missing;
  store_->find(table, rows, n, slots, missing);
  const std::size_t found = n - missing.size();
  if (!store_->bring(table, rows, slots, missing, counted)) return false;
  if (counted) store_->counters().hits += found;
  return true;
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
    if (!locate(table, rows.data(), rows.size(), slots.data(), false)) {
      // Slots of other strides could not be taken over whole; a smaller piece does.
      if (capacity == 1)
        throw CapacityError("table '" + table.name + "': no slot could be freed in the dram tier");
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
                         float* out) {
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
    per_sample_weight_grad(task);
  };
  BatchPlan& plan = feature.plan;
  std::vector<std::uint32_t> slots(plan.num_unique());
  if (plan.num_unique() <= store_->pass_capacity(table) &&
      locate(table, plan.rows.data(), plan.num_unique(), slots.data(), false)) {
    plan.slots = std::move(slots);
    finish_plan(feature, true);
    run(plan.slot_of_position.data(), 0, plan.num_positions);
  } else {
    each_piece(feature, run);
  }
}

// --- backward sums

// Of a mean, the gradient of a position is its bag's gradient over the bag's count: one division for all its
// positions.
void Engine::divide_by_counts(TableUpdate& update) {
  if (update.lookup == nullptr) return;
  const FeatureLookup& feature = update.lookup->features.at(update.feature);
  if (feature.mode != PoolMode::kMean) return;
  const std::size_t dim = store_->table(feature.table).record().dim;
  const std::size_t bags = feature.counts.size();
  update.divided.resize(bags * dim);
  const std::size_t tasks =
      std::min(kTasksPerThread * static_cast<std::size_t>(threads_.num_threads()), bags);
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
  const std::size_t tasks =
      std::min(kTasksPerThread * static_cast<std::size_t>(threads_.num_threads()), unique);
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

// --- step

struct Engine::Located {
  TableUpdate* update;
  Table* table;
  const std::uint64_t* rows;
  std::uint64_t num_rows;
  const std::uint32_t* slots = nullptr;  // of the plan if it still holds, else of own_slots
  std::vector<std::uint32_t> own_slots;
  std::uint64_t begin = 0, end = 0;  // of rows, with slots[i] for row begin + i
};

void Engine::step(std::vector<TableUpdate>& updates) {
  const Pass pass(*this);
  check_whole();
  for (TableUpdate& update : updates) {
    table_at(update.table);
    divide_by_counts(update);
  }
  store_->settle_residency();
  store_->next_clock();
  std::vector<Located> located;
  for (TableUpdate& update : updates) {
    Located item{&update, &store_->table(update.table), update.rows, update.num_rows, nullptr, {}, 0, 0};
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
      run_updates(all);
    } else {
      for (Located& item : located) update_in_pieces(item, &changed);
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
        !locate(*item.table, item.rows, item.num_rows, item.own_slots.data(), false)) {
      return false;
    }
  }
  return true;
}

void Engine::update_in_pieces(Located& item, bool* changed) {
  std::uint64_t capacity = store_->pass_capacity(*item.table);
  for (std::uint64_t begin = 0; begin < item.num_rows;) {
    const std::uint64_t count = std::min(capacity, item.num_rows - begin);
    item.own_slots.assign(count, 0);
    store_->next_clock();
    if (!locate(*item.table, item.rows + begin, count, item.own_slots.data(), false)) {
      if (capacity == 1)
        throw CapacityError("table '" + item.table->name + "': no slot could be freed in the dram tier");
      capacity = std::max<std::uint64_t>(1, capacity / 2);
      continue;
    }
    item.slots = item.own_slots.data();
    item.begin = begin;
    item.end = begin + count;
    store_->settle_owed(*item.table, item.slots, count);
    ++store_->counters().pieces;
    *changed = true;
    run_updates({&item});
    begin += count;
  }
}

void Engine::run_updates(const std::vector<Located*>& located) {
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
    total += 2 * (item->end - item->begin);
    if (item->update->lookup != nullptr) {
      const auto& csr = item->update->lookup->features[item->update->feature].plan.csr;
      total += csr[item->end] - csr[item->begin];
    }
  }
  const std::uint64_t tasks = kTasksPerThread * static_cast<std::uint64_t>(threads_.num_threads());
  const std::uint64_t per_task = std::max(kMinPositionsPerTask, total / tasks + 1);
  for (Located* item : located) {
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
    Table& table = *item.table;
    const std::uint32_t* slots = item.slots - item.begin;  // indexed by row of the update
    were_clean[i] = store_->mark_dirty(table, slots, part.begin, part.end);
    UpdateTask task = item.update->scalars;
    task.layout = table.record();
    task.records = table.records();
    task.slots = slots;
    task.rows = item.rows;
    task.unique_begin = part.begin;
    task.unique_end = part.end;
    task.source = grad_source(*item.update);
    task.rounding_key = table.init.key;
    task.update_count = table.update_count;
    update_rows(task);
  });
  store_->add_dirty(std::accumulate(were_clean.begin(), were_clean.end(), std::uint64_t{0}));
}

}  // namespace mtrains
