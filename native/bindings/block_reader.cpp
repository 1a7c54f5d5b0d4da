// Reads of blocks of any file, as the log tier does them.
#include "mtrains/block_reader.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include <cstdint>
#include <stdexcept>
#include <vector>

#include "arrays.h"

using namespace nanobind::literals;

namespace mtrains {
namespace {

void read_blocks(BlockReader& reader, ArrayIn<std::uint64_t, nb::ndim<1>> offsets,
                 ArrayOut<std::uint8_t, nb::ndim<2>> out) {
  if (out.shape(0) != offsets.shape(0) || out.shape(1) != kBlockBytes) {
    throw std::invalid_argument("out must have a row of " + std::to_string(kBlockBytes) +
                                " bytes for each of the " + std::to_string(offsets.shape(0)) + " offsets");
  }
  if (reinterpret_cast<std::uintptr_t>(out.data()) % kBlockBytes != 0)
    throw std::invalid_argument("out must begin at a multiple of " + std::to_string(kBlockBytes) + " bytes");
  std::vector<BlockRead> reads;
  reads.reserve(offsets.size());
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    const std::uint64_t offset = offsets.data()[i];
    if (offset % kBlockBytes != 0)
      throw std::invalid_argument("offset " + std::to_string(offset) + " at position " + std::to_string(i) +
                                  " is no multiple of " + std::to_string(kBlockBytes));
    reads.push_back({offset, reinterpret_cast<std::byte*>(out.data()) + i * kBlockBytes});
  }
  const nb::gil_scoped_release release;
  reader.read(reads);
}

}  // namespace

void bind_block_reader(nb::module_& m) {
  nb::class_<BlockReader>(m, "BlockReader")
      .def_prop_ro("engine", &BlockReader::engine)
      .def_prop_ro("refused", &BlockReader::refused)
      .def("read", &read_blocks, nb::arg("offsets").noconvert(), nb::arg("out").noconvert());
  m.def("open_block_reader", &BlockReader::open, "path"_a, "engine"_a, "queue_depth"_a);
}

}  // namespace mtrains
