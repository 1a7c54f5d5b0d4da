#include "mtrains/delta_run.h"

#include <algorithm>
#include <bit>

#include "radix_sort.h"

namespace mtrains {
namespace {

constexpr std::size_t kMinTail = 1 << 18;  // entries

static_assert(std::endian::native == std::endian::little, "locations are stored by their low bytes");
static_assert(kLocationBits <= 48);

}  // namespace

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
  if (chunks_.empty() || chunks_.back().size + kEntryBytes > kChunkBytes) {
    chunks_.push_back({std::unique_ptr<std::uint8_t[]>(new std::uint8_t[kChunkBytes])});
  }
  Chunk& chunk = chunks_.back();
  std::uint8_t* to = chunk.bytes.get() + chunk.size;
  std::uint64_t distance = key - last_key_;
  for (; distance >= 0x80u; distance >>= 7) *to++ = static_cast<std::uint8_t>(distance | 0x80u);
  *to++ = static_cast<std::uint8_t>(distance);
  std::memcpy(to, &location, sizeof location);
  chunk.size = static_cast<std::size_t>(to - chunk.bytes.get()) + kLocationBytes;
  last_key_ = key;
  ++num_encoded_;
}

// Stable: of one key the last to come is the newest, and stands last.
std::vector<DeltaRun::Entry> DeltaRun::take_sorted_tail() {
  std::uint64_t lowest = tail_.front().first, highest = lowest;
  for (const Entry& entry : tail_) {
    lowest = std::min(lowest, entry.first);
    highest = std::max(highest, entry.first);
  }
  const RadixDigits digits =
      RadixDigits::choose(static_cast<unsigned>(std::bit_width(highest - lowest)), tail_.size());
  RadixScratch<Entry> scratch;
  scratch.elements = std::move(tail_);
  tail_ = {};
  const std::size_t n = scratch.elements.size();
  scratch.other.resize(n);
  scratch.bins.assign(std::size_t{digits.passes} << digits.digit_bits, 0);
  const auto key_of = [lowest](const Entry& entry) { return entry.first - lowest; };
  const Entry* sorted = with_passes(digits.passes, [&]<unsigned kPasses>() {
    for (const Entry& entry : scratch.elements)
      RadixScratch<Entry>::count<kPasses>(scratch.bins.data(), digits, key_of(entry));
    return scratch.sort(n, digits, key_of);
  });
  return std::move(sorted == scratch.elements.data() ? scratch.elements : scratch.other);
}

void DeltaRun::merge_tail() {
  if (tail_.empty()) return;
  const std::vector<Entry> sorted = take_sorted_tail();
  const std::size_t n = sorted.size();
  std::vector<Chunk> before = std::move(chunks_);
  chunks_.clear();
  num_encoded_ = 0;
  last_key_ = 0;
  Reader reader(before);
  Entry old;
  std::size_t freed = 0;
  const auto read = [&] {
    const bool more = reader.next(old);
    for (; freed < reader.chunk(); ++freed) before[freed].bytes.reset();
    return more;
  };
  bool more = read();
  for (std::size_t i = 0; i < n; ++i) {
    const auto [key, location] = sorted[i];
    if (i + 1 < n && sorted[i + 1].first == key) continue;
    for (; more && old.first < key; more = read()) encode(old.first, old.second);
    if (more && old.first == key) more = read();
    encode(key, location);
  }
  for (; more; more = read()) encode(old.first, old.second);
}

std::size_t DeltaRun::memory_bytes() const {
  std::size_t bytes = tail_.capacity() * sizeof(Entry);
  for (const Chunk& chunk : chunks_) bytes += chunk.bytes != nullptr ? kChunkBytes : 0;
  return bytes;
}

}  // namespace mtrains
