#include "mtrains/log_read.h"

#include <algorithm>
#include <cstring>

#include "mtrains/errors.h"
#include "mtrains/segment_log.h"

namespace mtrains {

ReadBuffers::ReadBuffers() : blocks((kBlocks + kSegmentPages) * kPageBytes, /*huge=*/false) {}

void LogRead::run_all(BlockReader* reader, ReadBuffers& buffers, const void* context, Take take) {
  const auto begin = std::chrono::steady_clock::now();
  for (const Waiting& row : waiting_) {
    ++counters_.rows_forwarded;
    take_record(block_in_image(row.segment->image.data(), block_of(row.read.location)), row.source,
                row.layout, row.segment_id, /*checked=*/true, row.read, buffers, context, take);
  }
  std::sort(placed_.begin(), placed_.end(), [](const Placed& x, const Placed& y) {
    return x.offset != y.offset ? x.offset < y.offset : x.read.tag < y.read.tag;
  });
  for (std::size_t first = 0; first < placed_.size();) {
    std::size_t last = first;
    for (std::size_t blocks = 0; last < placed_.size() && blocks < ReadBuffers::kBlocks; ++last) {
      if (last == first || placed_[last].offset != placed_[last - 1].offset)
        blocks += placed_[last].num_blocks;
    }
    while (last < placed_.size() && placed_[last].offset == placed_[last - 1].offset) ++last;
    if (reader == nullptr) throw StateError("the log is not open");
    read_chunk(first, last, *reader, buffers, context, take);
    first = last;
  }
  counters_.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void LogRead::read_chunk(std::size_t begin, std::size_t end, BlockReader& reader, ReadBuffers& buffers,
                         const void* context, Take take) {
  std::vector<BlockRead> extents;
  std::byte* buffer = buffers.blocks.data();
  for (std::size_t i = begin; i < end; ++i) {
    if (i > begin && placed_[i].offset == placed_[i - 1].offset) continue;
    const std::uint32_t size = placed_[i].num_blocks * static_cast<std::uint32_t>(kPageBytes);
    extents.push_back({placed_[i].offset, buffer, size});
    buffer += size;
    counters_.bytes_read += size;
  }
  counters_.block_reads += extents.size();
  reader.read(extents);
  std::size_t extent = 0;
  for (std::size_t i = begin; i < end; ++i) {
    const bool same_block = i > begin && placed_[i].offset == placed_[i - 1].offset;
    if (i > begin && !same_block) ++extent;
    const std::byte* blocks = extents[extent].buffer;
    if (!same_block) check(blocks, placed_[i]);
    ++counters_.rows_read;
    take_record(blocks, placed_[i].source, trailer_of(blocks).layout, placed_[i].segment_id,
                /*checked=*/false, placed_[i].read, buffers, context, take);
  }
}

void LogRead::check(const std::byte* blocks, const Placed& placed) const {
  const std::uint32_t block = block_of(placed.read.location);
  if (check_block(blocks, placed.segment_id, block) &&
      trailer_of(blocks).table == static_cast<std::uint16_t>(sources_[placed.source].table))
    return;
  throw CorruptionError(path_ + ": block " + std::to_string(block) + " of segment " +
                        std::to_string(placed.segment_id) + " at offset " + std::to_string(placed.offset) +
                        " is not what was written (checksum or segment id differs); `mtrains verify` names "
                        "what else is damaged, restore the last good copy of the store");
}

// checked: nothing of the record was read from the file.
void LogRead::take_record(const std::byte* blocks, std::uint32_t source, std::uint16_t layout,
                          std::uint64_t segment_id, bool checked, const RowRead& read, ReadBuffers& buffers,
                          const void* context, Take take) const {
  const std::uint32_t block = block_of(read.location);
  const Strides& strides = *sources_[source].strides;
  if (layout >= strides.size()) {
    throw CorruptionError(path_ + ": segment " + std::to_string(segment_id) + " has a row of layout " +
                          std::to_string(layout) + ", which its table does not know; run `mtrains verify`");
  }
  const std::size_t stride = strides[layout];
  if (stride <= kBlockDataBytes) {
    if ((position_of(read.location) + 1) * stride > kBlockDataBytes) {
      throw CorruptionError(path_ + ": the directory names a row beyond the end of block " +
                            std::to_string(block) + " of segment " + std::to_string(segment_id) +
                            "; run `mtrains verify --rebuild`");
    }
    take(context, read.tag, layout, {blocks + position_of(read.location) * stride, stride});
    return;
  }
  const std::uint32_t num_blocks = blocks_per_record(stride);
  std::vector<std::byte>& record = buffers.record;
  record.resize(num_blocks * kBlockDataBytes);
  for (std::uint32_t i = 0; i < num_blocks; ++i) {
    const std::byte* chunk = blocks + i * kPageBytes;
    if (!checked && i > 0 && !check_block(chunk, segment_id, block - i)) {
      throw CorruptionError(path_ + ": block " + std::to_string(block - i) + " of segment " +
                            std::to_string(segment_id) +
                            " is not what was written (checksum or segment id differs)");
    }
    // Only the record's bytes: the writer thread may be filling the rest of a pending block.
    const std::size_t done = i * kBlockDataBytes;
    std::memcpy(record.data() + done, chunk, std::min(kBlockDataBytes, stride - done));
  }
  take(context, read.tag, layout, {record.data(), stride});
}

}  // namespace mtrains
