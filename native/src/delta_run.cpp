#include "mtrains/delta_run.h"

#include <algorithm>

namespace mtrains {
namespace {

constexpr std::size_t kMinTail = 1 << 16;       // entries
constexpr std::size_t kChunkBytes = 256 << 10;  // freed one by one as they are read
constexpr std::size_t kEntryBytes = 9 + 6;      // at most
constexpr std::size_t kLocationBytes = 6;

}  // namespace

bool DeltaRun::Reader::next(Entry& entry) {
  while (chunk_ < chunks_->size() && at_ == (*chunks_)[chunk_].size()) {
    ++chunk_;
    at_ = 0;
  }
  if (chunk_ == chunks_->size()) return false;
  const Chunk& bytes = (*chunks_)[chunk_];
  std::uint64_t distance = 0;
  for (int shift = 0;; shift += 7) {
    const std::uint8_t byte = bytes[at_++];
    distance |= std::uint64_t{byte & 0x7fu} << shift;
    if ((byte & 0x80u) == 0) break;
  }
  key_ += distance;
  Location location = 0;
  for (std::size_t i = 0; i < kLocationBytes; ++i) location |= Location{bytes[at_++]} << (8 * i);
  entry = {key_, location};
  return true;
}

void DeltaRun::add(std::uint64_t key, Location location) {
  const std::size_t limit = std::max(kMinTail, num_encoded_ / 4);
  if (tail_.size() == tail_.capacity())
    tail_.reserve(std::min(std::max<std::size_t>(1024, 2 * tail_.size()), limit));
  tail_.emplace_back(key, location);
  if (tail_.size() >= limit) merge_tail();
}

void DeltaRun::append(const DeltaRun& later) {
  Reader reader(later.chunks_);
  Entry entry;
  while (reader.next(entry)) add(entry.first, entry.second);
  for (const Entry& waiting : later.tail_) add(waiting.first, waiting.second);
}

void DeltaRun::encode(std::uint64_t key, Location location) {
  if (chunks_.empty() || chunks_.back().size() + kEntryBytes > kChunkBytes) {
    chunks_.emplace_back();
    chunks_.back().reserve(kChunkBytes);
  }
  Chunk& bytes = chunks_.back();
  std::uint64_t distance = key - last_key_;
  for (; distance >= 0x80u; distance >>= 7) bytes.push_back(static_cast<std::uint8_t>(distance | 0x80u));
  bytes.push_back(static_cast<std::uint8_t>(distance));
  for (std::size_t i = 0; i < kLocationBytes; ++i)
    bytes.push_back(static_cast<std::uint8_t>(location >> (8 * i)));
  last_key_ = key;
  ++num_encoded_;
}

void DeltaRun::merge_tail() {
  if (tail_.empty()) return;
  // Of one key the last to come is the newest, and stands last.
  std::stable_sort(tail_.begin(), tail_.end(),
                   [](const Entry& x, const Entry& y) { return x.first < y.first; });
  std::vector<Chunk> before = std::move(chunks_);
  chunks_.clear();
  num_encoded_ = 0;
  last_key_ = 0;
  Reader reader(before);
  Entry old;
  std::size_t freed = 0;
  const auto read = [&] {
    const bool more = reader.next(old);
    for (; freed < reader.chunk(); ++freed) Chunk().swap(before[freed]);
    return more;
  };
  bool more = read();
  for (std::size_t i = 0; i < tail_.size(); ++i) {
    if (i + 1 < tail_.size() && tail_[i + 1].first == tail_[i].first) continue;
    for (; more && old.first < tail_[i].first; more = read()) encode(old.first, old.second);
    if (more && old.first == tail_[i].first) more = read();
    encode(tail_[i].first, tail_[i].second);
  }
  for (; more; more = read()) encode(old.first, old.second);
  std::vector<Entry>().swap(tail_);
}

std::size_t DeltaRun::memory_bytes() const {
  std::size_t bytes = tail_.capacity() * sizeof(Entry);
  for (const Chunk& chunk : chunks_) bytes += chunk.capacity();
  return bytes;
}

}  // namespace mtrains
