// Where every row is, and how it gets from one place to another: tables, the chain of slot tiers, and the log
// behind it.
//
// The index (directory, slot indexes) decides, this moves the bytes. It computes nothing.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mtrains/directory.h"
#include "mtrains/evacuation.h"
#include "mtrains/memory_map.h"
#include "mtrains/record_layout.h"
#include "mtrains/row_init.h"
#include "mtrains/segment_log.h"
#include "mtrains/slot_tier.h"
#include "mtrains/thread_pool.h"
#include "mtrains/ticket.h"

namespace mtrains {

// Bytes that a table has of its own in each kind of tier, out of TierSpec::set_aside. 0: it passes the tier
// over. None: it shares the rest with the other tables.
using TableBudgets = std::array<std::optional<std::uint64_t>, kSlotTiers>;

struct TableLayout {
  RecordLayout record;
  float initial_state = 0;
};

// What became of the accesses of one table, and the rows of it that its training wrote to the log; monotone.
struct TableCounters {
  std::array<std::uint64_t, kSlotTiers> hits{};  // by level of the chain
  std::uint64_t new_rows = 0, fetches = 0, rows_appended = 0;
};

struct Table {
  Table(std::string name, std::uint64_t num_rows)
      : name(std::move(name)), num_rows(num_rows), directory(num_rows) {}

  std::string name;
  std::uint32_t number = 0;
  std::uint64_t num_rows;
  RowInit init;
  RowKey first_key = 0;
  TableBudgets budgets;
  std::vector<TableLayout> layouts;
  std::uint16_t layout = 0;
  Directory directory;
  // Of a pooled table, by level of the chain; null where it may use no slot. pools[0] computes.
  std::array<SlotPool*, kSlotTiers> pools{};
  // A resident table: slot = row, no index.
  bool resident = false;
  MemoryMap arena;
  MemoryMap present;  // one bit a row
  std::uint64_t num_present = 0;
  std::uint64_t version = 0;       // counts what changed rows: step, write_rows, restore
  std::uint64_t update_count = 0;  // counts steps; keys stochastic rounding
  TableCounters counters;

  const RecordLayout& record() const { return layouts[layout].record; }
  SlotPool& pool() const { return *pools[0]; }
  // Of the compute tier; null where they are on a device.
  std::byte* records() const { return resident ? arena.data() : pool().records; }
  DeviceRecords* device() const { return resident ? nullptr : pool().device.get(); }
  bool is_present(std::uint64_t row) const { return present.as<std::uint64_t>()[row / 64] >> (row % 64) & 1; }
  RowInit row_init() const {
    RowInit with_state = init;
    with_state.initial_state = layouts[layout].initial_state;
    return with_state;
  }
};

// What became of accesses that no slot tier had the row for, and the like; monotone. An access is a row of a
// lookup: hits of all tiers + new_rows + fetches = accesses.
struct AccessCounters {
  std::uint64_t new_rows = 0, fetches = 0, refetches = 0, unplanned_positions = 0, pieces = 0;
  std::uint64_t staged_rows = 0;     // new or from anywhere, brought before their forward
  std::uint64_t staged_fetches = 0;  // of these: out of the log
  std::uint64_t demand_fetches = 0;  // rows out of the log that a pass brought itself
};

// What a row is brought for: an access of a lookup, the same once more, or an access counted before.
enum class Bring : std::uint8_t { kAccess, kAgain, kStaged };

// Not thread-safe (the engine's mutex guards it), except find() for rows of distinct tables and mark_dirty()
// for distinct rows.
class RowStore {
 public:
  // tiers: from fast to slow, each with a budget; the first computes.
  RowStore(std::vector<TierSpec> tiers, std::uint32_t incarnation, std::uint64_t epoch,
           std::uint32_t max_pending, ThreadPool& threads, PolicyKind eviction = PolicyKind::kLru);
  ~RowStore() { close_base(); }
  RowStore(const RowStore&) = delete;
  RowStore& operator=(const RowStore&) = delete;

  // Blocks until the log has room; may let the writer thread in (locations, dirty stamps and segments change
  // meanwhile, slots do not). Throws if the log failed.
  std::function<void()> wait_for_room;
  // Unpins every row: slots are about to go.
  std::function<void()> release_pins = [] {};

  // --- tables
  std::uint32_t add_table(std::string name, std::uint64_t num_rows, std::uint32_t dim, WeightType dtype,
                          const RowInit& init, const TableBudgets& budgets = {});
  std::uint16_t add_layout(std::uint32_t table, std::uint32_t state_floats, float initial_state);
  void use_layout(std::uint32_t table, std::uint16_t layout);
  Table& table(std::uint32_t number) { return *tables_.at(number); }
  std::size_t num_tables() const { return tables_.size(); }
  // Decides which tables are resident and gives the others their pools, if tables or layouts changed since.
  void settle_residency();
  // Tells the slots of this store, with its present tables and layouts, from all others: of an earlier
  // layout, of the same store before a restore. Far apart, so that the generation of a slot index can be
  // added.
  std::uint64_t layout_generation() const;

