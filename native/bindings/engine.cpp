// The engine as Python sees it. Each binding checks, releases the GIL, calls the core and returns.
#include "mtrains/engine.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <stdexcept>
#include <tuple>

#include "arrays.h"
#include "device.h"
#include "mtrains/errors.h"
#include "segments.h"

using namespace nanobind::literals;

namespace mtrains {
namespace {

using Release = nb::call_guard<nb::gil_scoped_release>;
using Rows = ArrayIn<std::int64_t, nb::ndim<1>>;

struct LookupSpec {
  std::vector<FeatureSpec> features;
};

// Runs `call` with the store locked and the GIL released: whoever holds the lock may be waiting for the GIL.
template <typename Call>
auto locked(Engine& engine, const Call& call) {
  const nb::gil_scoped_release release;
  return engine.locked(call);
}

// A forked child has none of the threads that an engine would join and none of its memory: it only forgets
// it.
struct LeaveInForkedChild {
  pid_t owner = getpid();
  void operator()(Engine* engine) const {
    if (getpid() == owner) delete engine;
  }
};

void require(bool condition, const char* what) {
  if (!condition) throw std::invalid_argument(what);
}

// Indices and bags of a lookup, as Python passes them.
ForwardInput input_of(const LookupSpec& spec, std::uintptr_t indices_ptr, std::uint64_t num_indices,
                      bool indices_int64, std::uintptr_t offsets_ptr, std::uint64_t num_offsets,
                      bool offsets_int64, bool include_last_offset, std::uint64_t num_bags,
                      std::uint64_t bag_size) {
  ForwardInput input;
  input.indices = {pointer<const void>(indices_ptr), num_indices, indices_int64};
  input.offsets = {pointer<const void>(offsets_ptr), num_offsets, offsets_int64};
  if (offsets_ptr == 0) {
    require(num_bags * bag_size * spec.features.size() == num_indices,
            "bags of bag_size do not add up to the indices");
  }
  input.include_last_offset = include_last_offset;
  input.num_bags = num_bags;
  input.bag_size = bag_size;
  return input;
}

std::shared_ptr<Lookup> forward(Engine& engine, const LookupSpec& spec, std::uintptr_t indices_ptr,
                                std::uint64_t num_indices, bool indices_int64, std::uintptr_t offsets_ptr,
                                std::uint64_t num_offsets, bool offsets_int64, bool include_last_offset,
                                std::uint64_t num_bags, std::uint64_t bag_size, std::uintptr_t weights_ptr,
                                std::uintptr_t out_ptr, std::size_t out_stride, std::uintptr_t argmax_ptr,
                                bool keep, DeviceCompute* device) {
  ForwardInput input = input_of(spec, indices_ptr, num_indices, indices_int64, offsets_ptr, num_offsets,
                                offsets_int64, include_last_offset, num_bags, bag_size);
  input.per_sample_weights = pointer<const float>(weights_ptr);
  input.out = pointer<float>(out_ptr);
  input.out_stride = out_stride;
  input.argmax = pointer<std::int64_t>(argmax_ptr);
  input.keep = keep;
  input.device = device;
  return engine.forward(spec.features, input);
}

std::shared_ptr<Ticket> foresee(Engine& engine, const LookupSpec& spec, std::uintptr_t indices_ptr,
                                std::uint64_t num_indices, bool indices_int64, std::uintptr_t offsets_ptr,
                                std::uint64_t num_offsets, bool offsets_int64, bool include_last_offset,
                                std::uint64_t num_bags, std::uint64_t bag_size) {
  return engine.foresee(spec.features,
                        input_of(spec, indices_ptr, num_indices, indices_int64, offsets_ptr, num_offsets,
                                 offsets_int64, include_last_offset, num_bags, bag_size));
}

bool stage(Engine& engine, const std::shared_ptr<Ticket>& ticket, double share, const LookupSpec& spec,
           std::uintptr_t indices_ptr, std::uint64_t num_indices, bool indices_int64,
           std::uintptr_t offsets_ptr, std::uint64_t num_offsets, bool offsets_int64,
           bool include_last_offset, std::uint64_t num_bags, std::uint64_t bag_size) {
  return engine.stage(ticket, spec.features,
                      input_of(spec, indices_ptr, num_indices, indices_int64, offsets_ptr, num_offsets,
                               offsets_int64, include_last_offset, num_bags, bag_size),
                      share);
}

nb::object row_sums(Engine& engine, const std::shared_ptr<Lookup>& lookup, std::size_t feature,
                    std::uintptr_t grad_ptr, std::size_t grad_stride, std::uintptr_t weights_ptr,
                    std::uintptr_t argmax_ptr, std::optional<Rows> prior_rows,
                    std::optional<ArrayIn<float, nb::ndim<2>>> prior_sums) {
  TableUpdate source;
  source.lookup = lookup;
  source.feature = feature;
  source.grad = pointer<const float>(grad_ptr);
  source.grad_stride = grad_stride;
  source.per_sample_weights = pointer<const float>(weights_ptr);
  source.argmax = pointer<const std::int64_t>(argmax_ptr);
  const std::size_t num_prior = prior_rows ? prior_rows->size() : 0;
  require(num_prior == (prior_sums ? prior_sums->shape(0) : 0), "prior rows and sums differ in number");
  RowSums sums;
  {
    const nb::gil_scoped_release release;
    sums = engine.row_sums(source, num_prior ? prior_rows->data() : nullptr,
                           num_prior ? prior_sums->data() : nullptr, num_prior);
  }
  const std::size_t rows = sums.rows.size();
  const std::uint32_t dim = locked(
      engine, [&](RowStore& store) { return store.table(lookup->features[feature].table).record().dim; });
  return nb::make_tuple(own(std::move(sums.rows)), own(std::move(sums.sums), {rows, dim}));
}

// What a tier has done and holds.
struct TierReport {
  const char* name;
  TierCounters counters;
  std::uint64_t slots, used_slots, used_bytes;
};

nb::dict stats(Engine& engine) {
  std::vector<TierReport> tiers;
  AccessCounters access;
  LogCounters log;
  std::uint64_t dirty = 0;
  EngineTimes times;
  TicketCounters tickets;
  std::uint64_t pinned = 0;
  {
    const nb::gil_scoped_release release;
    engine.locked([&](RowStore& store) {
      access = store.counters();
      log = store.log().counters();
      dirty = store.dirty() + store.owed();
      pinned = store.num_pinned();
      for (const auto& tier : store.levels()) {
        tiers.push_back({name_of(tier->spec().kind), tier->counters, tier->slots(), tier->used_slots(),
                         tier->used_bytes()});
      }
      tiers[0].used_bytes += store.resident_bytes();
    });
    times = engine.times();
    tickets = engine.ticket_counters();
  }
  nb::dict s, t, p, all;
  for (std::size_t i = 0; i < tiers.size(); ++i) {
    const auto& [name, counters, slots, used_slots, used_bytes] = tiers[i];
    nb::dict d;
    d["hits"] = counters.hits;
    if (i == 0) {  // of the tier that computes: what it had to be brought
      d["new"] = access.new_rows, d["fetches"] = access.fetches, d["refetches"] = access.refetches;
      d["unplanned_positions"] = access.unplanned_positions, d["pieces"] = access.pieces;
      d["dirty_rows"] = dirty;
    } else {
      d["rows_in"] = counters.rows_in, d["rows_out"] = counters.rows_out;
    }
    d["evictions"] = counters.evictions, d["dirty_evictions"] = counters.dirty_evictions;
    d["slots"] = slots, d["used_slots"] = used_slots, d["used_bytes"] = used_bytes;
    all[name] = d;
  }
  s["rows_read"] = log.rows_read, s["block_reads"] = log.block_reads, s["bytes_read"] = log.bytes_read;
  s["rows_forwarded"] = log.rows_forwarded, s["rows_appended"] = log.rows_appended;
  s["bytes_appended"] = log.bytes_appended, s["gc_rows"] = log.gc_rows;
  s["gc_bytes_appended"] = log.gc_bytes;
  s["segments_sealed"] = log.segments_sealed;
  t["plan"] = times.plan_seconds, t["move"] = times.move_seconds, t["compute"] = times.compute_seconds;
  t["io_wait"] = log.read_seconds, t["write_back"] = log.stall_seconds;
  t["staging"] = times.stage_seconds, t["staging_io"] = times.stage_read_seconds;
  t["staging_stall"] = times.stage_stall_seconds;
  p["staged"] = tickets.staged, p["used"] = tickets.used, p["used_unstaged"] = tickets.used_unstaged;
  p["cancelled"] = tickets.cancelled, p["expired"] = tickets.expired;
  p["staged_rows"] = access.staged_rows, p["staged_fetches"] = access.staged_fetches;
  p["demand_fetches"] = access.demand_fetches;
  p["pinned_rows"] = pinned;
  all["ssd"] = s, all["time"] = t, all["prefetch"] = p;
  return all;
}

// By table: its accesses that each tier answered, first touches, fetches, and rows that it wrote to the log.
nb::list table_counters(Engine& engine) {
  std::vector<TableCounters> tables;
  std::vector<const char*> tiers;
  {
    const nb::gil_scoped_release release;
    engine.locked([&](RowStore& store) {
      for (const auto& tier : store.levels()) tiers.push_back(name_of(tier->spec().kind));
      for (std::size_t number = 0; number < store.num_tables(); ++number)
        tables.push_back(store.table(static_cast<std::uint32_t>(number)).counters);
    });
  }
  nb::list all;
  for (const TableCounters& counters : tables) {
    nb::dict d;
    for (std::size_t level = 0; level < tiers.size(); ++level)
      d[(std::string(tiers[level]) + "_hits").c_str()] = counters.hits[level];
    d["new"] = counters.new_rows, d["fetches"] = counters.fetches,
    d["rows_appended"] = counters.rows_appended;
    all.append(d);
  }
  return all;
}

nb::dict table_info(Engine& engine, std::uint32_t number) {
  std::uint64_t touched = 0;
  std::vector<std::int64_t> rows;
  bool resident;
  std::size_t stride;
  std::uint64_t directory_bytes, present;
  std::uint16_t layout;
  {
    const nb::gil_scoped_release release;
    std::uint64_t num_rows = 0;
    engine.locked([&](RowStore& store) { num_rows = store.table(number).num_rows; });
    for (std::uint64_t at = 0; at < num_rows;) {
      rows.clear();
      at = engine.touched_rows(number, at, std::size_t{1} << 16, rows);
      touched += rows.size();
    }
    engine.locked([&](RowStore& store) {
      const Table& table = store.table(number);
      resident = table.resident;
      stride = table.record().stride();
      directory_bytes = table.directory.allocated_bytes();
      present = table.num_present;
      layout = table.layout;
    });
  }
  nb::dict info;
  info["resident"] = resident, info["stride"] = stride, info["touched_rows"] = touched;
  info["directory_bytes"] = directory_bytes, info["present_rows"] = present, info["layout"] = layout;
  return info;
}

// --- segments of the log

#pragma pack(push, 1)
struct SegmentRow {
  std::uint32_t number;
  std::uint8_t state;
  std::uint64_t id, epoch;
  std::uint32_t rows, live;
  std::uint16_t used_pages;
  std::uint64_t offset;
};
#pragma pack(pop)

nb::object structured(const std::vector<SegmentRow>& rows) {
  const nb::module_ numpy = nb::module_::import_("numpy");
  nb::list fields;
  for (const auto& [name, type] : {std::pair{"number", "<u4"},
                                   {"state", "u1"},
                                   {"id", "<u8"},
                                   {"epoch", "<u8"},
                                   {"rows", "<u4"},
                                   {"live", "<u4"},
                                   {"used_pages", "<u2"},
                                   {"offset", "<u8"}}) {
    fields.append(nb::make_tuple(name, type));
  }
  const nb::bytes bytes(reinterpret_cast<const char*>(rows.data()), rows.size() * sizeof(SegmentRow));
  return numpy.attr("frombuffer")(bytes, numpy.attr("dtype")(fields));
}

SegmentRow row_of(std::uint32_t number, const Segment& segment) {
  return {number,
          static_cast<std::uint8_t>(segment.state),
          segment.id,
          segment.epoch,
          segment.rows,
          segment.live,
          segment.used_pages,
          segment.offset};
}

nb::object segments(Engine& engine) {
  std::vector<SegmentRow> rows;
  locked(engine, [&](RowStore& store) {
    const auto& all = store.log().segments();
    for (std::uint32_t number = 1; number < all.size(); ++number) {
      if (all[number].state != SegmentState::kUnused) rows.push_back(row_of(number, all[number]));
    }
  });
  return structured(rows);
}

nb::dict changes(Engine& engine, std::uint64_t epoch) {
  struct TableDelta {
    std::uint32_t table;
    std::vector<std::uint64_t> rows, locations;
  };
  std::vector<TableDelta> delta;
  std::vector<SegmentRow> changed;
  std::vector<std::uint64_t> superseded;
  std::vector<std::uint32_t> removed;
  {
    const nb::gil_scoped_release release;
    engine.locked([&](RowStore& store) {
      RowKey first = 0, end = 0;  // keys of the last table
      store.log().places()->for_each(epoch, [&](RowKey key, Location location) {
        if (key >= end) {
          const Table& table = store.table(store.table_of(key));
          first = table.first_key;
          end = first + table.num_rows;
          delta.push_back({table.number, {}, {}});
        }
        delta.back().rows.push_back(key - first);
        delta.back().locations.push_back(location);
      });
      const auto& all = store.log().segments();
      for (const std::uint32_t number : store.log().changed()) {
        const Segment& segment = all[number];
        if (segment.epoch > epoch) continue;
        changed.push_back(row_of(number, segment));
        for (const auto& [newer, rows] : segment.superseded) {
          if (newer <= epoch) superseded.insert(superseded.end(), {number, newer, rows});
        }
      }
      for (const std::uint32_t number : store.log().removed()) {
        const Segment& now = all[number];
        if (now.state == SegmentState::kUnused || now.epoch > epoch) removed.push_back(number);
      }
    });
  }
  nb::list deltas;
  for (auto& [number, rows, locations] : delta)
    deltas.append(nb::make_tuple(number, own(std::move(rows)), own(std::move(locations))));
  const std::size_t entries = superseded.size() / 3;
  nb::dict result;
  result["deltas"] = deltas;
  result["segments"] = structured(changed);
  result["superseded"] = own(std::move(superseded), {entries, 3});
  result["removed"] = removed;
  return result;
}

struct Emptied {
  GarbageVictim victim;
  std::int64_t moved_bytes = -1;  // or no room now
  std::string damage;
};

// Chooses segments and moves their rows, by two short locks for all of them: at each a pass that runs is
// waited for. `choose` is called with the store locked.
std::vector<Emptied> empty_segments(Engine& engine,
                                    const std::function<std::vector<GarbageVictim>(SegmentLog&)>& choose) {
  std::vector<Emptied> results;
  std::vector<std::optional<Evacuation>> evacuations;
  const auto attempt = [](Emptied& result, const auto& call) {
    try {
      call();
    } catch (const CorruptionError& error) {
      result.damage = error.what();
    } catch (const IoError& error) {
      result.damage = error.what();
    }
  };
  const bool has_room = engine.locked([&](RowStore& store) {
    for (const GarbageVictim& victim : choose(store.log())) {
      results.push_back({.victim = victim, .moved_bytes = -1, .damage = ""});
      evacuations.push_back(store.log().begin_evacuation(victim.number));
    }
    return store.log().has_room_to_empty_one();
  });
  if (!has_room || results.empty()) return results;
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (evacuations[i]) attempt(results[i], [&] { evacuations[i]->read(); });
  }
  engine.locked([&](RowStore& store) {
    for (std::size_t i = 0; i < results.size() && store.log().has_room_to_empty_one(); ++i) {
      results[i].moved_bytes = 0;
      if (!evacuations[i] || !results[i].damage.empty()) continue;
      attempt(results[i],
              [&] { results[i].moved_bytes = static_cast<std::int64_t>(store.evacuate(*evacuations[i])); });
    }
    for (const Emptied& result : results) {
      if (result.moved_bytes >= 0 && !result.damage.empty()) store.log().spare(result.victim.number);
    }
  });
  return results;
}

nb::list empty_garbage(Engine& engine, const Epochs& checkpoints, std::size_t limit, double target,
                       double young_target, double old_share, std::uint32_t slack, bool only_young) {
  std::vector<Emptied> emptied;
  {
    const nb::gil_scoped_release release;
    GarbagePolicy policy;
    policy.target = target;
    policy.young_target = young_target;
    policy.old_share = old_share;
    policy.slack = slack;
    policy.only_young = only_young;
    emptied = empty_segments(engine,
                             [&](SegmentLog& log) { return log.choose_victims(checkpoints, limit, policy); });
  }
  nb::list list;
  for (const Emptied& result : emptied)
    list.append(nb::make_tuple(result.victim.id, result.moved_bytes, result.damage));
  return list;
}

std::int64_t evacuate(Engine& engine, std::uint32_t number) {
  const std::vector<Emptied> emptied = empty_segments(engine, [number](SegmentLog& log) {
    return std::vector<GarbageVictim>{{number, log.segments().at(number).id, 0}};
  });
  if (!emptied[0].damage.empty()) throw CorruptionError(emptied[0].damage);
  return emptied[0].moved_bytes;
}

void load_segments(Engine& engine, ArrayIn<std::uint32_t, nb::ndim<1>> numbers,
                   ArrayIn<std::uint64_t, nb::ndim<1>> ids, ArrayIn<std::uint64_t, nb::ndim<1>> epochs,
                   ArrayIn<std::uint32_t, nb::ndim<1>> rows, ArrayIn<std::uint16_t, nb::ndim<1>> used_pages,
                   ArrayIn<std::uint64_t, nb::ndim<1>> offsets,
                   ArrayIn<std::uint64_t, nb::shape<-1, 3>> superseded) {
  const std::size_t n = numbers.size();
  require(ids.size() == n && epochs.size() == n && rows.size() == n && used_pages.size() == n &&
              offsets.size() == n,
          "arrays differ in length");
  std::map<std::uint32_t, Segment> loaded;
  for (std::size_t i = 0; i < n; ++i) {
    Segment segment;
    segment.id = ids(i);
    segment.epoch = epochs(i);
    segment.rows = segment.live = rows(i);
    segment.used_pages = used_pages(i);
    segment.offset = offsets(i);
    segment.state = SegmentState::kPublished;
    loaded[numbers(i)] = std::move(segment);
  }
  for (std::size_t i = 0; i < superseded.shape(0); ++i) {
    Segment& segment = loaded.at(static_cast<std::uint32_t>(superseded(i, 0)));
    const auto count = static_cast<std::uint32_t>(superseded(i, 2));
    require(count <= segment.live, "more rows of a segment are superseded than it has");
    segment.superseded.emplace_back(superseded(i, 1), count);
    segment.live -= count;
  }
  locked(engine, [&](RowStore& store) {
    for (const auto& [number, segment] : loaded) store.log().load(number, segment);
    store.log().finish_load();
  });
}

void load_locations(Engine& engine, std::uint32_t number, ArrayIn<std::uint64_t, nb::ndim<1>> rows,
                    ArrayIn<std::uint64_t, nb::ndim<1>> locations) {
  require(rows.size() == locations.size(), "rows and locations differ in length");
  const nb::gil_scoped_release release;
  engine.locked([&](RowStore& store) {
    Table& table = store.table(number);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      require(rows(i) < table.num_rows, "a delta names a row beyond its table");
      table.directory.insert(rows(i), locations(i));
    }
  });
}

