// A tier without bytes: replays a trace through the slot index and its eviction policies.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "mtrains/access_trace.h"
#include "mtrains/next_use_policy.h"
#include "mtrains/policies.h"
#include "mtrains/slot_index.h"
#include "mtrains/slot_memory.h"

namespace mtrains {

struct SimulationSpec {
  std::uint32_t capacity = 1;  // slots
  PolicyKind policy = PolicyKind::kLru;
  LfuSpec lfu{};
  // Batches of ids known beyond the present one; rows with a next use there leave last. 0: `policy` alone.
  // As many as the trace has: Belady's OPT.
  std::uint32_t lookahead = 0;
  // Batches beyond the present one whose rows are brought and pinned ahead; at most kMaxDepth.
  std::uint32_t depth = 0;
  // Rows are brought ahead only while pinned rows stay within this share of the slots.
  double max_pinned_ratio = 1.0 / 3;
  // Rows leave after a batch down to the capacity, which the batch may exceed, not before it. Without depth.
  bool evict_after = false;
  // Slots that a row of each table takes, for a sample of rows each of which stands for several. Empty: one.
  std::vector<std::uint32_t> weights;
  // Rows a block of a log that victims are appended to in the order in which they leave; 0: no log.
  std::uint32_t rows_per_block = 0;
};
inline constexpr std::uint32_t kMaxDepth = SlotRecord::kMaxPins - 1;

// One access per unique row and batch, counted when its row is brought, times the row's weight.
struct AccessCounts {
  std::uint32_t hits = 0;
  std::uint32_t new_rows = 0;  // first touch: no read
  std::uint32_t fetches = 0;
};

struct SimulationCounts {
  std::vector<std::uint64_t> hits, new_rows, fetches;  // by table, not weighed
  std::vector<AccessCounts> batches;
  std::uint64_t evictions = 0;
  std::uint64_t batches_ahead = 0;  // how many were pinned ahead, summed over batches
  std::uint64_t split_batches = 0;  // larger than the tier: brought in pieces
  std::uint64_t block_reads =
      0;  // distinct blocks of the log that the fetches of each batch, or piece, lie in
};

// Runs once. The trace outlives it.
class Simulator {
 public:
  // Throws std::invalid_argument.
  Simulator(const AccessTrace& trace, const SimulationSpec& spec);

  SimulationCounts run();

 private:
  static constexpr std::uint32_t kNowhere = 0xffffffffu;

  void next_clock();
  void enter_batches(std::uint32_t end);
  void changed(RowKey key, std::uint32_t next_use);
  void step_before(std::uint32_t batch);
  void step_after(std::uint32_t batch);
  bool stage(std::uint32_t batch, double pin_limit);
  void bring_in_pieces(std::uint32_t batch);
  void count(std::uint32_t batch, std::uint32_t row, bool hit);
  void insert(std::uint32_t row);
  bool evict_one();
  // Evicts until rows that take `slots` fit, or nothing more may leave.
  void make_room(std::uint64_t slots);
  std::uint32_t weight_of(std::uint32_t row) const {
    return spec_.weights.empty() ? 1 : spec_.weights[trace_.table_of(row)];
  }
  void note_block(std::uint32_t row);

  const AccessTrace& trace_;
  const SimulationSpec spec_;
  HostMemory memory_;
  SlotIndex index_;
  LookaheadWindow window_;
  NextUsePolicy* next_use_ = nullptr;  // the index's policy, if it has a window
  std::vector<std::uint32_t> slot_of_row_;
  std::vector<bool> seen_;
  std::vector<std::uint32_t> block_of_row_;   // of the log
  std::vector<std::uint32_t> read_of_block_;  // number of the stage that read it last, or 0
  std::uint32_t num_stages_ = 0;              // batches, or pieces of one, that were brought
  std::uint64_t num_logged_ = 0;
  std::uint64_t slots_used_ = 0;
  std::uint64_t slots_pinned_ = 0;
  std::uint32_t staged_end_ = 0;
  std::uint32_t clock_ = 0;
  SimulationCounts counts_;
};

}  // namespace mtrains
