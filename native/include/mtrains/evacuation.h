// A segment on its way to being emptied: it is read and checked while passes go on, so that the store is
// locked only while its rows move.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "mtrains/block_reader.h"
#include "mtrains/memory_map.h"
#include "mtrains/segment_format.h"

namespace mtrains {

// Not thread-safe. REQUIRES: the segment is not deleted meanwhile; the thread that empties segments is the
// one that deletes them.
class Evacuation {
 public:
  // offset: of the segment's value in the file.
  Evacuation(std::shared_ptr<BlockReader> reader, std::uint32_t number, std::uint64_t segment_id,
             std::uint64_t offset);

  // Needs no lock. Throws IoError; CorruptionError if the header is damaged or another segment's.
  void read();

  std::uint32_t number() const { return number_; }
  std::uint64_t segment_id() const { return segment_id_; }
  const std::vector<BlockContents>& blocks() const { return header_.blocks; }
  // The rows of a block, valid until the next call. Throws CorruptionError if it is damaged.
  const std::byte* rows_of(std::uint32_t block);

 private:
  std::shared_ptr<BlockReader> reader_;
  std::uint32_t number_;
  std::uint64_t segment_id_;
  std::uint64_t offset_;
  MemoryMap image_;
  SegmentHeader header_;
  std::vector<bool> good_;         // blocks that are what was written
  std::vector<std::byte> joined_;  // one record of several blocks, without trailers
};

}  // namespace mtrains
