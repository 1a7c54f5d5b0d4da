// Segments as Python sees them: those that wait for their commit, and those read back for verify and rebuild.
#include "segments.h"

#include <fcntl.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>

#include "arrays.h"
#include "mtrains/errors.h"

using namespace nanobind::literals;

namespace mtrains {
namespace {

// A segment read back: parsed, checked, its rows flat in order of blocks and positions.
struct SegmentImage {
  std::vector<std::byte> image = std::vector<std::byte>(kSegmentImageBytes);
  SegmentHeader header;
  std::vector<std::uint32_t> bad_blocks;
  std::vector<std::uint32_t> tables;
  std::vector<std::uint16_t> layouts;
  std::vector<std::uint64_t> rows, locations;

  void parse() {
    header = parse_header(image.data() + kValueOffset, kSegmentBytes);
    for (std::uint32_t b = 0; b < header.blocks.size(); ++b) {
      const BlockContents& block = header.blocks[b];
      const std::byte* data = block_in_image(image.data(), b);
      const BlockTrailer trailer = trailer_of(data);
      if (!check_block(data, header.segment_id, b) ||
          trailer.table != static_cast<std::uint16_t>(block.table) ||
          trailer.layout != static_cast<std::uint8_t>(block.layout)) {
        bad_blocks.push_back(b);
      }
      for (std::uint32_t position = 0; position < block.rows.size(); ++position) {
        tables.push_back(block.table);
        layouts.push_back(block.layout);
        rows.push_back(block.rows[position]);
        locations.push_back(make_location(header.number, b, position));
      }
    }
  }

  nb::bytes record(std::size_t i) {
    const std::uint32_t b = block_of(locations.at(i));
    const std::size_t stride = header.blocks[b].stride;
    std::string bytes;
    if (stride <= kBlockDataBytes) {
      const std::byte* data = block_in_image(image.data(), b) + position_of(locations[i]) * stride;
      bytes.assign(reinterpret_cast<const char*>(data), stride);
    } else {
      for (std::uint32_t chunk = 0; bytes.size() < stride; ++chunk) {
        const std::byte* data = block_in_image(image.data(), b - chunk);
        bytes.append(reinterpret_cast<const char*>(data), std::min(kBlockDataBytes, stride - bytes.size()));
      }
    }
    return nb::bytes(bytes.data(), bytes.size());
  }
};

std::unique_ptr<SegmentImage> read_segment(const std::string& path, std::uint64_t offset) {
  const nb::gil_scoped_release release;
  auto segment = std::make_unique<SegmentImage>();
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) throw IoError(errno, "cannot open " + path);
  std::size_t done = 0;
  while (done < kSegmentBytes) {
    const ssize_t n = pread(fd, segment->image.data() + kValueOffset + done, kSegmentBytes - done,
                            static_cast<off_t>(offset + done));
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n <= 0) {
      const int code = n < 0 ? errno : ENODATA;
      close(fd);
      throw IoError(code, "cannot read the segment at offset " + std::to_string(offset) + " of " + path);
    }
    done += static_cast<std::size_t>(n);
  }
  close(fd);
  segment->parse();
  return segment;
}

std::unique_ptr<SegmentImage> check_segment(const void* data, std::size_t size) {
  auto segment = std::make_unique<SegmentImage>();
  if (size != kSegmentBytes)
    throw CorruptionError("a segment has " + std::to_string(kSegmentBytes) + " bytes, not " +
                          std::to_string(size));
  std::memcpy(segment->image.data() + kValueOffset, data, size);
  segment->parse();
  return segment;
}

template <typename T>
NumpyArray<T> view(std::vector<T>& values, nb::handle owner) {
  return NumpyArray<T>(values.data(), {values.size()}, owner);
}

}  // namespace

void bind_segments(nb::module_& m) {
  nb::class_<SegmentImage>(m, "SegmentImage")
      .def_prop_ro("segment_id", [](const SegmentImage& s) { return s.header.segment_id; })
      .def_prop_ro("number", [](const SegmentImage& s) { return s.header.number; })
      .def_prop_ro("epoch", [](const SegmentImage& s) { return s.header.epoch; })
      .def_prop_ro("closes", [](const SegmentImage& s) { return s.header.closes; })
      .def_prop_ro("used_pages",
                   [](const SegmentImage& s) {
                     return used_pages(s.header, header_bytes(s.header, s.header.meta.size()));
                   })
      .def_prop_ro(
          "meta", [](const SegmentImage& s) { return nb::bytes(s.header.meta.data(), s.header.meta.size()); })
      .def_prop_ro("bad_blocks", [](const SegmentImage& s) { return s.bad_blocks; })
      .def_prop_ro("tables",
                   [](nb::handle_t<SegmentImage> s) { return view(nb::cast<SegmentImage&>(s).tables, s); })
      .def_prop_ro("layouts",
                   [](nb::handle_t<SegmentImage> s) { return view(nb::cast<SegmentImage&>(s).layouts, s); })
      .def_prop_ro("rows",
                   [](nb::handle_t<SegmentImage> s) { return view(nb::cast<SegmentImage&>(s).rows, s); })
      .def_prop_ro("locations",
                   [](nb::handle_t<SegmentImage> s) { return view(nb::cast<SegmentImage&>(s).locations, s); })
      .def("records", &SegmentImage::record, "i"_a);
  m.def("read_segment", &read_segment, "path"_a, "offset"_a);
  m.def(
      "check_segment", [](nb::bytes value) { return check_segment(value.c_str(), value.size()); }, "value"_a);
  m.def(
      "check_segment",
      [](ArrayIn<std::uint8_t, nb::ndim<1>> value) { return check_segment(value.data(), value.size()); },
      nb::arg("value").noconvert());

  nb::class_<SealedSegment>(m, "SealedSegment")
      .def_prop_ro("number", [](const SealedSegment& s) { return s.pending->header.number; })
      .def_prop_ro("segment_id", [](const SealedSegment& s) { return s.pending->header.segment_id; })
      .def_prop_ro("epoch", [](const SealedSegment& s) { return s.pending->header.epoch; })
      .def_prop_ro("closes", [](const SealedSegment& s) { return s.pending->header.closes; })
      .def_prop_ro("num_rows",
                   [](const SealedSegment& s) {
                     std::size_t rows = 0;
                     for (const BlockContents& block : s.pending->header.blocks) rows += block.rows.size();
                     return rows;
                   })
      .def_prop_ro("tables",
                   [](const SealedSegment& s) {
                     std::set<std::uint32_t> tables;
                     for (const BlockContents& block : s.pending->header.blocks) tables.insert(block.table);
                     return std::vector<std::uint32_t>(tables.begin(), tables.end());
                   })
      .def(
          "seal",
          [](SealedSegment& s, nb::bytes meta) {
            s.pending->header.meta.assign(meta.c_str(), meta.size());
            const nb::gil_scoped_release release;
            seal_image(s.pending->header, s.pending->image.data());
          },
          "meta"_a)
      .def_prop_ro("value", [](nb::handle_t<SealedSegment> s) {
        std::byte* image = nb::cast<SealedSegment&>(s).pending->image.data();
        return NumpyArray<std::uint8_t>(reinterpret_cast<std::uint8_t*>(image + kValueOffset),
                                        {kSegmentBytes}, s);
      });
}

}  // namespace mtrains
