#include "mtrains/evacuation.h"

#include <cstring>
#include <string>
#include <utility>

#include "mtrains/errors.h"

namespace mtrains {

Evacuation::Evacuation(std::shared_ptr<BlockReader> reader, std::uint32_t number, std::uint64_t segment_id,
                       std::uint64_t offset)
    : reader_(std::move(reader)), number_(number), segment_id_(segment_id), offset_(offset) {}

void Evacuation::read() {
  image_ = MemoryMap(kSegmentImageBytes, /*huge=*/false);
  reader_->read({{offset_ - kValueOffset, image_.data(), static_cast<std::uint32_t>(kSegmentImageBytes)}});
  header_ = parse_header(image_.data() + kValueOffset, kSegmentBytes);
  if (header_.segment_id != segment_id_) {
    throw CorruptionError("segment " + std::to_string(segment_id_) + ": its place, offset " +
                          std::to_string(offset_) + ", holds segment " + std::to_string(header_.segment_id));
  }
  good_.resize(header_.blocks.size());
  for (std::uint32_t b = 0; b < good_.size(); ++b)
    good_[b] = check_block(block_in_image(image_.data(), b), segment_id_, b);
}

const std::byte* Evacuation::rows_of(std::uint32_t block) {
  const std::uint32_t chunks = blocks_per_record(header_.blocks[block].stride);
  for (std::uint32_t i = 0; i < chunks; ++i) {
    if (i <= block && good_[block - i]) continue;
    throw CorruptionError("block " + std::to_string(block - i) + " of segment " +
                          std::to_string(segment_id_) +
                          " is not what was written (checksum or segment id differs)");
  }
  if (chunks == 1) return block_in_image(image_.data(), block);
  joined_.resize(chunks * kBlockDataBytes);
  for (std::uint32_t i = 0; i < chunks; ++i) {
    std::memcpy(joined_.data() + i * kBlockDataBytes, block_in_image(image_.data(), block - i),
                kBlockDataBytes);
  }
  return joined_.data();
}

}  // namespace mtrains