void bind_lookups(nb::module_& m) {
  nb::class_<LookupSpec>(m, "LookupSpec")
      .def(
          "__init__",
          [](LookupSpec* self, const std::vector<std::uint32_t>& tables, const std::vector<int>& modes,
             const std::vector<std::size_t>& out_columns) {
            require(tables.size() == modes.size() && tables.size() == out_columns.size(),
                    "lists differ in length");
            new (self) LookupSpec;
            for (std::size_t i = 0; i < tables.size(); ++i) {
              require(modes[i] >= 0 && modes[i] <= 2, "a mode is 0 (sum), 1 (mean) or 2 (max)");
              self->features.push_back({tables[i], static_cast<PoolMode>(modes[i]), out_columns[i]});
            }
          },
          "tables"_a, "modes"_a, "out_columns"_a);

  nb::class_<Lookup>(m, "Lookup");

  nb::class_<TableUpdate>(m, "Update")
      .def(
          "__init__",
          [](TableUpdate* self, std::uint32_t table, int optimizer, float lr, float eps, float weight_decay,
             int decay, float decay_factor, float one_minus_beta1, float one_minus_beta2, bool maximize,
             float scale, std::shared_ptr<Lookup> lookup, std::size_t feature, std::uintptr_t grad_ptr,
             std::size_t grad_stride, std::uintptr_t weights_ptr, std::uintptr_t argmax_ptr,
             std::uintptr_t rows_ptr, std::uintptr_t sums_ptr, std::uint64_t num_rows) {
            require(optimizer >= 0 && optimizer <= 4, "an optimizer is 0 to 4");
            require(decay >= 0 && decay <= 2, "a decay is 0 to 2");
            require(lookup == nullptr || feature < lookup->features.size(), "no such feature in the lookup");
            new (self) TableUpdate;
            self->table = table;
            self->scalars.optimizer = static_cast<Optimizer>(optimizer);
            self->scalars.decay = static_cast<WeightDecay>(decay);
            self->scalars.maximize = maximize;
            self->scalars.lr = lr;
            self->scalars.eps = eps;
            self->scalars.weight_decay = weight_decay;
            self->scalars.decay_factor = decay_factor;
            self->scalars.one_minus_beta1 = one_minus_beta1;
            self->scalars.one_minus_beta2 = one_minus_beta2;
            self->scale = scale;
            self->lookup = std::move(lookup);
            self->feature = feature;
            self->grad = pointer<const float>(grad_ptr);
            self->grad_stride = grad_stride;
            self->per_sample_weights = pointer<const float>(weights_ptr);
            self->argmax = pointer<const std::int64_t>(argmax_ptr);
            self->rows = pointer<const std::uint64_t>(rows_ptr);
            self->sums = pointer<const float>(sums_ptr);
            self->num_rows = num_rows;
          },
          nb::kw_only(), "table"_a, "optimizer"_a, "lr"_a, "eps"_a = 0.0f, "weight_decay"_a = 0.0f,
          "decay"_a = 0, "decay_factor"_a = 1.0f, "one_minus_beta1"_a = 0.0f, "one_minus_beta2"_a = 0.0f,
          "maximize"_a = false, "scale"_a = 1.0f, "lookup"_a.none() = nb::none(), "feature"_a = 0,
          "grad_ptr"_a = 0, "grad_stride"_a = 0, "weights_ptr"_a = 0, "argmax_ptr"_a = 0, "rows_ptr"_a = 0,
          "sums_ptr"_a = 0, "num_rows"_a = 0);
}

