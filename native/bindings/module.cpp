#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <stdexcept>

#include "arrays.h"
#include "device.h"
#include "errors.h"
#include "mtrains/crc32c.h"
#include "mtrains/directory.h"
#include "mtrains/kernels.h"
#include "mtrains/lmdb_walk.h"
#include "mtrains/segment_format.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace mtrains {

void bind_block_reader(nb::module_& m);
void bind_engine(nb::module_& m);
void bind_row_sums(nb::module_& m);
void bind_segments(nb::module_& m);
void bind_simulator(nb::module_& m);
void bind_slot_memory(nb::module_& m);

namespace {

constexpr const char* kIsaNames[] = {"portable", "avx2", "avx512"};

void set_isa_by_name(const std::string& name) {
  for (int i = 0; i < 3; ++i) {
    if (name != kIsaNames[i]) continue;
    if (static_cast<Isa>(i) > best_isa()) throw std::invalid_argument("this CPU has no " + name);
    set_isa(static_cast<Isa>(i));
    return;
  }
  throw std::invalid_argument("an instruction set is portable, avx2 or avx512, got " + name);
}

nb::object locate(const std::string& path, std::uint64_t min_key, std::uint64_t max_key) {
  std::vector<std::uint64_t> flat;
  {
    const nb::gil_scoped_release release;
    for (const LocatedValue& value : locate_values(path, min_key, max_key)) {
      flat.insert(flat.end(), {value.key, value.offset, value.size});
    }
  }
  const std::size_t rows = flat.size() / 3;
  return nb::cast(own(std::move(flat), {rows, 3}));
}

}  // namespace
}  // namespace mtrains

NB_MODULE(_native, m) {
  using namespace mtrains;
  nb::set_leak_warnings(false);  // objects that live at exit are ordinary: stores that a script did not close
  register_errors();
  m.attr("BUILD_TYPE") = MTRAINS_BUILD_TYPE;
  m.attr("SEGMENT_BYTES") = kSegmentBytes;
  m.attr("BASE_PAGE_BYTES") = kBasePageBytes;
  m.attr("BASE_PAGE_ROWS") = kBasePageRows;
  m.def("isa", [] { return kIsaNames[static_cast<int>(isa())]; });
  m.def("set_isa", &set_isa_by_name, "name"_a);
  m.def(
      "crc32c", [](nb::bytes data, std::uint32_t crc) { return crc32c(data.c_str(), data.size(), crc); },
      "data"_a, "crc"_a = 0);
  m.def(
      "crc32c",
      [](ArrayIn<std::uint8_t, nb::ndim<1>> data, std::uint32_t crc) {
        return crc32c(data.data(), data.size(), crc);
      },
      nb::arg("data").noconvert(), "crc"_a = 0);
  m.def("locate_values", &locate, "path"_a, "min_key"_a = 0, "max_key"_a = ~std::uint64_t{0});
  bind_block_reader(m);
  bind_segments(m);
  bind_row_sums(m);
  bind_simulator(m);
  bind_slot_memory(m);
  bind_device(m);
  bind_engine(m);
}
