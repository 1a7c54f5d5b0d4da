#include "mtrains/segment_format.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "mtrains/crc32c.h"
#include "mtrains/errors.h"

namespace mtrains {
namespace {

constexpr char kMagic[8] = {'M', 'T', 'R', 'S', 'E', 'G', '0', '1'};
constexpr std::size_t kCrcOffset = 48;
constexpr std::uint32_t kCloses = 1;

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
              "the file format is written by little-endian machines only");

template <typename T>
void put(std::byte* at, T value) {
  std::memcpy(at, &value, sizeof(T));
}
template <typename T>
T get(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

std::uint8_t id_width(const BlockContents& block) {
  for (const std::uint64_t row : block.rows) {
    if (row >> 32) return 8;
  }
  return 4;
}

std::uint32_t header_crc(const std::byte* value, std::size_t size) {
  const std::uint32_t zero = 0;
  std::uint32_t crc = crc32c(value, kCrcOffset);
  crc = crc32c(&zero, sizeof zero, crc);
  return crc32c(value + kCrcOffset + 4, size - kCrcOffset - 4, crc);
}

void seal_block(const SegmentHeader& header, std::uint32_t block, std::byte* data) {
  const BlockContents& contents = header.blocks[block];
  std::size_t used = contents.rows.size() * contents.stride;
  if (contents.stride > kBlockDataBytes) {
    used = std::min<std::size_t>(kBlockDataBytes, contents.stride - contents.chunk * kBlockDataBytes);
  }
  std::memset(data + used, 0, kBlockDataBytes - used);
  put(data + 4080, header.segment_id);
  put(data + 4088, static_cast<std::uint8_t>(block));
  put(data + 4089, static_cast<std::uint8_t>(contents.layout));
  put(data + 4090, static_cast<std::uint16_t>(contents.table));
  put(data + 4092, crc32c(data, 4092));
}

// Reads descriptors and row ids; `end`: of what the header says it has before the meta bytes.
std::size_t parse_blocks(const std::byte* value, std::size_t end, std::uint32_t num_blocks,
                         SegmentHeader& header) {
  std::size_t at = kSegmentHeaderBytes + num_blocks * kBlockDescriptorBytes;
  for (std::uint32_t b = 0; b < num_blocks; ++b) {
    const std::byte* descriptor = value + kSegmentHeaderBytes + b * kBlockDescriptorBytes;
    BlockContents block;
    block.table = get<std::uint32_t>(descriptor);
    block.layout = get<std::uint16_t>(descriptor + 4);
    const std::uint32_t rows = get<std::uint16_t>(descriptor + 6);
    block.stride = get<std::uint32_t>(descriptor + 8);
    const std::uint8_t width = get<std::uint8_t>(descriptor + 12);
    block.chunk = get<std::uint8_t>(descriptor + 13);
    if ((width != 4 && width != 8) || block.stride == 0 || rows > rows_per_block(block.stride) ||
        at + std::size_t{rows} * width > end) {
      throw CorruptionError("segment header: descriptor of block " + std::to_string(b) + " is out of range");
    }
    for (std::uint32_t i = 0; i < rows; ++i, at += width) {
      block.rows.push_back(width == 4 ? get<std::uint32_t>(value + at) : get<std::uint64_t>(value + at));
    }
    header.blocks.push_back(std::move(block));
  }
  return at;
}

}  // namespace

std::size_t header_bytes(const SegmentHeader& header, std::size_t meta_bytes) {
  std::size_t size = kSegmentHeaderBytes + meta_bytes;
  for (const BlockContents& block : header.blocks) {
    size += kBlockDescriptorBytes + block.rows.size() * id_width(block);
  }
  return size;
}

std::uint16_t used_pages(const SegmentHeader& header, std::size_t header_size) {
  const std::size_t pages = (kValueOffset + header_size + kPageBytes - 1) / kPageBytes + header.blocks.size();
  return static_cast<std::uint16_t>(std::min(pages, kSegmentPages));
}

void seal_blocks(SegmentHeader& header, std::uint32_t block, std::byte* image) {
  const std::uint32_t count = blocks_per_record(header.blocks[block].stride);
  for (std::uint32_t b = block - (count - 1); b <= block; ++b) {
    seal_block(header, b, block_in_image(image, b));
    header.blocks[b].sealed = true;
  }
}

void seal_image(const SegmentHeader& header, std::byte* image) {
  const std::size_t size = header_bytes(header, header.meta.size());
  const std::size_t data_begin = (kSegmentPages - header.blocks.size()) * kPageBytes;
  if (kValueOffset + size > data_begin) {
    throw std::invalid_argument("segment header of " + std::to_string(size) + " bytes does not fit before " +
                                std::to_string(header.blocks.size()) + " blocks");
  }
  std::byte* value = image + kValueOffset;
  std::memset(image, 0, kValueOffset + kSegmentHeaderBytes);
  std::memcpy(value, kMagic, sizeof kMagic);
  put(value + 8, header.segment_id);
  put(value + 16, header.epoch);
  put(value + 24, header.number);
  put(value + 28, header.closes ? kCloses : 0u);
  put(value + 32, static_cast<std::uint32_t>(size));
  put(value + 36, static_cast<std::uint32_t>(header.blocks.size()));
  put(value + 44, static_cast<std::uint32_t>(header.meta.size()));
  std::uint32_t num_rows = 0;
  std::byte* descriptor = value + kSegmentHeaderBytes;
  std::byte* ids = descriptor + header.blocks.size() * kBlockDescriptorBytes;
  for (std::uint32_t b = 0; b < header.blocks.size(); ++b, descriptor += kBlockDescriptorBytes) {
    const BlockContents& block = header.blocks[b];
    const std::uint8_t width = id_width(block);
    put(descriptor, block.table);
    put(descriptor + 4, block.layout);
    put(descriptor + 6, static_cast<std::uint16_t>(block.rows.size()));
    put(descriptor + 8, block.stride);
    put(descriptor + 12, width);
    put(descriptor + 13, block.chunk);
    put(descriptor + 14, std::uint16_t{0});
    for (const std::uint64_t row : block.rows) {
      std::memcpy(ids, &row, width);
      ids += width;
    }
    num_rows += static_cast<std::uint32_t>(block.rows.size());
    if (!block.sealed) seal_block(header, b, block_in_image(image, b));
  }
  put(value + 40, num_rows);
  std::memcpy(ids, header.meta.data(), header.meta.size());
  std::memset(value + size, 0, data_begin - kValueOffset - size);
  put(value + kCrcOffset, header_crc(value, size));
}

SegmentHeader parse_header(const std::byte* value, std::size_t size) {
  if (size != kSegmentBytes) {
    throw CorruptionError("a segment has " + std::to_string(kSegmentBytes) + " bytes, this value " +
                          std::to_string(size));
  }
  if (std::memcmp(value, kMagic, sizeof kMagic) != 0) throw CorruptionError("segment header: wrong magic");
  const std::size_t bytes = get<std::uint32_t>(value + 32);
  const std::uint32_t num_blocks = get<std::uint32_t>(value + 36);
  const std::size_t meta_bytes = get<std::uint32_t>(value + 44);
  if (num_blocks > kMaxBlocks || bytes > size ||
      bytes < kSegmentHeaderBytes + num_blocks * kBlockDescriptorBytes + meta_bytes) {
    throw CorruptionError("segment header: sizes are out of range");
  }
  if (get<std::uint32_t>(value + kCrcOffset) != header_crc(value, bytes))
    throw CorruptionError("segment header: wrong CRC");
  SegmentHeader header;
  header.segment_id = get<std::uint64_t>(value + 8);
  header.epoch = get<std::uint64_t>(value + 16);
  header.number = get<std::uint32_t>(value + 24);
  header.closes = (get<std::uint32_t>(value + 28) & kCloses) != 0;
  const std::size_t at = parse_blocks(value, bytes - meta_bytes, num_blocks, header);
  header.meta.assign(reinterpret_cast<const char*>(value + at), meta_bytes);
  return header;
}

BlockTrailer trailer_of(const std::byte* block_data) {
  return get<BlockTrailer>(block_data + kBlockDataBytes);
}

bool check_block(const std::byte* block_data, std::uint64_t segment_id, std::uint32_t block) {
  const BlockTrailer trailer = trailer_of(block_data);
  return trailer.segment_id == segment_id && trailer.block == block &&
         trailer.crc == crc32c(block_data, 4092);
}

}  // namespace mtrains