void bind_training(nb::class_<Engine>& engine) {
  engine
      .def("forward", &forward, Release(), "spec"_a, nb::kw_only(), "indices_ptr"_a, "num_indices"_a,
           "indices_int64"_a, "offsets_ptr"_a, "num_offsets"_a, "offsets_int64"_a, "include_last_offset"_a,
           "num_bags"_a, "bag_size"_a, "weights_ptr"_a, "out_ptr"_a, "out_stride"_a, "argmax_ptr"_a, "keep"_a,
           "device"_a.none() = nb::none())
      .def(
          "per_sample_weight_grad",
          [](Engine& self, Lookup& lookup, std::size_t feature, std::uintptr_t grad_ptr,
             std::size_t grad_stride, std::uintptr_t out_ptr, DeviceCompute* device) {
            self.weight_grad(lookup, feature, pointer<const float>(grad_ptr), grad_stride,
                             pointer<float>(out_ptr), device);
          },
          Release(), "lookup"_a, "feature"_a, nb::kw_only(), "grad_ptr"_a, "grad_stride"_a, "out_ptr"_a,
          "device"_a.none() = nb::none())
      .def("row_sums", &row_sums, "lookup"_a, "feature"_a, nb::kw_only(), "grad_ptr"_a, "grad_stride"_a,
           "weights_ptr"_a, "argmax_ptr"_a, "prior_rows"_a.none() = nb::none(),
           "prior_sums"_a.none() = nb::none())
      .def(
          "step",
          [](Engine& self, const nb::typed<nb::sequence, TableUpdate>& sequence, DeviceCompute* device) {
            std::vector<TableUpdate> updates;
            for (const nb::handle item : sequence) updates.push_back(nb::cast<const TableUpdate&>(item));
            const nb::gil_scoped_release release;
            self.step(updates, device);
          },
          "updates"_a, "device"_a.none() = nb::none())
      .def(
          "read_rows",
          [](Engine& self, std::uint32_t table, Rows rows, ArrayOut<float, nb::ndim<2>> out) {
            const std::uint32_t dim =
                locked(self, [&](RowStore& store) { return store.table(table).record().dim; });
            require(out.shape(0) == rows.size() && out.shape(1) == dim,
                    "out must be float32[len(rows), embedding_dim]");
            const nb::gil_scoped_release release;
            self.read_rows(table, rows.data(), rows.size(), out.data());
          },
          "table"_a, nb::arg("rows").noconvert(), nb::arg("out").noconvert())
      .def(
          "read_records",
          [](Engine& self, std::uint32_t table, Rows rows, ArrayOut<std::uint8_t, nb::ndim<2>> out) {
            const std::size_t stride =
                locked(self, [&](RowStore& store) { return store.table(table).record().stride(); });
            require(out.shape(0) == rows.size() && out.shape(1) == stride,
                    "out must be uint8[len(rows), stride]");
            const nb::gil_scoped_release release;
            self.read_records(table, rows.data(), rows.size(), reinterpret_cast<std::byte*>(out.data()));
          },
          "table"_a, nb::arg("rows").noconvert(), nb::arg("out").noconvert())
      .def(
          "write_rows",
          [](Engine& self, std::uint32_t table, Rows rows, ArrayIn<float, nb::ndim<2>> values) {
            const std::uint32_t dim =
                locked(self, [&](RowStore& store) { return store.table(table).record().dim; });
            require(values.shape(0) == rows.size() && values.shape(1) == dim,
                    "values must be float32[len(rows), embedding_dim]");
            const nb::gil_scoped_release release;
            self.write_rows(table, rows.data(), rows.size(), values.data());
          },
          "table"_a, nb::arg("rows").noconvert(), nb::arg("values").noconvert())
      .def(
          "touched_rows",
          [](Engine& self, std::uint32_t table, std::uint64_t begin, std::size_t limit) {
            std::vector<std::int64_t> rows;
            std::uint64_t next;
            {
              const nb::gil_scoped_release release;
              next = self.touched_rows(table, begin, limit, rows);
            }
            return nb::make_tuple(own(std::move(rows)), next);
          },
          "table"_a, "begin"_a, "limit"_a)
      .def("stats", &stats)
      .def("table_counters", &table_counters);
}

