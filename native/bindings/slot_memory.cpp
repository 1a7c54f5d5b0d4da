// The memory of byte-addressable tiers, and devices emulated by waiting. Python provides the file of an arena
// and is called back when it must grow.
#include "mtrains/slot_memory.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/unique_ptr.h>

#include <memory>
#include <string>
#include <utility>

#include "arrays.h"
#include "mtrains/bandwidth_limit.h"
#include "mtrains/errors.h"

using namespace nanobind::literals;

namespace mtrains {
namespace {

// The same error as one of the core, which native callers can tell apart. REQUIRES: the GIL.
[[noreturn]] void rethrow_as_core_error(nb::python_error& error) {
  const nb::module_ errors = nb::module_::import_("mtrains.errors");
  const std::string text = nb::str(error.value()).c_str();
  if (error.matches(PyExc_OSError)) {
    const nb::object code = error.value().attr("errno");
    throw IoError(code.is_none() ? 0 : nb::cast<int>(code), text);
  }
  if (error.matches(errors.attr("CapacityError"))) throw CapacityError(text);
  if (error.matches(errors.attr("StateError"))) throw StateError(text);
  throw error;
}

FileMemory::Grow grow_by(nb::callable callback) {
  // The last reference may go in a thread of the core, which does not hold the GIL.
  const std::shared_ptr<nb::callable> kept(new nb::callable(std::move(callback)), [](nb::callable* p) {
    if (!nb::is_alive()) return;  // the interpreter has ended
    const nb::gil_scoped_acquire acquire;
    delete p;
  });
  return [kept]() -> std::optional<FileExtent> {
    const nb::gil_scoped_acquire acquire;
    try {
      const nb::object extent = (*kept)();
      if (extent.is_none()) return std::nullopt;
      return FileExtent{nb::cast<std::uint64_t>(extent[0]), nb::cast<std::uint64_t>(extent[1])};
    } catch (nb::python_error& error) {
      rethrow_as_core_error(error);
    }
  };
}

NumpyArray<std::uint8_t> view(nb::handle_t<SlotRange> range) {
  const SlotRange& self = nb::cast<SlotRange&>(range);
  return NumpyArray<std::uint8_t>(reinterpret_cast<std::uint8_t*>(self.data()), {self.committed()}, range);
}

}  // namespace

void bind_slot_memory(nb::module_& m) {
  nb::class_<SlotRange>(m, "SlotRange")
      .def_prop_ro("max_bytes", &SlotRange::max_bytes)
      .def_prop_ro("committed", &SlotRange::committed)
      .def("commit", &SlotRange::commit, "bytes"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("decommit", &SlotRange::decommit, "bytes"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("view", &view);
  nb::class_<SlotMemory>(m, "SlotMemory")
      .def_prop_ro("unit_bytes", &SlotMemory::unit_bytes)
      .def_prop_ro("bytes_in_use", &SlotMemory::bytes_in_use)
      .def("reserve", &SlotMemory::reserve, "max_bytes"_a, "huge"_a = false, nb::keep_alive<0, 1>());
  nb::class_<FileMemory, SlotMemory>(m, "FileMemory")
      .def(nb::new_([](int fd, std::size_t budget_bytes, nb::callable grow) {
             return std::make_shared<FileMemory>(fd, budget_bytes, grow_by(std::move(grow)));
           }),
           "fd"_a, "budget_bytes"_a, "grow"_a)
      .def_prop_ro("budget_bytes", &FileMemory::budget_bytes)
      .def_static("unit_for", &FileMemory::unit_for, "budget_bytes"_a);
  nb::class_<BandwidthLimit>(m, "BandwidthLimit")
      .def(nb::new_([](double read_bytes_per_second, double write_bytes_per_second,
                       double read_latency_seconds, double write_latency_seconds,
                       std::uint32_t granule_bytes) {
             return std::make_shared<BandwidthLimit>(
                 DeviceLimits{read_bytes_per_second, write_bytes_per_second, read_latency_seconds,
                              write_latency_seconds, granule_bytes});
           }),
           nb::kw_only(), "read_bytes_per_second"_a, "write_bytes_per_second"_a, "read_latency_seconds"_a,
           "write_latency_seconds"_a, "granule_bytes"_a)
      .def("charge_read", &BandwidthLimit::charge_read, "num_requests"_a, "bytes_each"_a,
           nb::call_guard<nb::gil_scoped_release>())
      .def("charge_write", &BandwidthLimit::charge_write, "num_requests"_a, "bytes_each"_a,
           nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("read_seconds_slept", &BandwidthLimit::read_seconds_slept)
      .def_prop_ro("write_seconds_slept", &BandwidthLimit::write_seconds_slept);
}

}  // namespace mtrains
