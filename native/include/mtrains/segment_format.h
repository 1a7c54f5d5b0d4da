// The bytes of a segment: one value of rows.lmdb, 256 pages less the 16 bytes of LMDB's page header.
//
// Blocks are laid from the end, so that they are page-aligned in the file and their place does not depend on
// the size of the header: with `end` the file offset just after the value (a multiple of 4096), block b is at
// end - (b + 1) * 4096. All integers are little-endian.
//
//   header   0 magic "MTRSEG01"   8 segment id u64   16 epoch u64   24 segment number u32   28 flags u32 (1:
//   closes its epoch)
//            32 header bytes u32  36 blocks u32      40 rows u32    44 meta bytes u32       48 CRC32C u32 52
//            zero u32 56 one descriptor of 16 bytes a block: table u32, layout u16, rows u16, stride u32,
//            width of row ids u8 (4 or 8), chunk u8, zero u16
//               then the row ids of each block in turn, then the meta bytes.
//            The CRC covers the first `header bytes` with its own field as zero.
//   block    rows of one table and one layout, position p at p * stride; from 4080 a trailer: segment id u64,
//   block u8, layout u8,
//            table u16, CRC32C u32 of the 4092 bytes before.
//   A record longer than 4080 bytes takes n consecutive blocks b, b - 1, .. b - n + 1 (rising file offsets),
//   4080 bytes of
//            it in each; its location names block b.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "mtrains/location.h"

namespace mtrains {

inline constexpr std::size_t kPageBytes = 4096;
inline constexpr std::size_t kSegmentPages = 256;
inline constexpr std::size_t kSegmentImageBytes = kSegmentPages * kPageBytes;
inline constexpr std::size_t kValueOffset = 16;  // LMDB's header of an overflow chain
inline constexpr std::size_t kSegmentBytes = kSegmentImageBytes - kValueOffset;
inline constexpr std::size_t kBlockDataBytes = 4080;
inline constexpr std::uint32_t kMaxBlocks = kSegmentPages - 1;
inline constexpr std::size_t kSegmentHeaderBytes = 56;
inline constexpr std::size_t kBlockDescriptorBytes = 16;

inline std::uint32_t rows_per_block(std::size_t stride) {
  return stride > kBlockDataBytes ? 1 : static_cast<std::uint32_t>(kBlockDataBytes / stride);
}
inline std::uint32_t blocks_per_record(std::size_t stride) {
  return static_cast<std::uint32_t>((stride + kBlockDataBytes - 1) / kBlockDataBytes);
}

struct BlockTrailer {
  std::uint64_t segment_id;
  std::uint8_t block;
  std::uint8_t layout;
  std::uint16_t table;
  std::uint32_t crc;
};
static_assert(sizeof(BlockTrailer) == 16);

// What a block of a segment holds.
struct BlockContents {
  std::uint32_t table = 0;
  std::uint16_t layout = 0;
  std::uint32_t stride = 0;
  std::uint8_t chunk = 0;           // of a record longer than a block; only chunk 0 names the row
  std::vector<std::uint64_t> rows;  // row ids, by position
  bool sealed = false;              // its trailer is written, no row may be added
};

struct SegmentHeader {
  std::uint64_t segment_id = 0;
  std::uint64_t epoch = 0;
  std::uint32_t number = 0;
  bool closes = false;
  std::string meta;
  std::vector<BlockContents> blocks;
};

std::size_t header_bytes(const SegmentHeader& header, std::size_t meta_bytes);
// Pages of a segment that hold a header of `header_size` bytes and its blocks; the rest is padding.
std::uint16_t used_pages(const SegmentHeader& header, std::size_t header_size);

// `image`: kSegmentImageBytes, the value at kValueOffset, data of blocks in their places.
inline std::byte* block_in_image(std::byte* image, std::uint32_t block) {
  return image + (kSegmentPages - 1 - block) * kPageBytes;
}
// Writes trailer and CRC of a full block; of a record longer than a block, of all its blocks: `block` is the
// one with the row's name.
void seal_blocks(SegmentHeader& header, std::uint32_t block, std::byte* image);
// Writes header, trailers and CRCs of blocks that have none, and zeroes the rest. Throws
// std::invalid_argument if the meta does not fit.
void seal_image(const SegmentHeader& header, std::byte* image);

// Reads and checks a header. Throws CorruptionError saying what is wrong.
SegmentHeader parse_header(const std::byte* value, std::size_t size);
// Whether block `block` of segment `segment_id` is what was written.
bool check_block(const std::byte* block_data, std::uint64_t segment_id, std::uint32_t block);
BlockTrailer trailer_of(const std::byte* block_data);

}  // namespace mtrains
