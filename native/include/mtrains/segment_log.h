// The log tier: streams of appended rows, segments on their way to the file, and reads of rows from both.
//
// The log knows bytes and locations and nothing of slots. Python commits the sealed segments to LMDB.
// Not thread-safe: the engine's mutex guards it. The writer thread alone touches a segment it took, until
// publish().
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "mtrains/appended_places.h"
#include "mtrains/block_reader.h"
#include "mtrains/buffer_pool.h"
#include "mtrains/evacuation.h"
#include "mtrains/garbage_index.h"
#include "mtrains/location.h"
#include "mtrains/log_read.h"
#include "mtrains/memory_map.h"
#include "mtrains/read_generations.h"
#include "mtrains/segment_format.h"

namespace mtrains {

enum class SegmentState : std::uint8_t {
  kFilling = 0,
  kSealed = 1,
  kPublished = 2,
  kDeleting = 3,
  kUnused = 4
};

// A segment that waits for its commit. Shared with the writer thread until it is published.
struct PendingSegment {
  explicit PendingSegment(std::shared_ptr<BufferPool> pool)
      : buffers(std::move(pool)), image(buffers->take()) {}
  ~PendingSegment() { buffers->give(std::move(image)); }
  PendingSegment(const PendingSegment&) = delete;
  PendingSegment& operator=(const PendingSegment&) = delete;

  const std::shared_ptr<BufferPool>
      buffers;  // its own share: Python may hold a segment for longer than the log
  SegmentHeader header;
  MemoryMap
      image;  // kSegmentImageBytes; what no row fills holds an earlier segment's bytes until it is sealed
  std::map<std::pair<std::uint32_t, std::uint16_t>, std::uint32_t> open_blocks;  // (table, layout) -> block
  SegmentPlaces places;
  std::size_t header_size = 0;  // without meta
  std::size_t meta_reserve = 0;
};

// One entry of the segment table.
struct Segment {
  std::uint64_t id = 0;
  std::uint64_t epoch = 0;
  std::uint64_t offset = 0;  // of the value in the file, once published
  std::uint32_t rows = 0;
  std::uint32_t live = 0;
  std::uint16_t used_pages = 0;  // of kSegmentPages, from when it is sealed
  SegmentState state = SegmentState::kUnused;
  bool changed = false;          // since the last checkpoint
  bool spared = false;           // cannot be read, so not emptied
  std::uint64_t emptied_at = 0;  // mark of the reads when the last live row left
  std::vector<std::pair<std::uint64_t, std::uint32_t>> superseded;  // (epoch of the newer version, rows)
  std::shared_ptr<PendingSegment> pending;                          // until published
};

struct LogCounters {
  std::uint64_t rows_read = 0, block_reads = 0, bytes_read = 0, rows_forwarded = 0;
  std::uint64_t rows_appended = 0, bytes_appended = 0, segments_sealed = 0;
  std::uint64_t gc_rows = 0, gc_bytes = 0;  // of the appended ones
  double read_seconds = 0, stall_seconds = 0;
};

// A segment that is worth emptying.
struct GarbageVictim {
  std::uint32_t number;
  std::uint64_t id;
  double live_share;  // of a full segment
};

// Bytes of published segments by what needs their rows: the present state, checkpoints alone, nothing
// (padding too).
struct LogUse {
  double live = 0, held = 0, dead = 0;
};

// Epochs of checkpoints, in any order.
using Epochs = std::vector<std::uint64_t>;

class SegmentLog {
 public:
  // max_blocks: of one segment; fewer than it has place for where its buffer would outgrow a small DRAM
  // budget.
  SegmentLog(std::uint32_t incarnation, std::uint32_t max_pending, std::uint32_t max_blocks);

  // --- reading
  std::string open(const std::string& path, const std::string& io_engine);
  const std::string& refused() const { return refused_; }
  // Says how long records of a table's layout are; before anything is appended or read in it.
  void add_layout(std::uint32_t table, std::uint16_t layout, std::size_t stride);
  // Calls take(tag, layout, record) for each read, in no particular order, within a read generation.
  // The bytes of `record` are valid during the call. Throws IoError, CorruptionError; some rows may have been
  // taken then.
  template <typename TakeRecord>
  void read(std::uint32_t table, const std::vector<RowRead>& reads, const TakeRecord& take);
  // The same in parts, for rows of any tables: of these only LogRead::run() needs no lock, through a reader
  // of its own. Tags are the caller's over all tables.
  std::unique_ptr<LogRead> begin_read();
  void add_to(LogRead& begun, std::uint32_t table, const std::vector<RowRead>& reads);
  std::shared_ptr<BlockReader> second_reader();  // made when first asked for; null while the log is not open
  void count(const ReadCounters& read);

  // --- appending. REQUIRES: has_room().
  // Segments that the rows of one full segment may need, when buffers are smaller than it.
  static std::uint32_t segments_to_hold_one(std::uint32_t max_blocks) { return 2 + kMaxBlocks / max_blocks; }
  std::uint32_t segments_to_hold_one() const { return segments_to_hold_one(max_blocks_); }
  bool has_room(std::uint32_t segments = 1) const { return num_pending_ + segments <= max_pending_; }
  // Garbage collection has some more buffers, which training cannot fill up: the disk would grow without
  // bound.
  bool has_room_to_empty_one() const {
    return num_pending_ + segments_to_hold_one() <=
           max_pending_ + std::max(segments_to_hold_one(), max_pending_ / 4);
  }
  Location append(std::uint64_t epoch, std::uint32_t table, std::uint16_t layout, std::uint64_t row,
                  std::uint64_t key, const std::byte* record);
  // The row at `location` has a newer version, born in `epoch`.
  void supersede(Location location, std::uint64_t epoch);
  // Seals what is filling in the streams of epochs <= epoch. The last segment of `epoch` is marked if
  // `closes`, and gets room for meta_bytes.
  void flush(std::uint64_t epoch, bool closes, std::size_t meta_bytes);