void bind_ahead(nb::module_& m, nb::class_<Engine>& engine) {
  nb::class_<Ticket>(m, "Ticket").def_prop_ro("ended", [](const Ticket& ticket) {
    return ticket.state == Ticket::State::kEnded;
  });
  engine
      .def("foresee", &foresee, Release(), "spec"_a, nb::kw_only(), "indices_ptr"_a, "num_indices"_a,
           "indices_int64"_a, "offsets_ptr"_a, "num_offsets"_a, "offsets_int64"_a, "include_last_offset"_a,
           "num_bags"_a, "bag_size"_a)
      .def("stage", &stage, Release(), "ticket"_a, "share"_a, "spec"_a, nb::kw_only(), "indices_ptr"_a,
           "num_indices"_a, "indices_int64"_a, "offsets_ptr"_a, "num_offsets"_a, "offsets_int64"_a,
           "include_last_offset"_a, "num_bags"_a, "bag_size"_a)
      .def("end_ticket", &Engine::end, Release(), "ticket"_a)
      .def("begin_window", &Engine::begin_window, Release())
      .def("end_window", &Engine::end_window, Release())
      .def("enter_window", &Engine::enter_window, Release(), "batch"_a)
      .def("leave_window", &Engine::leave_window, Release())
      .def(
          "pinned_rows",
          [](Engine& self) { return self.locked([](RowStore& store) { return store.num_pinned(); }); },
          Release());
}

