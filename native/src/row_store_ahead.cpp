// Rows of batches to come: pins, staging, and the window that ranks who must leave.
#include <algorithm>
#include <cassert>
#include <map>

#include "mtrains/row_store.h"

namespace mtrains {

// --- pins

void RowStore::pin(SlotPool& pool, std::uint32_t slot) {
  const SlotRecord& record = pool.index.hot(slot);
  if (record.pins() == 0) {
    ++pool.num_pinned;
    if (record.last_use == clock_) --pool.num_protected;
  }
  pool.index.pin(slot);
}

void RowStore::unpin(TicketTable& pinned) {
  if (pinned.slots.empty()) return;
  SlotPool& pool = tables_[pinned.table]->pool();
  for (const std::uint32_t slot : pinned.slots) {
    if (slot == kNoSlot) continue;
    pool.index.unpin(slot);
    const SlotRecord& record = pool.index.hot(slot);
    if (record.pins() > 0) continue;
    --pool.num_pinned;
    if (record.last_use == clock_) ++pool.num_protected;
  }
  pinned.slots.clear();
}

std::uint64_t RowStore::num_pinned() const {
  std::uint64_t pinned = 0;
  for (const SlotPool* pool : levels_[0]->pools()) pinned += pool->num_pinned;
  return pinned;
}

void RowStore::use_pinned(const TicketTable& pinned, const std::vector<std::uint64_t>& rows,
                          std::vector<std::uint32_t>& slots) {
  SlotPool& pool = tables_[pinned.table]->pool();
  slots.resize(rows.size());
  std::size_t at = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    while (pinned.rows[at] != rows[i]) ++at;
    slots[i] = pinned.slots[at];
    __builtin_prefetch(pool.index.hot_data() + slots[i], 1);
  }
  for (const std::uint32_t slot : slots) protect(pool, slot);
}

// --- staging

// Whether all rows of the ticket can be pinned within `share` of the tier.
bool RowStore::may_pin(const Ticket& ticket, double share) {
  std::map<SlotPool*, std::uint64_t> more;
  for (const TicketTable& part : ticket.tables) {
    Table& table = *tables_[part.table];
    if (table.resident) continue;
    SlotPool& pool = table.pool();
    std::uint64_t& newly = more[&pool];
    for (const std::uint64_t row : part.rows) {
      const Entry found = entry(table, row);
      if (!in_compute_tier(found)) {
        ++newly;
        continue;
      }
      const std::uint32_t pins = pool.index.hot(static_cast<std::uint32_t>(found)).pins();
      if (pins == SlotRecord::kMaxPins) return false;
      newly += pins == 0;
    }
  }
  return levels_[0]->may_pin(more, share);
}

bool RowStore::begin_staging(Ticket& ticket, double share, StagedRows& staged) {
  if (!may_pin(ticket, share)) return false;
  next_clock();
  staged.missing.resize(ticket.tables.size());
  staged.read_of_row.resize(ticket.tables.size());
  staged.read = log_.begin_read();
  for (std::size_t which = 0; which < ticket.tables.size(); ++which)
    begin_staging(ticket.tables[which], which, /*counts=*/!ticket.counted, staged);
  ticket.counted = true;
  return true;
}

