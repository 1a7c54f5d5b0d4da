// Simulations of recorded traces, for mtrains.profiler.
#include "mtrains/simulator.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>
#include <utility>

#include "arrays.h"
#include "mtrains/reuse.h"
#include "mtrains/tracked_table.h"

using namespace nanobind::literals;

namespace mtrains {
namespace {

constexpr const char* kPolicyNames[] = {"lru", "lfu", "s3-fifo"};

PolicyKind policy_named(const std::string& name) {
  for (std::uint8_t i = 0; i < std::size(kPolicyNames); ++i) {
    if (name == kPolicyNames[i]) return static_cast<PolicyKind>(i);
  }
  throw std::invalid_argument("an eviction policy is lru, lfu or s3-fifo, got " + name);
}

template <typename T>
std::span<const T> span_of(const ArrayIn<T, nb::ndim<1>>& array) {
  return {array.data(), array.size()};
}

void make_trace(AccessTrace* self, ArrayIn<std::uint32_t, nb::ndim<1>> tables,
                ArrayIn<std::int64_t, nb::ndim<1>> rows, ArrayIn<std::uint32_t, nb::ndim<1>> batches,
                std::uint32_t num_batches) {
  const nb::gil_scoped_release release;
  new (self) AccessTrace(span_of(tables), span_of(rows), span_of(batches), num_batches);
}

nb::dict simulate(const AccessTrace& trace, std::uint32_t capacity, const std::string& policy,
                  std::uint32_t lookahead, std::uint32_t depth, bool evict_after, std::uint32_t lfu_decay,
                  std::uint32_t lfu_remembered, double max_pinned_ratio, std::vector<std::uint32_t> weights,
                  std::uint32_t rows_per_block) {
  SimulationSpec spec;
  spec.capacity = capacity;
  spec.policy = policy_named(policy);
  spec.lfu = {lfu_decay, lfu_remembered};
  spec.lookahead = lookahead;
  spec.depth = depth;
  spec.max_pinned_ratio = max_pinned_ratio;
  spec.evict_after = evict_after;
  spec.weights = std::move(weights);
  spec.rows_per_block = rows_per_block;
  SimulationCounts counts;
  std::vector<std::uint32_t> batches;
  {
    const nb::gil_scoped_release release;
    counts = Simulator(trace, spec).run();
    batches.reserve(3 * counts.batches.size());
    for (const AccessCounts& batch : counts.batches)
      batches.insert(batches.end(), {batch.hits, batch.new_rows, batch.fetches});
  }
  const std::size_t num_batches = counts.batches.size();
  nb::dict result;
  result["hits"] = own(std::move(counts.hits));
  result["new_rows"] = own(std::move(counts.new_rows));
  result["fetches"] = own(std::move(counts.fetches));
  result["batches"] = own(std::move(batches), {num_batches, 3});
  result["evictions"] = counts.evictions;
  result["batches_ahead"] = counts.batches_ahead;
  result["split_batches"] = counts.split_batches;
  result["block_reads"] = counts.block_reads;
  return result;
}

NumpyArray<std::uint32_t> times_of(const AccessTrace& trace) {
  std::vector<std::uint32_t> times;
  {
    const nb::gil_scoped_release release;
    times = reuse_times(trace);
  }
  return own(std::move(times));
}

NumpyArray<std::uint64_t> distances_of(const AccessTrace& trace, const std::vector<std::uint32_t>& weights) {
  std::vector<std::uint64_t> distances;
  {
    const nb::gil_scoped_release release;
    distances = reuse_distances(trace, weights);
  }
  return own(std::move(distances));
}

template <typename T>
NumpyArray<T> copy_of(std::span<const T> values) {
  return own(std::vector<T>(values.begin(), values.end()));
}

void make_table(TrackedTable* self, std::uint32_t max_rows, std::uint32_t hot_rows, std::uint64_t seed,
                std::vector<std::uint32_t> batch_sizes, std::uint32_t rows_per_page,
                std::uint32_t samples_a_unit, std::uint32_t sample_at_rows) {
  new (self) TrackedTable(
      {max_rows, hot_rows, seed, std::move(batch_sizes), rows_per_page, samples_a_unit, sample_at_rows});
}

// Called once a module and step: an array object would cost more than the call.
void add_bags(TrackedTable& table, std::uintptr_t indices, std::size_t num_indices, bool indices_int64,
              std::uintptr_t offsets, std::size_t num_offsets, std::int64_t num_bags,
              std::int64_t first_sample, std::int64_t padding_row) {
  const nb::gil_scoped_release release;
  const std::span<const std::int64_t> begins{pointer<const std::int64_t>(offsets), num_offsets};
  if (indices_int64) {
    table.add_bags(std::span{pointer<const std::int64_t>(indices), num_indices}, begins, num_bags,
                   first_sample, padding_row);
  } else {
    table.add_bags(std::span{pointer<const std::int32_t>(indices), num_indices}, begins, num_bags,
                   first_sample, padding_row);
  }
}

void add_lookups(TrackedTable& table, ArrayIn<std::int64_t, nb::ndim<1>> rows,
                 ArrayIn<std::int64_t, nb::ndim<1>> samples) {
  const nb::gil_scoped_release release;
  table.add(span_of(rows), span_of(samples));
}

nb::dict tracked_of(const TrackedTable& table) {
  TrackedAccesses tracked;
  {
    const nb::gil_scoped_release release;
    tracked = table.tracked();
  }
  nb::dict result;
  result["rows"] = own(std::move(tracked.rows));
  result["num_hot"] = tracked.num_hot;
  result["weight"] = tracked.weight;
  result["accesses"] = own(std::move(tracked.accesses));
  result["times"] = own(std::move(tracked.times));
  result["gaps"] = own(std::move(tracked.gaps));
  return result;
}

}  // namespace

void bind_simulator(nb::module_& m) {
  m.attr("MAX_SIMULATED_DEPTH") = kMaxDepth;
  nb::class_<AccessTrace>(m, "AccessTrace")
      .def("__init__", &make_trace, nb::arg("tables").noconvert(), nb::arg("rows").noconvert(),
           nb::arg("batches").noconvert(), "num_batches"_a)
      .def_prop_ro("num_batches", &AccessTrace::num_batches)
      .def_prop_ro("num_accesses", &AccessTrace::num_accesses)
      .def_prop_ro("num_unique", &AccessTrace::num_unique)
      .def_prop_ro("num_rows", &AccessTrace::num_rows)
      .def_prop_ro("largest_batch", &AccessTrace::largest_batch)
      .def("accesses", [](const AccessTrace& trace) { return copy_of(trace.accesses()); })
      .def("begins", [](const AccessTrace& trace) { return copy_of(trace.begins()); })
      .def("row_tables", [](const AccessTrace& trace) { return copy_of(trace.row_tables()); })
      .def("reuse_times", &times_of)
      .def("reuse_distances", &distances_of, "weights"_a = std::vector<std::uint32_t>{});
  m.def("simulate", &simulate, "trace"_a, nb::kw_only(), "capacity"_a, "policy"_a, "lookahead"_a, "depth"_a,
        "evict_after"_a, "lfu_decay"_a, "lfu_remembered"_a, "max_pinned_ratio"_a,
        "weights"_a = std::vector<std::uint32_t>{}, "rows_per_block"_a = 0);
  nb::class_<TrackedTable>(m, "TrackedTable")
      .def("__init__", &make_table, nb::kw_only(), "max_rows"_a, "hot_rows"_a, "seed"_a, "batch_sizes"_a,
           "rows_per_page"_a, "samples_a_unit"_a = 1, "sample_at_rows"_a = 0)
      .def("add_bags", &add_bags, nb::kw_only(), "indices_ptr"_a, "num_indices"_a, "indices_int64"_a,
           "offsets_ptr"_a, "num_offsets"_a, "num_bags"_a, "first_sample"_a, "padding_row"_a)
      .def("add", &add_lookups, nb::arg("rows").noconvert(), nb::arg("samples").noconvert())
      .def("sample", &TrackedTable::sample, nb::call_guard<nb::gil_scoped_release>())
      .def("coarsen", &TrackedTable::coarsen, nb::call_guard<nb::gil_scoped_release>())
      .def("tracked", &tracked_of)
      .def_prop_ro("sampled", &TrackedTable::sampled)
      .def_prop_ro("num_lookups", &TrackedTable::num_lookups)
      .def_prop_ro("num_accesses", &TrackedTable::num_accesses)
      .def_prop_ro("num_rows", &TrackedTable::num_rows)
      .def_prop_ro("least_row", &TrackedTable::least_row)
      .def_prop_ro("largest_row", &TrackedTable::largest_row)
      .def_prop_ro("samples_a_unit", &TrackedTable::samples_a_unit)
      .def_prop_ro("num_unique", &TrackedTable::num_unique)
      .def_prop_ro("num_page_accesses", &TrackedTable::num_page_accesses)
      .def_prop_ro("num_pages", &TrackedTable::num_pages);
}

}  // namespace mtrains
