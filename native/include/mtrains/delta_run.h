// Where the rows that an epoch appended lie: the newest place of each, in some twelve bytes a row.
#pragma once

#include <cstddef>
#include <cstdint>
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
  using Chunk = std::vector<std::uint8_t>;

  class Reader {
   public:
    explicit Reader(const std::vector<Chunk>& chunks) : chunks_(&chunks) {}
    bool next(Entry& entry);
    std::size_t chunk() const { return chunk_; }  // that it reads now: those before are done with

   private:
    const std::vector<Chunk>* chunks_;
    std::size_t chunk_ = 0, at_ = 0;
    std::uint64_t key_ = 0;
  };

  void encode(std::uint64_t key, Location location);
  void merge_tail();

  std::vector<Chunk> chunks_;
  std::size_t num_encoded_ = 0;
  std::uint64_t last_key_ = 0;  // that was encoded
  std::vector<Entry> tail_;
};

}  // namespace mtrains