  // --- bringing rows to the compute tier, from whatever tier they are in
  // Starts a pass: rows found or brought from here on cannot be evicted before the next one starts.
  void next_clock();
  // Sets slots[i] of the rows that are in the compute tier; appends the other i to `missing`.
  void find(Table& table, const std::uint64_t* rows, std::size_t n, std::uint32_t* slots,
            std::vector<std::uint32_t>& missing);
  // Brings the missing rows in and sets their slots. False, with nothing brought, if they do not fit beside
  // what this pass protects and what is pinned. If it throws, every row is still where one copy of it was
  // before. staged: bytes that were read before, with read_of_row for `rows`.
  bool bring(Table& table, const std::uint64_t* rows, std::uint32_t* slots,
             const std::vector<std::uint32_t>& missing, Bring why, const StagedRows* staged = nullptr,
             const std::uint32_t* read_of_row = nullptr);
  // Tells the policies that hear of it that a batch found its rows in these slots.
  void accessed(Table& table, const std::uint32_t* slots, std::size_t n);
  bool hears_accesses(const Table& table) const { return table.pool().index.policy().hears_accesses(); }
  // Counts one access a row, by where the rows are now.
  void count_accesses(Table& table, const std::uint64_t* rows, std::size_t n);
  // Rows of a table that surely fit in a pass of their own; >= 1.
  std::uint64_t pass_capacity(const Table& table) const;

  // --- rows of batches to come
  // Pins the ticket's rows that are in the compute tier, finds those that are not, and counts an access of
  // each. False, and nothing changed, if its pins would leave more than `share` of the tier pinned.
  bool begin_staging(Ticket& ticket, double share, StagedRows& staged);
  // Brings rows [begin, end) of `staged.missing` of the ticket's table number `which` and pins them. False if
  // they do not fit, or the ticket was cancelled or ended meanwhile: none is pinned then.
  bool finish_staging(Ticket& ticket, std::size_t which, const StagedRows& staged, std::size_t begin,
                      std::size_t end);
  // Marks the pinned rows as used by this pass, and sets slots of rows, which are some of them, ascending.
  void use_pinned(const TicketTable& pinned, const std::vector<std::uint64_t>& rows,
                  std::vector<std::uint32_t>& slots);
  void unpin(TicketTable& pinned);
  std::uint64_t num_pinned() const;
  LookaheadWindow& window() { return window_; }
  void add_to_window(Table& table, const std::uint64_t* rows, std::size_t n);
  void leave_window();
  void clear_window();
  void defer_waits(OwedWaits* owed);  // [kSlotTiers], by level: see SlotTier; null: no longer

  // --- changing rows
  // Appends the owed ones among these rows to the stream of their epoch.
  void settle_owed(Table& table, const std::uint32_t* slots, std::size_t n);
  // Stamps the rows with the present epoch; returns how many were clean.
  std::uint64_t mark_dirty(Table& table, const std::uint32_t* slots, std::size_t begin, std::size_t end);
  void add_dirty(std::uint64_t rows) { num_dirty_ += rows; }

  // --- rows as they are, from wherever; nothing moves. take(i, record in the present layout, valid during
  // the call)
  void peek(Table& table, const std::int64_t* rows, std::size_t n,
            const std::function<void(std::size_t, const std::byte*)>& take);
  // Touched rows from `begin` on, at most `limit`; returns the row to go on from.
  std::uint64_t touched_rows(Table& table, std::uint64_t begin, std::size_t limit,
                             std::vector<std::int64_t>& rows);

  // --- checkpoints and cleaning
  std::uint64_t epoch() const { return epoch_; }
  std::uint64_t begin_checkpoint();
  std::uint64_t owed() const { return num_owed_; }
  std::uint64_t dirty() const { return num_dirty_; }
  // Appends up to max_rows owed rows, as far as the log has room; returns how many remain.
  std::uint64_t sweep(std::size_t max_rows);
  // Appends the rows that are current in a segment which was read to the present stream; none is live there
  // then. Returns their bytes. REQUIRES: log().has_room_to_empty_one().
  std::uint64_t evacuate(Evacuation& evacuation);

  // --- base pages of the directory, in the catalog's file
  void open_base(const std::string& path);
  void close_base();

  SegmentLog& log() { return log_; }
  AccessCounters& counters() { return counters_; }
  void count_hits(Table& table, std::uint64_t rows, std::size_t level = 0) {
    levels_[level]->counters.hits += rows;
    table.counters.hits[level] += rows;
  }
  const std::vector<std::unique_ptr<SlotTier>>& levels() const { return levels_; }
  std::uint64_t resident_bytes() const;  // of rows of resident tables that were touched
  std::uint32_t table_of(RowKey key) const;
  Table& table_in(const SlotPool& pool, std::uint32_t slot) const {
    return *tables_[table_of(pool.index.key(slot))];
  }

 private:
  struct Dirty {
    Table* table;
    std::uint64_t row;
    std::uint32_t slot;
  };

