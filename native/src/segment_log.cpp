#include "mtrains/segment_log.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "mtrains/errors.h"

namespace mtrains {
namespace {

constexpr std::size_t kSpareBuffers = 16;
// Room kept in a header for the meta bytes of an ordinary segment: fixed, and for each table in it.
constexpr std::size_t kMetaFixedBytes = 2048;
constexpr std::size_t kMetaTableBytes = 1024;

}  // namespace

SegmentLog::SegmentLog(std::uint32_t incarnation, std::uint32_t max_pending, std::uint32_t max_blocks)
    : incarnation_(incarnation),
      max_pending_(max_pending),
      max_blocks_(max_blocks),
      buffers_(std::make_shared<BufferPool>(kSegmentImageBytes, kSpareBuffers)),
      segments_(1) {}

std::string SegmentLog::open(const std::string& path, const std::string& io_engine) {
  path_ = path;
  reader_ = BlockReader::open(path, io_engine);
  second_reader_ = nullptr;
  refused_ = reader_->refused();
  return reader_->engine();
}

void SegmentLog::add_layout(std::uint32_t table, std::uint16_t layout, std::size_t stride) {
  if (strides_.size() <= table) strides_.resize(table + 1);
  // A read that goes on keeps the former ones.
  auto strides =
      strides_[table] == nullptr ? std::make_shared<Strides>() : std::make_shared<Strides>(*strides_[table]);
  if (strides->size() <= layout) strides->resize(layout + 1);
  (*strides)[layout] = stride;
  strides_[table] = std::move(strides);
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

std::unique_ptr<LogRead> SegmentLog::begin_read() { return std::make_unique<LogRead>(path_, reads_); }

void SegmentLog::add_to(LogRead& begun, std::uint32_t table, const std::vector<RowRead>& reads) {
  const Strides& strides = *strides_.at(table);
  const std::uint32_t num_blocks = blocks_per_record(*std::max_element(strides.begin(), strides.end()));
  const auto source = static_cast<std::uint32_t>(begun.sources_.size());
  begun.sources_.push_back({table, strides_[table]});
  for (const RowRead& read : reads) {
    const Segment& segment = at(read.location);
    const std::uint32_t block = block_of(read.location);
    if (segment.pending != nullptr) {
      begun.waiting_.push_back(
          {segment.pending, segment.id, segment.pending->header.blocks[block].layout, source, read});
      continue;
    }
    const std::uint64_t end = segment.offset + kSegmentBytes;
    begun.placed_.push_back({end - (std::uint64_t{block} + 1) * kPageBytes, segment.id,
                             std::min(num_blocks, block + 1), source, read});
  }
}

void SegmentLog::count(const ReadCounters& read) {
  counters_.rows_read += read.rows_read;
  counters_.block_reads += read.block_reads;
  counters_.bytes_read += read.bytes_read;
  counters_.rows_forwarded += read.rows_forwarded;
}

std::shared_ptr<BlockReader> SegmentLog::second_reader() {
  if (second_reader_ == nullptr && reader_ != nullptr)
    second_reader_ = BlockReader::open(path_, reader_->engine());
  return second_reader_;
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

// Finds the block for rows of this kind, or opens one.
void SegmentLog::open_block(std::uint64_t epoch, std::uint32_t table, std::uint16_t layout) {
  const std::size_t stride = (*strides_[table])[layout];
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
    blocks.back().rows.reserve(rows_per_block(stride));
    open = pending.open_blocks.insert_or_assign(kind, static_cast<std::uint32_t>(blocks.size() - 1)).first;
  }
  const std::size_t data_begin = (kSegmentPages - blocks.size()) * kPageBytes;
  const std::size_t ids = (data_begin - kValueOffset - pending.header_size - pending.meta_reserve) / 8;
  const std::size_t in_block = rows_per_block(stride) - blocks[open->second].rows.size();
  filling_ = {&pending, epoch, table, layout, open->second, stride, std::min(ids, in_block)};
}

Location SegmentLog::append(std::uint64_t epoch, std::uint32_t table, std::uint16_t layout, std::uint64_t row,
                            std::uint64_t key, const std::byte* record) {
  if (filling_.rows_left == 0 || filling_.epoch != epoch || filling_.table != table ||
      filling_.layout != layout) {
    open_block(epoch, table, layout);
  }
  --filling_.rows_left;
  PendingSegment& pending = *filling_.segment;
  const std::size_t stride = filling_.stride;
  const std::uint32_t block = filling_.block;
  std::vector<std::uint64_t>& rows = pending.header.blocks[block].rows;
  const std::uint32_t position = static_cast<std::uint32_t>(rows.size());
  rows.push_back(row);
  for (std::size_t done = 0, i = 0; done < stride; done += kBlockDataBytes, ++i) {
    std::byte* data = block_in_image(pending.image.data(), block - static_cast<std::uint32_t>(i));
    std::memcpy(data + position * stride, record + done, std::min(kBlockDataBytes, stride - done));
  }
  // While its bytes are in the cache.
  if (position + 1 == rows_per_block(stride)) seal_blocks(pending.header, block, pending.image.data());
  pending.header_size += 8;
  const Location location = make_location(pending.header.number, block, position);
  pending.places.add(key, location);
  Segment& segment = segments_[pending.header.number];
  ++segment.rows;
  ++segment.live;
  ++counters_.rows_appended;
  counters_.bytes_appended += stride;
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
  filling_ = {};
  ++counters_.segments_sealed;
  if (on_sealed) on_sealed();
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

std::shared_ptr<PendingSegment> SegmentLog::publish(std::uint32_t number, std::uint64_t offset) {
  Segment& segment = segments_.at(number);
  assert(segment.state == SegmentState::kSealed);
  if ((offset + kSegmentBytes) % kPageBytes != 0)
    throw std::invalid_argument("a segment's value must end on a page");
  segment.state = SegmentState::kPublished;
  segment.offset = offset;
  std::shared_ptr<PendingSegment> pending = std::move(segment.pending);
  if (segment.live == 0) segment.emptied_at = reads_.mark();
  index(number);
  --num_pending_;
  if (--pending_[segment.epoch] == 0) pending_.erase(segment.epoch);
  return pending;
}

std::uint32_t SegmentLog::pending_segments(std::uint64_t epoch) const {
  std::uint32_t count = 0;
  for (const auto& [born, pending] : pending_) count += born <= epoch ? pending : 0;
  return count;
}

}  // namespace mtrains
