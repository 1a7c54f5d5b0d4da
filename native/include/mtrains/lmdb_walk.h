// File offsets of the big values of an LMDB 0.9 data file, found by reading its B-tree pages with pread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace mtrains {

struct LocatedValue {
  std::uint64_t key;     // 8-byte big-endian key, decoded
  std::uint64_t offset;  // file offset of the value's first byte (page number * page size + 16)
  std::uint64_t size;    // bytes of the value
};

// Walks the newest committed tree of the main database of `path` (data.mdb), ascending by key, reading branch
// and leaf pages only. Keys outside [min_key, max_key] are left out, whatever their values; subtrees wholly
// outside are not read. Throws IoError (read) or CorruptionError (not an LMDB 0.9 file, a page that names
// another number, a value within the range that is no overflow chain, a key that is not 8 bytes). REQUIRES:
// the caller is the only writer, or holds a read transaction of the environment that began before the walk:
// then no page of the walked tree is used again while it is walked.
std::vector<LocatedValue> locate_values(const std::string& path, std::uint64_t min_key = 0,
                                        std::uint64_t max_key = ~std::uint64_t{0});

}  // namespace mtrains