void bind_tables(nb::class_<Engine>& engine) {
  engine
      .def(
          "add_table",
          [](Engine& self, const std::string& name, std::uint64_t num_rows, std::uint32_t dim, int dtype,
             int init_kind, float init_a, float init_b, std::uint64_t key, std::int64_t padding_row,
             const std::vector<std::optional<std::uint64_t>>& budgets) {
            require(dtype >= 0 && dtype <= 2, "a dtype is 0 (float32), 1 (float16) or 2 (bfloat16)");
            require(init_kind >= 0 && init_kind <= 2,
                    "an init_kind is 0 (constant), 1 (uniform) or 2 (normal)");
            RowInit init;
            init.kind = static_cast<InitKind>(init_kind);
            init.a = init_a;
            init.b = init_b;
            init.key = key;
            init.padding_row = padding_row;
            require(budgets.empty() || budgets.size() == kSlotTiers, "budgets are by kind of tier");
            TableBudgets own;
            std::copy(budgets.begin(), budgets.end(), own.begin());
            return self.add_table(name, num_rows, dim, static_cast<WeightType>(dtype), init, own);
          },
          Release(), nb::kw_only(), "name"_a, "num_rows"_a, "dim"_a, "dtype"_a, "init_kind"_a, "init_a"_a,
          "init_b"_a, "key"_a, "padding_row"_a = -1,
          "budgets"_a = std::vector<std::optional<std::uint64_t>>{})
      .def("add_layout", &Engine::add_layout, Release(), "table"_a, "state_floats"_a, "initial_state"_a)
      .def("use_layout", &Engine::use_layout, Release(), "table"_a, "layout"_a)
      .def("table_version", &Engine::version, Release(), "table"_a)
      .def(
          "update_count",
          [](Engine& self, std::uint32_t table) {
            return self.locked([&](RowStore& store) { return store.table(table).update_count; });
          },
          Release(), "table"_a)
      .def("set_update_count", &Engine::set_update_count, Release(), "table"_a, "count"_a)
      .def("table_info", &table_info, "table"_a);
}

