// Rows on their way out of the log: found while the store is locked, read while others go on.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "mtrains/block_reader.h"
#include "mtrains/location.h"
#include "mtrains/memory_map.h"
#include "mtrains/read_generations.h"

namespace mtrains {

struct PendingSegment;

struct RowRead {
  Location location = 0;
  std::uint32_t tag = 0;  // the caller's
};

struct ReadCounters {
  std::uint64_t rows_read = 0, block_reads = 0, bytes_read = 0, rows_forwarded = 0;
  double seconds = 0;
};

// Where blocks land, kept from one read to the next. Of one thread at a time.
struct ReadBuffers {
  static constexpr std::size_t kBlocks = 1024;

  ReadBuffers();
  MemoryMap blocks;
  std::vector<std::byte> record;  // one record of several blocks, without trailers
};

// Strides of a table's records, by layout.
using Strides = std::vector<std::size_t>;

// Rows that SegmentLog::add_to found. No segment of theirs is deleted, and so no location of
// theirs comes to mean another row, while this lives.
class LogRead {
 public:
  LogRead(std::string path, ReadGenerations& generations)
      : path_(std::move(path)), generation_(generations) {}

  bool empty() const { return placed_.empty() && waiting_.empty(); }

  // Calls take(tag, layout, record) for each row, in no particular order; the bytes of `record` are valid
  // during the call.
  // Needs no lock. `reader` may be null if all rows wait for their commit.
  // Throws IoError, CorruptionError; some rows may have been taken then.
  template <typename TakeRecord>
  void run(BlockReader* reader, ReadBuffers& buffers, const TakeRecord& take) {
    run_all(reader, buffers, &take,
            [](const void* context, std::uint32_t tag, std::uint16_t layout, Record record) {
              (*static_cast<const TakeRecord*>(context))(tag, layout, record);
            });
  }
  const ReadCounters& counters() const { return counters_; }

 private:
  friend class SegmentLog;
  using Record = std::span<const std::byte>;
  using Take = void (*)(const void*, std::uint32_t, std::uint16_t, Record);

  struct Source {
    std::uint32_t table;
    std::shared_ptr<const Strides> strides;
  };
  // A row in the file. Its record may begin some blocks after `offset`'s.
  struct Placed {
    std::uint64_t offset;  // of its first block
    std::uint64_t segment_id;
    std::uint32_t num_blocks;  // to read: of the table's longest record, within the segment
    std::uint32_t source;
    RowRead read;
  };
  // A row that waits for its commit.
  struct Waiting {
    std::shared_ptr<PendingSegment> segment;
    std::uint64_t segment_id;
    std::uint16_t layout;
    std::uint32_t source;
    RowRead read;
  };

  void run_all(BlockReader* reader, ReadBuffers& buffers, const void* context, Take take);
  void read_chunk(std::size_t begin, std::size_t end, BlockReader& reader, ReadBuffers& buffers,
                  const void* context, Take take);
  void check(const std::byte* blocks, const Placed& placed) const;
  void take_record(const std::byte* blocks, std::uint32_t source, std::uint16_t layout,
                   std::uint64_t segment_id, bool checked, const RowRead& read, ReadBuffers& buffers,
                   const void* context, Take take) const;

  std::string path_;
  std::vector<Source> sources_;
  ReadGeneration generation_;
  std::vector<Placed> placed_;  // by offset
  std::vector<Waiting> waiting_;
  ReadCounters counters_;
};

}  // namespace mtrains
