// Where the rows that an epoch appended lie: the newest place of each, in some twelve bytes a row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "mtrains/location.h"

namespace mtrains {

// Keys ascending, encoded: the distance to the key before as a varint, the location in six bytes. New entries
// wait in a tail, unsorted, until they are a quarter as many; so an entry is encoded anew a few times. Not
// thread-safe.
class DeltaRun {
 public:
  using Entry = std::pair<std::uint64_t, Location>;

  // The newest place of `key`, until the next one. keys < 2^57.
  void add(std::uint64_t key, Location location);
  bool empty() const { return tail_.empty() && num_encoded_ == 0; }
  // Takes over entries of a later run, which count as newer.
  void append(const DeltaRun& later);

  // Calls visit(key, location) for each key, ascending.
  template <typename Visit>
  void for_each(const Visit& visit) {
    merge_tail();
    Reader reader(chunks_);
    Entry entry;
    while (reader.next(entry)) visit(entry.first, entry.second);
  }
  std::size_t num_keys() {
    merge_tail();
    return num_encoded_;
  }
  std::size_t memory_bytes() const;

 private:
  static constexpr std::size_t kChunkBytes = 256 << 10;  // freed one by one as they are read
  static constexpr std::size_t kLocationBytes = 6;
  // At most: the distance, and a location as a word of which the next entry overwrites two bytes.
  static constexpr std::size_t kEntryBytes = 9 + 8;

  struct Chunk {
    std::unique_ptr<std::uint8_t[]> bytes;
    std::size_t size = 0;
  };

  class Reader {
   public:
    explicit Reader(const std::vector<Chunk>& chunks) : chunks_(&chunks) {}

    bool next(Entry& entry) {
      while (chunk_ < chunks_->size() && at_ == (*chunks_)[chunk_].size) {
        ++chunk_;
        at_ = 0;
      }
      if (chunk_ == chunks_->size()) return false;
      const std::uint8_t* const begin = (*chunks_)[chunk_].bytes.get();
      const std::uint8_t* from = begin + at_;
      std::uint64_t distance = *from & 0x7fu;
      for (int shift = 7; (*from++ & 0x80u) != 0; shift += 7)
        distance |= std::uint64_t{*from & 0x7fu} << shift;
      key_ += distance;
      std::uint64_t word;
      std::memcpy(&word, from, sizeof word);
      entry = {key_, word & ((std::uint64_t{1} << (8 * kLocationBytes)) - 1)};
      at_ = static_cast<std::size_t>(from - begin) + kLocationBytes;
      return true;
    }
    std::size_t chunk() const { return chunk_; }  // that it reads now: those before are done with

   private:
    const std::vector<Chunk>* chunks_;
    std::size_t chunk_ = 0, at_ = 0;
    std::uint64_t key_ = 0;
  };

  void encode(std::uint64_t key, Location location);
  std::vector<Entry> take_sorted_tail();
  void merge_tail();

  std::vector<Chunk> chunks_;
  std::size_t num_encoded_ = 0;
  std::uint64_t last_key_ = 0;  // that was encoded
  std::vector<Entry> tail_;
};

}  // namespace mtrains