void bind_log(nb::class_<Engine>& engine) {
  engine
      .def(
          "open_log",
          [](Engine& self, const std::string& path, const std::string& io_engine) {
            return self.locked([&](RowStore& store) { return store.log().open(path, io_engine); });
          },
          Release(), "path"_a, "io_engine"_a)
      .def("refused_engines",
           [](Engine& self) { return locked(self, [](RowStore& store) { return store.log().refused(); }); })
      .def(
          "open_base",
          [](Engine& self, const std::string& path) {
            self.locked([&](RowStore& store) { store.open_base(path); });
          },
          Release(), "path"_a)
      .def("load_segments", &load_segments, nb::arg("numbers").noconvert(), nb::arg("ids").noconvert(),
           nb::arg("epochs").noconvert(), nb::arg("rows").noconvert(), nb::arg("used_pages").noconvert(),
           nb::arg("offsets").noconvert(), nb::arg("superseded").noconvert())
      .def(
          "set_base",
          [](Engine& self, std::uint32_t table, ArrayIn<std::uint64_t, nb::ndim<1>> pages,
             ArrayIn<std::uint64_t, nb::ndim<1>> offsets) {
            require(pages.size() == offsets.size(), "pages and offsets differ in length");
            const nb::gil_scoped_release release;
            self.locked([&](RowStore& store) {
              store.table(table).directory.set_base(pages.data(), offsets.data(), pages.size());
            });
          },
          "table"_a, nb::arg("pages").noconvert(), nb::arg("offsets").noconvert())
      .def("load_locations", &load_locations, "table"_a, nb::arg("rows").noconvert(),
           nb::arg("locations").noconvert())
      .def(
          "next_sealed",
          [](Engine& self, std::size_t max_group, double timeout_seconds, std::size_t at_least) {
            std::vector<std::shared_ptr<PendingSegment>> taken;
            {
              const nb::gil_scoped_release release;
              taken = self.next_sealed(max_group, timeout_seconds, at_least);
            }
            nb::list list;
            for (auto& segment : taken) list.append(nb::cast(SealedSegment{std::move(segment)}));
            return list;
          },
          "max_group"_a, "timeout_seconds"_a, "at_least"_a = 1)
      .def("wake", &Engine::wake, Release())
      .def("publish", &Engine::publish, Release(), "numbers"_a, "offsets"_a)
      .def(
          "requeue",
          [](Engine& self, const nb::sequence& sequence) {
            std::vector<std::shared_ptr<PendingSegment>> segments;
            for (const nb::handle item : sequence) segments.push_back(nb::cast<SealedSegment&>(item).pending);
            const nb::gil_scoped_release release;
            self.requeue(segments);
          },
          "segments"_a)
      .def("fail", &Engine::fail, Release(), "errno"_a, "message"_a)
      .def("recover", &Engine::recover, Release())
      .def(
          "pending_segments",
          [](Engine& self, std::uint64_t epoch) {
            return self.locked([&](RowStore& store) { return store.log().pending_segments(epoch); });
          },
          Release(), "epoch"_a)
      .def(
          "take_deletable",
          [](Engine& self, const std::vector<std::uint64_t>& checkpoints, std::size_t limit) {
            return self.locked(
                [&](RowStore& store) { return store.log().take_deletable(checkpoints, limit); });
          },
          Release(), "checkpoints"_a, "limit"_a)
      .def(
          "deleted",
          [](Engine& self, const std::vector<std::uint32_t>& numbers) {
            self.locked([&](RowStore& store) {
              for (const std::uint32_t number : numbers) store.log().deleted(number);
            });
          },
          Release(), "numbers"_a)
      .def(
          "undelete",
          [](Engine& self, const std::vector<std::uint32_t>& numbers) {
            self.locked([&](RowStore& store) {
              for (const std::uint32_t number : numbers) store.log().undelete(number);
            });
          },
          Release(), "numbers"_a)
      .def("empty_garbage", &empty_garbage, "checkpoints"_a, "limit"_a, nb::kw_only(), "target"_a,
           "young_target"_a, "old_share"_a, "slack"_a, "only_young"_a)
      .def(
          "log_use",
          [](Engine& self, const Epochs& checkpoints) {
            const LogUse use = self.locked([&](RowStore& store) { return store.log().use(checkpoints); });
            return std::tuple(use.live, use.held, use.dead);
          },
          Release(), "checkpoints"_a)
      .def("segments", &segments);
}

