// A lookup that is known before its forward: its rows, its plan, and the pins that keep its rows in the
// compute tier.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "mtrains/batch_plan.h"
#include "mtrains/log_read.h"

namespace mtrains {

// The rows of one table in a lookup.
struct TicketTable {
  std::uint32_t table = 0;
  std::vector<std::uint64_t> rows;   // unique over all features of the table, ascending
  std::vector<std::uint32_t> slots;  // of each row, kNoSlot unless it is pinned there; empty: none is
};

// Of what a lookup is given: equal digests, equal indices and bags.
struct LookupDigest {
  std::uint64_t low = 0, high = 0;
  bool operator==(const LookupDigest&) const = default;
};

// The engine's mutex guards it once the engine has it; whoever wants to know may read the state.
struct Ticket {
  enum class State : std::uint8_t {
    kKnown,     // rows alone
    kStaging,   // rows are on their way
    kStaged,    // every row is in the compute tier and pinned
    kUnstaged,  // planned; its forward brings what is not there
    kEnded
  };

  std::vector<std::uint32_t> tables_of_features;
  std::vector<TicketTable> tables;  // each once
  std::atomic<State> state{State::kKnown};
  bool counted = false;  // its accesses are counted
  // Once planned:
  std::vector<BatchPlan> plans;  // by feature, without slots
  LookupDigest digest;
  std::uint64_t num_indices = 0;

  void add_rows(std::uint32_t table, const std::vector<std::uint64_t>& rows);
  TicketTable* table(std::uint32_t number) {
    for (TicketTable& part : tables) {
      if (part.table == number) return &part;
    }
    return nullptr;
  }
};

// Rows out of the log for a ticket. What the log has of each by then may be elsewhere when they come; then
// its location differs.
struct StagedRows {
  struct Row {
    Location location = 0;
    std::uint16_t layout = 0;
    std::size_t begin = 0;  // in bytes
  };
  // By table of the ticket, of the rows that are not in the compute tier: their number in it.
  std::vector<std::vector<std::uint32_t>> missing;
  // By table and row of the table: an entry of `rows`, or kNone.
  static constexpr std::uint32_t kNone = 0xffffffffu;
  std::vector<std::vector<std::uint32_t>> read_of_row;
  std::vector<Row> rows;
  std::unique_ptr<LogRead> read;
  std::size_t num_bytes = 0;
  std::unique_ptr<std::byte[]> bytes;  // records, in the layouts that they had
};

}  // namespace mtrains
