// Simulations of recorded traces, for mtrains.profiler.
#include "mtrains/simulator.h"

#include <nanobind/stl/string.h>

#include <stdexcept>
#include <string>
#include <utility>

#include "arrays.h"

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
                  std::uint32_t lfu_remembered, double max_pinned_ratio) {
  SimulationSpec spec;
  spec.capacity = capacity;
  spec.policy = policy_named(policy);
  spec.lfu = {lfu_decay, lfu_remembered};
  spec.lookahead = lookahead;
  spec.depth = depth;
  spec.max_pinned_ratio = max_pinned_ratio;
  spec.evict_after = evict_after;
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
      .def_prop_ro("largest_batch", &AccessTrace::largest_batch);
  m.def("simulate", &simulate, "trace"_a, nb::kw_only(), "capacity"_a, "policy"_a, "lookahead"_a, "depth"_a,
        "evict_after"_a, "lfu_decay"_a, "lfu_remembered"_a, "max_pinned_ratio"_a);
}

}  // namespace mtrains