  std::uint64_t epoch_of(std::uint32_t stamp) const {
    return stamp == stamp_of(epoch_) ? epoch_ : epoch_ - 1;
  }
  void uncount(std::uint32_t stamp) { --(stamp == stamp_of(epoch_) ? num_dirty_ : num_owed_); }
  bool make_room(SlotPool& pool, std::size_t needed);
  bool borrow(SlotPool& pool, bool only_worse);
  bool shrink(SlotPool& pool);
  // Makes up to `wanted` least recently used rows leave; how many did. At least one, if one can.
  std::size_t evict_oldest(SlotPool& pool, std::size_t wanted);
  void prefetch(const SlotPool& pool, std::uint32_t slot, const Table& table) const;
  enum class Below { kNextTier, kLog };
  void evict(SlotPool& pool, std::uint32_t slot, Table& table, const std::byte* record, Below below);
  bool move_down(SlotPool& pool, std::uint32_t slot, Table& table, const std::byte* record);
  // Of a row that is dirty, which is clean then; waits for room.
  void append_slot(SlotPool& pool, std::uint32_t slot, Table& table, const std::byte* record);
  // Calls visit(slot, record) for each; records of a device are copied to memory first.
  template <typename Visit>
  void each_record(SlotPool& pool, const std::vector<std::uint32_t>& slots, const Visit& visit);
  void protect(SlotPool& pool, std::uint32_t slot) {
    pool.num_protected += pool.index.touch(slot, clock_) && pool.index.hot(slot).pins() == 0;
  }
  void pin(SlotPool& pool, std::uint32_t slot);
  bool may_pin(const Ticket& ticket, double share);
  void begin_staging(TicketTable& part, std::size_t which, bool counts, StagedRows& staged);
  void next_use_changed(RowKey key, std::uint32_t next_use);
  SlotPool& pool_at(const Table& table, Entry entry) const { return *table.pools[level_of(entry)]; }
  std::vector<SlotPool*> pools() const;
  void append_resident(Table& table, std::uint64_t row);
  void bring_resident(Table& table, const std::uint64_t* rows, const std::vector<std::uint32_t>& missing,
                      Bring why, const StagedRows* staged, const std::uint32_t* read_of_row);
  void bring_pooled(Table& table, const std::uint64_t* rows, std::uint32_t* slots,
                    const std::vector<std::uint32_t>& missing, Bring why, const StagedRows* staged,
                    const std::uint32_t* read_of_row);
  void count_brought(Table& table, Bring why, std::uint64_t fresh, std::uint64_t fetched,
                     std::uint64_t promoted);
  void promote(Table& table, Entry from, std::uint32_t slot);
  void initialise(Table& table, const std::vector<std::pair<std::uint64_t, std::byte*>>& records);
  void copy_record(const Table& table, std::uint16_t layout, const std::byte* from, std::byte* to) const;
  Entry entry(Table& table, std::uint64_t row);  // after reading its base page, if that is still to be read
  void read_base_page(Table& table, std::uint64_t page, std::uint64_t offset);
  bool touched(const Table& table, Entry entry) const;
  void check_record(const std::string& name, std::uint64_t num_rows, const RecordLayout& record,
                    const TableBudgets& budgets) const;
  std::uint64_t budget_of(const SlotTier& tier, const TableBudgets& budgets) const;
  void make_resident(Table& table);
  void make_pooled(Table& table);
  void empty_slots_of(Table& table);
  bool fits_whole(const Table& table, std::uint64_t bytes) const;
  std::uint64_t sweep_pool(SlotPool& pool, std::size_t max_rows);
  std::uint64_t sweep_resident(Table& table, std::size_t max_rows);
  Location log_location(Table& table, std::uint64_t row);
  std::uint32_t dirty_stamp(const Table& table, std::uint64_t row) const;
  void leave_log(Table& table, std::uint64_t row, Location location, std::uint64_t epoch);
  void move_row(Table& table, std::uint64_t row, Location location, std::uint16_t layout,
                const std::byte* record);

  SlotTier& compute() const { return *levels_[0]; }
  void count_misses(Table& table, std::uint64_t new_rows, std::uint64_t fetches) {
    counters_.new_rows += new_rows;
    counters_.fetches += fetches;
    table.counters.new_rows += new_rows;
    table.counters.fetches += fetches;
  }

  LookaheadWindow window_;
  std::vector<std::unique_ptr<SlotTier>> levels_;  // from fast to slow
  std::uint64_t epoch_;
  ThreadPool& threads_;
  SegmentLog log_;
  std::vector<std::unique_ptr<Table>> tables_;
  RowKey next_key_ = 0;
  bool residency_stale_ = true;
  std::uint64_t num_layouts_settled_ = 0;
  std::uint64_t birth_;  // of (incarnation, first epoch)
  std::uint32_t clock_ = 0;
  std::uint32_t last_table_ = 0;  // of next_use_changed
  std::uint64_t num_dirty_ = 0;   // rows in slots whose last change is of the present epoch
  std::uint64_t num_owed_ = 0;    // ... of the one before
  std::size_t sweep_part_ = 0;    // where the sweep goes on: pools first, then resident tables
  std::uint64_t sweep_at_ = 0;
  int base_fd_ = -1;
  std::string base_path_;
  AccessCounters counters_;
};

}  // namespace mtrains
