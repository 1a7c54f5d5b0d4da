// Forward: plan, bring rows in, gather and pool.
#include <algorithm>
#include <numeric>
#include <optional>

#include "engine_tasks.h"
#include "mtrains/engine.h"
#include "mtrains/errors.h"

namespace mtrains {
namespace {

constexpr std::uint64_t kMaxPositions = 0xfffffffeu;

}  // namespace

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
                       const TicketTable* pinned, std::vector<std::uint32_t>& missing,
                       std::vector<std::uint64_t>& plain_rows) {
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
  if (pinned != nullptr && !pinned->slots.empty()) {
    store_->use_pinned(*pinned, plan.rows, plan.slots);
    return;
  }
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
  return store_->layout_generation() + (table.resident ? 0 : table.pool().index.generation());
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
  const std::shared_ptr<Ticket> ticket = take_ticket(*lookup, input, begins);
  const Bring why = ticket != nullptr && ticket->counted ? Bring::kAgain : Bring::kAccess;

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
    return input.part(begins[f], static_cast<std::uint64_t>(lookup->features[f].offsets.back()));
  };
  {
    const Stopwatch watch(times_.plan_seconds);
    threads_.run(by_table.size(), [&](std::size_t group) {
      for (const std::size_t f : by_table[group]) {
        const Table& table = store_->table(features[f].table);
        const IndexSpan span = span_of(f);
        if (ticket != nullptr) {
          lookup->features[f].plan = std::move(ticket->plans[f]);
        } else if (plan_free(table, input)) {
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
                  ticket != nullptr ? ticket->table(features[f].table) : nullptr, missing[f], plain_rows[f]);
      }
    });
    if (ticket != nullptr) unpin(*ticket);  // this pass protects the rows by now
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
      store_->bring(table, plain_rows[f].data(), unused.data(), missing[f], why);
    } else if (!(found_holds ? bring_found(feature, missing[f], why) : bring_all(feature, why))) {
      // What is ready goes first; then this feature has the tier to itself.
      pool_features(ready, *lookup, features, input, begins);
      ready.clear();
      store_->next_clock();
      found_holds = false;
      if (unique > store_->pass_capacity(table) || !bring_all(feature, why)) {
        pool_in_pieces(f, *lookup, features, input, begins, why);
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
  task.out = input.out + features[which].out_column;  // of a device: means nothing, and nothing reads it
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
                            const ForwardInput& input, const std::vector<std::uint64_t>& begins, Bring why) {
  FeatureLookup& feature = lookup.features[which];
  const Table& table = store_->table(feature.table);
  if (why == Bring::kAccess)
    store_->count_accesses(store_->table(feature.table), feature.plan.rows.data(), feature.plan.num_unique());
  feature.plan.slots.clear();
  feature.version = table.version;
  feature.generation = ~std::uint64_t{0};  // the plan names no slots
  PoolTask task = pool_task(which, lookup, features, input, begins);
  const auto run = [&](const std::uint32_t* slots, std::uint64_t begin, std::uint64_t end, bool first,
                       bool last) {
    task.slot_of_position = slots;
    task.position_begin = begin;
    task.position_end = end;
    task.first_piece = first;
    task.last_piece = last;
    if (DeviceRecords* records = table.device()) {
      required(input.device).pool(which, *records, task, slots == nullptr ? 0 : feature.plan.num_positions);
    } else {
      pool(task);
    }
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
  for (const std::size_t f : which) {
    const Table& table = store_->table(lookup.features[f].table);
    if (table.resident) continue;
    store_->levels()[0]->charge(lookup.features[f].plan.num_unique(), 0, table.record().stride());
  }
  if (store_->table(lookup.features[which[0]].table).device() != nullptr) {  // then all tables are there
    for (const std::size_t f : which) {
      const FeatureLookup& feature = lookup.features[f];
      required(input.device)
          .pool(f, *store_->table(feature.table).device(), pool_task(f, lookup, features, input, begins),
                feature.plan.num_positions);
    }
    return;
  }
  struct Part {
    std::size_t feature;
    std::uint64_t bag_begin, bag_end;
  };
  std::vector<Part> parts;
  std::uint64_t total = 0;
  for (const std::size_t f : which) total += lookup.features[f].plan.num_positions + input.num_bags;
  const std::uint64_t per_task = positions_per_task(total, threads_.num_threads());
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

}  // namespace mtrains