void bind_checkpoints(nb::class_<Engine>& engine) {
  engine
      .def(
          "epoch", [](Engine& self) { return self.locked([](RowStore& store) { return store.epoch(); }); },
          Release())
      .def("begin_checkpoint", &Engine::begin_checkpoint, Release())
      .def("sweep", &Engine::sweep, Release(), "max_rows"_a, "timeout_seconds"_a = 0.0)
      .def(
          "owed_rows", [](Engine& self) { return self.locked([](RowStore& store) { return store.owed(); }); },
          Release())
      .def(
          "flush",
          [](Engine& self, std::uint64_t epoch, bool closes, std::size_t meta_bytes) {
            self.locked([&](RowStore& store) { store.log().flush(epoch, closes, meta_bytes); });
            self.wake();
          },
          Release(), "epoch"_a, "closes"_a, "meta_bytes"_a = 0)
      .def("changes", &changes, "epoch"_a)
      .def(
          "finish_checkpoint",
          [](Engine& self, std::uint64_t epoch, std::uint64_t oldest_retained) {
            self.locked([&](RowStore& store) { store.log().forget(epoch, oldest_retained); });
          },
          Release(), "epoch"_a, "oldest_retained"_a)
      .def("evacuate", &evacuate, Release(), "number"_a);
}

}  // namespace

void bind_engine(nb::module_& m) {
  bind_lookups(m);
  nb::class_<Engine> engine(m, "Engine");
  engine
      .def(nb::new_([](const nb::sequence& tiers, int num_threads, std::uint32_t incarnation,
                       std::uint64_t epoch, std::uint32_t max_pending_segments, int eviction) {
             require(eviction >= 0 && eviction <= 2, "an eviction is 0 (lru), 1 (lfu) or 2 (s3-fifo)");
             return std::shared_ptr<Engine>(
                 new Engine(tiers_from(tiers), num_threads, incarnation, epoch, max_pending_segments,
                            static_cast<PolicyKind>(eviction)),
                 LeaveInForkedChild{});
           }),
           nb::kw_only(), "tiers"_a, "num_threads"_a, "incarnation"_a, "epoch"_a,
           "max_pending_segments"_a = 32, "eviction"_a = 0)
      .def("set_num_threads", &Engine::set_num_threads, Release(), "n"_a)
      .def("close", &Engine::close, Release());
  bind_tables(engine);
  bind_training(engine);
  bind_ahead(m, engine);
  bind_log(engine);
  bind_checkpoints(engine);
}

}  // namespace mtrains