  // --- the writer thread
  std::function<void()> on_sealed;  // called whenever num_sealed() has grown by a seal
  std::vector<std::shared_ptr<PendingSegment>> take_sealed(std::size_t max_group);
  std::size_t num_sealed() const { return sealed_.size(); }
  void requeue(const std::vector<std::shared_ptr<PendingSegment>>& segments);
  // Returns what waited for it; its places are to be added to places(), which needs no lock, before a
  // checkpoint asks for them.
  std::shared_ptr<PendingSegment> publish(std::uint32_t number, std::uint64_t offset);
  std::uint32_t pending_segments(std::uint64_t epoch) const;

  // --- garbage. Each call takes the checkpoints that are retained or running; all segments are looked at
  // only when these are others than before.
  std::vector<GarbageVictim> choose_victims(const Epochs& checkpoints, std::size_t limit,
                                            const GarbagePolicy& policy);
  // Of a published segment, else none.
  std::optional<Evacuation> begin_evacuation(std::uint32_t number) const;
  // Has a segment not be chosen any more.
  void spare(std::uint32_t number);
  // (number, id) of at most `limit` segments that nothing needs; they are marked.
  std::vector<std::pair<std::uint32_t, std::uint64_t>> take_deletable(const Epochs& checkpoints,
                                                                      std::size_t limit);
  void deleted(std::uint32_t number);
  void undelete(std::uint32_t number);
  LogUse use(const Epochs& checkpoints) const;  // looks at all segments

  // --- checkpoints
  void load(std::uint32_t number, const Segment& segment);
  void finish_load();  // after the last load, before the first append
  // Of the rows in segments whose publish() was followed by places().add(), since forget().
  const std::shared_ptr<AppendedPlaces>& places() const { return places_; }
  const std::vector<std::uint32_t>& removed() const { return removed_; }
  const std::set<std::uint32_t>& changed() const { return changed_; }  // numbers, since forget()
  void forget(std::uint64_t epoch, std::uint64_t oldest_retained);

  const std::vector<Segment>& segments() const { return segments_; }
  LogCounters& counters() { return counters_; }
  const LogCounters& counters() const { return counters_; }
  bool is_open() const { return reader_ != nullptr; }

 private:
  Segment& at(Location location);
  // The block that the last row went to.
  struct Filling {
    PendingSegment* segment = nullptr;
    std::uint64_t epoch = 0;
    std::uint32_t table = 0;
    std::uint16_t layout = 0;
    std::uint32_t block = 0;
    std::size_t stride = 0;
    std::size_t rows_left = 0;  // that surely fit, in the block and in the header
  };

  PendingSegment& room_for(std::uint64_t epoch, std::uint32_t table, std::uint16_t layout,
                           std::size_t stride);
  void open_block(std::uint64_t epoch, std::uint32_t table, std::uint16_t layout);
  std::shared_ptr<PendingSegment> start(std::uint64_t epoch);
  void seal(std::uint64_t epoch);
  void mark_changed(std::uint32_t number);
  void judge(const Epochs& checkpoints);
  void index(std::uint32_t number);

  std::uint32_t incarnation_;
  std::uint32_t next_sequence_ = 1;
  std::uint32_t max_pending_;
  std::uint32_t max_blocks_;
  std::uint32_t num_pending_ = 0;
  std::shared_ptr<BufferPool> buffers_;             // of pending segments
  std::map<std::uint64_t, std::uint32_t> pending_;  // epoch -> unpublished segments
  std::vector<Segment> segments_;                   // by number; 0 unused
  std::vector<std::uint32_t> free_numbers_;
  std::vector<std::uint32_t> removed_;
  std::set<std::uint32_t> changed_;
  GarbageIndex garbage_;  // published segments with live rows that are not spared
  Epochs judged_by_;      // the checkpoints by which `garbage_` and `held_` were made
  std::uint64_t newest_checkpoint_ = 0;
  std::set<std::uint32_t> empty_;  // published segments without live rows, that may be deletable
  std::set<std::uint32_t> held_;   // ... that a checkpoint of judged_by_ needs
  std::map<std::uint64_t, std::shared_ptr<PendingSegment>> streams_;  // epoch -> filling
  std::vector<std::shared_ptr<PendingSegment>> sealed_;               // oldest first
  Filling filling_;
  const std::shared_ptr<AppendedPlaces> places_ = std::make_shared<AppendedPlaces>();
  std::string path_;
  std::string refused_;
  std::shared_ptr<BlockReader> reader_;
  std::shared_ptr<BlockReader> second_reader_;
  std::vector<std::shared_ptr<const Strides>> strides_;  // by table
  ReadBuffers read_buffers_;
  ReadGenerations reads_;
  LogCounters counters_;
};

template <typename TakeRecord>
void SegmentLog::read(std::uint32_t table, const std::vector<RowRead>& reads, const TakeRecord& take) {
  if (reads.empty()) return;
  const std::unique_ptr<LogRead> begun = begin_read();
  add_to(*begun, table, reads);
  begun->run(reader_.get(), read_buffers_, take);
  count(begun->counters());
  counters_.read_seconds += begun->counters().seconds;
}

}  // namespace mtrains
