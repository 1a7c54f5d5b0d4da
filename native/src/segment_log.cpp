#include "mtrains/segment_log.h"

#include <algorithm>
#include <cassert>
#include <chrono>
#include <cstring>

#include "mtrains/errors.h"

namespace mtrains {
namespace {

constexpr std::size_t kStagingBlocks = 1024;
constexpr std::size_t kSpareBuffers = 16;
// Room kept in a header for the meta bytes of an ordinary segment: fixed, and for each table in it.
constexpr std::size_t kMetaFixedBytes = 2048;
constexpr std::size_t kMetaTableBytes = 1024;

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

SegmentLog::SegmentLog(std::uint32_t incarnation, std::uint32_t max_pending, std::uint32_t max_blocks)
    : incarnation_(incarnation),
      max_pending_(max_pending),
      max_blocks_(max_blocks),
      buffers_(std::make_shared<BufferPool>(kSegmentImageBytes, kSpareBuffers)),
      segments_(1),
      staging_((kStagingBlocks + kSegmentPages) * kPageBytes, /*huge=*/false) {}

std::string SegmentLog::open(const std::string& path, const std::string& io_engine) {
  path_ = path;
  reader_ = BlockReader::open(path, io_engine);
  refused_ = reader_->refused();
  return reader_->engine();
}

void SegmentLog::add_layout(std::uint32_t table, std::uint16_t layout, std::size_t stride) {
  if (strides_.size() <= table) strides_.resize(table + 1);
  if (strides_[table].size() <= layout) strides_[table].resize(layout + 1);
  strides_[table][layout] = stride;
}

// --- reading

// A directory that was loaded from damaged files may name what is not there.
Segment& SegmentLog::at(Location location) {
  const std::uint32_t number = segment_of(location);
  if (number >= segments_.size() || segments_[number].state == SegmentState::kUnused) {
    throw CorruptionError(path_ + ": the directory names segment number " + std::to_string(number) +
                          ", which does not exist; run `mtrains verify --rebuild`");
  }
  return segments_[number];
}

void SegmentLog::read_all(const std::vector<RowRead>& reads, const void* context, Take take) {
  if (reads.empty()) return;
  const auto begin = std::chrono::steady_clock::now();
  const ReadGeneration generation(reads_);
  std::vector<Placed> placed;
  placed.reserve(reads.size());
  for (std::uint32_t i = 0; i < reads.size(); ++i) {
    const RowRead& read = reads[i];
    const Segment& segment = at(read.location);
    const std::uint32_t block = block_of(read.location);
    const std::size_t longest = *std::max_element(strides_[read.table].begin(), strides_[read.table].end());
    const std::uint32_t num_blocks = std::min(blocks_per_record(longest), block + 1);
    if (segment.pending != nullptr) {
      ++counters_.rows_forwarded;
      take_record(block_in_image(segment.pending->image.data(), block), read, context, take);
    } else {
      const std::uint64_t end = segment.offset + kSegmentBytes;
      placed.push_back({end - (std::uint64_t{block} + 1) * kPageBytes, num_blocks, i});
    }
  }
  std::sort(placed.begin(), placed.end(), [](const Placed& x, const Placed& y) {
    return x.offset != y.offset ? x.offset < y.offset : x.index < y.index;
  });
  for (std::size_t first = 0; first < placed.size();) {
    std::size_t last = first;
    for (std::size_t blocks = 0; last < placed.size() && blocks < kStagingBlocks; ++last) {
      if (last == first || placed[last].offset != placed[last - 1].offset) blocks += placed[last].num_blocks;
    }
    while (last < placed.size() && placed[last].offset == placed[last - 1].offset) ++last;
    read_chunk(placed, first, last, reads, context, take);
    first = last;
  }
  counters_.read_seconds += seconds_since(begin);
}

void SegmentLog::read_chunk(const std::vector<Placed>& placed, std::size_t begin, std::size_t end,
                            const std::vector<RowRead>& reads, const void* context, Take take) {
  if (reader_ == nullptr) throw StateError("the log is not open");
  std::vector<BlockRead> extents;
  std::byte* buffer = staging_.data();
  for (std::size_t i = begin; i < end; ++i) {
    if (i > begin && placed[i].offset == placed[i - 1].offset) continue;
    const std::uint32_t size = placed[i].num_blocks * static_cast<std::uint32_t>(kPageBytes);
    extents.push_back({placed[i].offset, buffer, size});
    buffer += size;
    counters_.bytes_read += size;
  }
  counters_.block_reads += extents.size();
  reader_->read(extents);
  std::size_t extent = 0;
  bool checked = false;
  for (std::size_t i = begin; i < end; ++i) {
    if (i > begin && placed[i].offset != placed[i - 1].offset) {
      ++extent;
      checked = false;
    }
    const RowRead& read = reads[placed[i].index];
    const std::byte* blocks = extents[extent].buffer;
    if (!checked) {
      const std::uint32_t block = block_of(read.location);
      if (!check_block(blocks, at(read.location).id, block) ||
          trailer_of(blocks).table != static_cast<std::uint16_t>(read.table)) {
        throw CorruptionError(
            path_ + ": block " + std::to_string(block) + " of segment " +
            std::to_string(at(read.location).id) + " at offset " + std::to_string(placed[i].offset) +
            " is not what was written (checksum or segment id differs); `mtrains verify` names what else "
            "is damaged, restore the last good copy of the store");
      }
      checked = true;
    }
    ++counters_.rows_read;
    take_record(blocks, read, context, take);
  }
}

void SegmentLog::take_record(const std::byte* blocks, const RowRead& read, const void* context, Take take) {
  const Segment& segment = at(read.location);
  const std::uint32_t block = block_of(read.location);
  const std::uint16_t layout =
      segment.pending != nullptr ? segment.pending->header.blocks[block].layout : trailer_of(blocks).layout;
  if (layout >= strides_[read.table].size()) {
    throw CorruptionError(path_ + ": segment " + std::to_string(segment.id) + " has a row of layout " +
                          std::to_string(layout) + ", which its table does not know; run `mtrains verify`");
  }
  const std::size_t stride = strides_[read.table][layout];
  if (stride <= kBlockDataBytes) {
    if ((position_of(read.location) + 1) * stride > kBlockDataBytes) {
      throw CorruptionError(path_ + ": the directory names a row beyond the end of block " +
                            std::to_string(block) + " of segment " + std::to_string(segment.id) +
                            "; run `mtrains verify --rebuild`");
    }
    take(context, read.tag, layout, blocks + position_of(read.location) * stride);
    return;
  }
  const std::uint32_t num_blocks = blocks_per_record(stride);
  record_.resize(num_blocks * kBlockDataBytes);
  for (std::uint32_t i = 0; i < num_blocks; ++i) {
    const std::byte* chunk = blocks + i * kPageBytes;
    if (segment.pending == nullptr && i > 0 && !check_block(chunk, segment.id, block - i)) {
      throw CorruptionError(path_ + ": block " + std::to_string(block - i) + " of segment " +
                            std::to_string(segment.id) +
                            " is not what was written (checksum or segment id differs)");
    }
    // Only the record's bytes: the writer thread may be filling the rest of a pending block.
    const std::size_t done = i * kBlockDataBytes;
    std::memcpy(record_.data() + done, chunk, std::min(kBlockDataBytes, stride - done));
  }
  take(context, read.tag, layout, record_.data());
}

// --- appending

std::shared_ptr<PendingSegment> SegmentLog::start(std::uint64_t epoch) {
  std::uint32_t number;
  if (!free_numbers_.empty()) {
    number = free_numbers_.back();
    free_numbers_.pop_back();
  } else {
    number = static_cast<std::uint32_t>(segments_.size());
    if (number >= kMaxSegments) throw CapacityError("the log holds 2^24 segments (16 TiB), its limit");
    segments_.emplace_back();
  }
  auto pending = std::make_shared<PendingSegment>(buffers_);
  pending->header.number = number;
  pending->header.epoch = epoch;
  pending->header.segment_id = (std::uint64_t{incarnation_} << 32) | next_sequence_++;
  pending->header_size = kSegmentHeaderBytes;
  pending->meta_reserve = kMetaFixedBytes;
  Segment segment;
  segment.id = pending->header.segment_id;
  segment.epoch = epoch;
  segment.state = SegmentState::kFilling;
  segment.pending = pending;
  segments_[number] = std::move(segment);
  mark_changed(number);
  streams_[epoch] = pending;
  ++num_pending_;
  ++pending_[epoch];
  return pending;
}

PendingSegment& SegmentLog::room_for(std::uint64_t epoch, std::uint32_t table, std::uint16_t layout,
                                     std::size_t stride) {
  auto it = streams_.find(epoch);
  const std::pair<std::uint32_t, std::uint16_t> kind{table, layout};
  if (it != streams_.end()) {
    PendingSegment& segment = *it->second;
    const auto open = segment.open_blocks.find(kind);
    const bool in_block = open != segment.open_blocks.end() &&
                          segment.header.blocks[open->second].rows.size() < rows_per_block(stride);
    const std::size_t new_blocks = in_block ? 0 : blocks_per_record(stride);
    const std::size_t header = segment.header_size + segment.meta_reserve + 8 +
                               new_blocks * kBlockDescriptorBytes +
                               (open == segment.open_blocks.end() ? kMetaTableBytes : 0);
    const std::size_t blocks = segment.header.blocks.size() + new_blocks;
    if (blocks <= max_blocks_ && kValueOffset + header <= (kSegmentPages - blocks) * kPageBytes)
      return segment;
    seal(epoch);
  }
  return *start(epoch);
}

Location SegmentLog::append(std::uint64_t epoch, std::uint32_t table, std::uint16_t layout, std::uint64_t row,
                            std::uint64_t key, const std::byte* record) {
  const std::size_t stride = strides_[table][layout];
  PendingSegment& pending = room_for(epoch, table, layout, stride);
  auto& blocks = pending.header.blocks;
  const std::pair<std::uint32_t, std::uint16_t> kind{table, layout};
  auto open = pending.open_blocks.find(kind);
  if (open == pending.open_blocks.end() || blocks[open->second].rows.size() >= rows_per_block(stride)) {
    if (open == pending.open_blocks.end()) pending.meta_reserve += kMetaTableBytes;
    const std::uint32_t count = blocks_per_record(stride);
    pending.header_size += count * kBlockDescriptorBytes;
    // Chunk 0 in the block of the lowest file offset, which is the highest number.
    for (std::uint32_t i = 0; i < count; ++i) {
      blocks.push_back(
          {table, layout, static_cast<std::uint32_t>(stride), static_cast<std::uint8_t>(count - 1 - i), {}});
    }
    open = pending.open_blocks.insert_or_assign(kind, static_cast<std::uint32_t>(blocks.size() - 1)).first;
  }
  const std::uint32_t block = open->second;
  const std::uint32_t position = static_cast<std::uint32_t>(blocks[block].rows.size());
  for (std::size_t done = 0, i = 0; done < stride; done += kBlockDataBytes, ++i) {
    std::byte* data = block_in_image(pending.image.data(), block - static_cast<std::uint32_t>(i));
    std::memcpy(data + position * stride, record + done, std::min(kBlockDataBytes, stride - done));
  }
  blocks[block].rows.push_back(row);
  pending.header_size += 8;
  Segment& segment = segments_[pending.header.number];
  ++segment.rows;
  ++segment.live;
  ++counters_.rows_appended;
  counters_.bytes_appended += stride;
  const Location location = make_location(pending.header.number, block, position);
  deltas_[epoch].add(key, location);
  return location;
}

void SegmentLog::supersede(Location location, std::uint64_t epoch) {
  Segment& segment = at(location);
  assert(segment.live > 0);
  --segment.live;
  mark_changed(segment_of(location));
  if (segment.live == 0) segment.emptied_at = reads_.mark();
  const auto same = std::find_if(segment.superseded.begin(), segment.superseded.end(),
                                 [epoch](const auto& entry) { return entry.first == epoch; });
  if (same != segment.superseded.end()) {
    ++same->second;
  } else {
    segment.superseded.emplace_back(epoch, 1);
  }
  if (segment.state == SegmentState::kPublished) index(segment_of(location));
}

void SegmentLog::seal(std::uint64_t epoch) {
  const auto it = streams_.find(epoch);
  const PendingSegment& pending = *it->second;
  Segment& segment = segments_[pending.header.number];
  segment.state = SegmentState::kSealed;
  segment.used_pages = used_pages(pending.header, pending.header_size + pending.meta_reserve);
  sealed_.push_back(it->second);
  streams_.erase(it);
  ++counters_.segments_sealed;
}

void SegmentLog::flush(std::uint64_t epoch, bool closes, std::size_t meta_bytes) {
  std::vector<std::uint64_t> epochs;
  for (const auto& stream : streams_) {
    if (stream.first <= epoch) epochs.push_back(stream.first);
  }
  for (const std::uint64_t filling : epochs) {
    if (filling != epoch || !closes) seal(filling);
  }
  if (!closes) return;
  auto it = streams_.find(epoch);
  if (it != streams_.end()) {
    const PendingSegment& last = *it->second;
    const std::size_t data_begin = (kSegmentPages - last.header.blocks.size()) * kPageBytes;
    if (kValueOffset + last.header_size + meta_bytes > data_begin) {
      seal(epoch);
      it = streams_.end();
    }
  }
  const std::shared_ptr<PendingSegment> last = it != streams_.end() ? it->second : start(epoch);
  last->header.closes = true;
  seal(epoch);
}

// --- the writer thread

std::vector<std::shared_ptr<PendingSegment>> SegmentLog::take_sealed(std::size_t max_group) {
  const std::size_t count = std::min(max_group, sealed_.size());
  const auto end = sealed_.begin() + static_cast<std::ptrdiff_t>(count);
  std::vector<std::shared_ptr<PendingSegment>> taken(sealed_.begin(), end);
  sealed_.erase(sealed_.begin(), end);
  return taken;
}

void SegmentLog::requeue(const std::vector<std::shared_ptr<PendingSegment>>& segments) {
  sealed_.insert(sealed_.begin(), segments.begin(), segments.end());
}

void SegmentLog::publish(std::uint32_t number, std::uint64_t offset) {
  Segment& segment = segments_.at(number);
  assert(segment.state == SegmentState::kSealed);
  if ((offset + kSegmentBytes) % kPageBytes != 0)
    throw std::invalid_argument("a segment's value must end on a page");
  segment.state = SegmentState::kPublished;
  segment.offset = offset;
  segment.pending = nullptr;
  if (segment.live == 0) segment.emptied_at = reads_.mark();
  index(number);
  --num_pending_;
  if (--pending_[segment.epoch] == 0) pending_.erase(segment.epoch);
}

std::uint32_t SegmentLog::pending_segments(std::uint64_t epoch) const {
  std::uint32_t count = 0;
  for (const auto& [born, pending] : pending_) count += born <= epoch ? pending : 0;
  return count;
}

// --- checkpoints

// The runs of earlier epochs are one from here on: no checkpoint will be taken of them alone.
DeltaRun& SegmentLog::delta(std::uint64_t epoch) {
  const auto end = deltas_.upper_bound(epoch);
  if (deltas_.begin() == end) return deltas_[epoch];
  DeltaRun& first = deltas_.begin()->second;
  for (auto later = std::next(deltas_.begin()); later != end; later = deltas_.erase(later)) {
    first.append(later->second);
  }
  return first;
}

}  // namespace mtrains