void RowStore::begin_staging(TicketTable& part, std::size_t which, bool counts, StagedRows& staged) {
  Table& table = *tables_[part.table];
  if (table.resident && table.num_present == table.num_rows) {
    if (counts) count_hits(table, part.rows.size());
    return;
  }
  if (!table.resident) part.slots.assign(part.rows.size(), kNoSlot);
  std::vector<std::uint32_t>& read_of_row = staged.read_of_row[which];
  read_of_row.assign(part.rows.size(), StagedRows::kNone);
  const std::size_t longest =
      std::max_element(table.layouts.begin(), table.layouts.end(), [](const auto& x, const auto& y) {
        return x.record.stride() < y.record.stride();
      })->record.stride();
  std::vector<RowRead> reads;
  std::vector<std::uint32_t> found_slots;
  for (std::uint32_t i = 0; i < part.rows.size(); ++i) {
    const Entry found = entry(table, part.rows[i]);
    const auto slot = static_cast<std::uint32_t>(found);
    if (table.resident ? table.is_present(part.rows[i]) : in_compute_tier(found)) {
      if (counts) count_hits(table, 1);
      if (table.resident) continue;
      pin(table.pool(), slot);
      table.pool().index.touch(slot, clock_);
      part.slots[i] = slot;
      found_slots.push_back(slot);
      continue;
    }
    staged.missing[which].push_back(i);
    if (!table.resident && (found & kInSlot)) {
      if (counts) count_hits(table, 1, level_of(found));
    } else if ((found & kLocationMask) == 0) {
      if (counts) count_misses(table, 1, 0);
    } else {
      if (counts) count_misses(table, 0, 1);
      read_of_row[i] = static_cast<std::uint32_t>(staged.rows.size());
      reads.push_back({found & kLocationMask, read_of_row[i]});
      staged.rows.push_back({found & kLocationMask, 0, staged.num_bytes});
      staged.num_bytes += longest;
    }
  }
  if (!reads.empty()) log_.add_to(*staged.read, part.table, reads);
  if (counts && !table.resident) accessed(table, found_slots.data(), found_slots.size());
}

bool RowStore::finish_staging(Ticket& ticket, std::size_t which, const StagedRows& staged, std::size_t begin,
                              std::size_t end) {
  TicketTable& part = ticket.tables[which];
  Table& table = *tables_[part.table];
  const std::vector<std::uint32_t> missing(staged.missing[which].begin() + static_cast<std::ptrdiff_t>(begin),
                                           staged.missing[which].begin() + static_cast<std::ptrdiff_t>(end));
  next_clock();
  std::vector<std::uint32_t> slots(table.resident ? 0 : part.rows.size());
  if (!bring(table, part.rows.data(), slots.data(), missing, Bring::kStaged, &staged,
             staged.read_of_row[which].data()))
    return false;
  // Waiting for room in the log lets others in, who may have ended the ticket.
  if (ticket.state != Ticket::State::kStaging) return false;
  if (table.resident) return true;
  for (const std::uint32_t i : missing) {
    pin(table.pool(), slots[i]);
    part.slots[i] = slots[i];
  }
  return true;
}

void RowStore::accessed(Table& table, const std::uint32_t* slots, std::size_t n) {
  if (n == 0 || !hears_accesses(table)) return;
  SlotIndex& index = table.pool().index;
  for (std::size_t i = 0; i < n; ++i) index.policy().accessed(index, slots[i]);
}

// --- the window

// A resident table's rows do not leave.
void RowStore::add_to_window(Table& table, const std::uint64_t* rows, std::size_t n) {
  if (table.resident) return;
  std::vector<RowKey> keys(rows, rows + n);
  for (RowKey& key : keys) key += table.first_key;
  window_.add(keys.data(), n,
              [this](RowKey key, std::uint32_t next_use) { next_use_changed(key, next_use); });
}

void RowStore::leave_window() {
  window_.leave([this](RowKey key, std::uint32_t next_use) { next_use_changed(key, next_use); });
}

void RowStore::clear_window() {
  window_.clear([this](RowKey key, std::uint32_t next_use) { next_use_changed(key, next_use); });
}

void RowStore::next_use_changed(RowKey key, std::uint32_t next_use) {
  // Rows of one table mostly come together.
  const Table* last = tables_[last_table_].get();
  if (key < last->first_key || key >= last->first_key + last->num_rows) last_table_ = table_of(key);
  Table& table = *tables_[last_table_];
  const Entry found = table.directory.get(key - table.first_key);
  if (table.resident || !(found & kInSlot)) return;
  SlotPool& pool = pool_at(table, found);
  pool.next_use->next_use_changed(pool.index, static_cast<std::uint32_t>(found), next_use);
}

// --- emulated devices

void RowStore::defer_waits(OwedWaits* owed) {
  for (std::size_t level = 0; level < levels_.size(); ++level)
    levels_[level]->defer_waits(owed == nullptr ? nullptr : owed + level);
}

}  // namespace mtrains
