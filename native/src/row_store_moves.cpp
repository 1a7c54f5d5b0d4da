// Finding rows, and bringing them to the compute tier from wherever they are.
#include <algorithm>
#include <cassert>
#include <cstring>

#include "mtrains/errors.h"
#include "mtrains/row_store.h"
#include "row_store_records.h"

namespace mtrains {
namespace {

constexpr std::size_t kPrefetchRows = 16;
constexpr std::size_t kRowsPerTask = 256;

// What was read of row i before, if the row still is where it was read.
const StagedRows::Row* staged_row(const StagedRows* staged, const std::uint32_t* read_of_row, std::uint32_t i,
                                  Location location) {
  if (staged == nullptr || read_of_row[i] == StagedRows::kNone) return nullptr;
  const StagedRows::Row& row = staged->rows[read_of_row[i]];
  return row.location == location ? &row : nullptr;
}

}  // namespace

void RowStore::next_clock() {
  if (clock_ == kLastClock) {
    for (SlotPool* pool : pools()) pool->index.rebase(kClockRebase);
    clock_ -= kClockRebase;
  }
  ++clock_;
  for (SlotPool* pool : pools()) pool->num_protected = 0;
}

void RowStore::find(Table& table, const std::uint64_t* rows, std::size_t n, std::uint32_t* slots,
                    std::vector<std::uint32_t>& missing) {
  if (table.resident) {
    const bool all_present = table.num_present == table.num_rows;
    for (std::size_t i = 0; i < n; ++i) {
      slots[i] = static_cast<std::uint32_t>(rows[i]);
      if (!all_present && !table.is_present(rows[i])) missing.push_back(static_cast<std::uint32_t>(i));
    }
    return;
  }
  SlotIndex& index = table.pool().index;
  const Entry* entries = table.directory.data();
  std::uint32_t first_uses = 0;
  for (std::size_t i = 0; i < n; ++i) {
    if (i + kPrefetchRows < n) __builtin_prefetch(&entries[rows[i + kPrefetchRows]]);
    const Entry entry = entries[rows[i]];
    if (in_compute_tier(entry)) {
      slots[i] = static_cast<std::uint32_t>(entry);
      __builtin_prefetch(index.hot_data() + slots[i], 1);
    } else {
      missing.push_back(static_cast<std::uint32_t>(i));
      slots[i] = 0xffffffffu;
    }
  }
  for (std::size_t i = 0; i < n; ++i) {
    if (slots[i] != 0xffffffffu)
      first_uses += index.touch(slots[i], clock_) && index.hot(slots[i]).pins() == 0;
  }
  table.pool().num_protected.fetch_add(first_uses, std::memory_order_relaxed);
}

void RowStore::count_accesses(Table& table, const std::uint64_t* rows, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    const Entry found = entry(table, rows[i]);
    if (found & kInSlot) {
      count_hits(table, 1, level_of(found));
    } else {
      count_misses(table, found ? 0 : 1, found ? 1 : 0);
    }
  }
}

std::uint64_t RowStore::pass_capacity(const Table& table) const {
  if (table.resident) return 0xffffffffu;
  return std::max<std::uint64_t>(1, table.pool().budget / table.pool().slot_bytes());
}

bool RowStore::bring(Table& table, const std::uint64_t* rows, std::uint32_t* slots,
                     const std::vector<std::uint32_t>& missing, Bring why, const StagedRows* staged,
                     const std::uint32_t* read_of_row) {
  if (missing.empty()) return true;
  if (table.resident) {
    bring_resident(table, rows, missing, why, staged, read_of_row);
    return true;
  }
  // Another lookup of this pass may have brought some of them meanwhile. Those in lower tiers stay there
  // until there is room, which others leave for those tiers.
  std::vector<std::uint32_t> absent;
  absent.reserve(missing.size());
  for (const std::uint32_t i : missing) {
    const Entry entry = table.directory.get(rows[i]);
    if (entry & kInSlot) protect(pool_at(table, entry), static_cast<std::uint32_t>(entry));
    if (in_compute_tier(entry)) {
      slots[i] = static_cast<std::uint32_t>(entry);
    } else {
      absent.push_back(i);
    }
  }
  if (!make_room(table.pool(), absent.size())) return false;
  if (why == Bring::kAccess) count_hits(table, missing.size() - absent.size());
  bring_pooled(table, rows, slots, absent, why, staged, read_of_row);
  return true;
}

void RowStore::initialise(Table& table, const std::vector<std::pair<std::uint64_t, std::byte*>>& records) {
  const RowInit init = table.row_init();
  const RecordLayout layout = table.record();
  threads_.run((records.size() + kRowsPerTask - 1) / kRowsPerTask, [&](std::size_t task) {
    const std::size_t end = std::min(records.size(), (task + 1) * kRowsPerTask);
    for (std::size_t i = task * kRowsPerTask; i < end; ++i)
      init.fill(layout, records[i].first, records[i].second);
  });
}

void RowStore::copy_record(const Table& table, std::uint16_t layout, const std::byte* from,
                           std::byte* to) const {
  const TableLayout& present = table.layouts[table.layout];
  if (layout == table.layout) {
    std::memcpy(to, from, present.record.stride());
    return;
  }
  const std::size_t weights = present.record.state_offset();
  std::memcpy(to, from, weights);
  for (std::uint32_t i = 0; i < present.record.state_floats; ++i) {
    std::memcpy(to + weights + 4 * i, &present.initial_state, 4);
  }
}

void RowStore::bring_resident(Table& table, const std::uint64_t* rows,
                              const std::vector<std::uint32_t>& missing, Bring why, const StagedRows* staged,
                              const std::uint32_t* read_of_row) {
  std::vector<std::pair<std::uint64_t, std::byte*>> fresh;
  std::vector<RowRead> reads;
  std::vector<std::uint64_t> read_rows;
  std::uint64_t from_staged = 0;
  const std::size_t stride = table.record().stride();
  std::uint64_t* present = table.present.as<std::uint64_t>();
  const auto set_present = [&](std::uint64_t row) {
    present[row / 64] |= std::uint64_t{1} << (row % 64);
    table.directory.insert(row, table.directory.get(row) | kInSlot);
    ++table.num_present;
  };
  for (const std::uint32_t i : missing) {
    const std::uint64_t row = rows[i];
    if (table.is_present(row)) {  // another lookup of this pass has brought it
      if (why == Bring::kAccess) count_hits(table, 1);
      continue;
    }
    const Entry found = entry(table, row);
    std::byte* record = table.arena.data() + row * stride;
    if ((found & kLocationMask) == 0) {
      fresh.emplace_back(row, record);
      set_present(row);
    } else if (const StagedRows::Row* read = staged_row(staged, read_of_row, i, found & kLocationMask)) {
      copy_record(table, read->layout, staged->bytes.get() + read->begin, record);
      set_present(row);
      ++from_staged;
    } else {
      reads.push_back({found & kLocationMask, static_cast<std::uint32_t>(read_rows.size())});
      read_rows.push_back(row);
      set_present(row);
    }
  }
  initialise(table, fresh);
  try {
    log_.read(table.number, reads,
              [&](std::uint32_t tag, std::uint16_t layout, std::span<const std::byte> record) {
                copy_record(table, layout, record.data(), table.arena.data() + read_rows[tag] * stride);
              });
  } catch (...) {
    for (const std::uint64_t row : read_rows) {
      present[row / 64] &= ~(std::uint64_t{1} << (row % 64));
      table.directory.overwrite(row, table.directory.get(row) & ~kInSlot);
      --table.num_present;
    }
    throw;
  }
  count_brought(table, why, fresh.size(), reads.size() + from_staged, 0);
}

void RowStore::count_brought(Table& table, Bring why, std::uint64_t fresh, std::uint64_t fetched,
                             std::uint64_t promoted) {
  switch (why) {
    case Bring::kAccess:
      count_misses(table, fresh, fetched);
      counters_.demand_fetches += fetched;
      break;
    case Bring::kAgain:
      counters_.refetches += fresh + fetched + promoted;
      counters_.demand_fetches += fetched;
      break;
    case Bring::kStaged:  // counted before
      counters_.staged_rows += fresh + fetched + promoted;
      counters_.staged_fetches += fetched;
  }
}

// Of a row whose bytes are in a slot of the compute tier by now: takes over the rest, and gives its old slot
// up.
void RowStore::promote(Table& table, Entry from, std::uint32_t slot) {
  SlotPool& lower = pool_at(table, from);
  const auto old = static_cast<std::uint32_t>(from);
  table.pool().index.hot(slot).set_stamp(lower.index.hot(old).stamp());
  if (lower.index.hot(old).last_use == clock_) --lower.num_protected;
  lower.index.evict(old);
  ++levels_[lower.level]->counters.rows_out;
}

void RowStore::bring_pooled(Table& table, const std::uint64_t* rows, std::uint32_t* slots,
                            const std::vector<std::uint32_t>& missing, Bring why, const StagedRows* staged,
                            const std::uint32_t* read_of_row) {
  if (missing.empty()) return;
  SlotPool& pool = table.pool();
  std::vector<std::pair<std::uint64_t, std::byte*>> fresh;
  std::vector<RowRead> reads;
  std::uint64_t from_staged = 0;
  for (const std::uint32_t i : missing) entry(table, rows[i]);  // base pages first: they change the directory
  std::vector<std::uint32_t> new_slots;
  new_slots.reserve(missing.size());
  std::vector<std::byte> for_device(pool.device != nullptr ? missing.size() * pool.stride : 0);
  const auto place = [&](std::size_t k) {
    return pool.device != nullptr ? &for_device[k * pool.stride] : pool.record(new_slots[k]);
  };
  // A read or a device may fail, so the rows stay where they are until the bytes of all have come.
  try {
    for (std::size_t k = 0; k < missing.size(); ++k) {
      const std::uint64_t row = rows[missing[k]];
      const Entry found = table.directory.get(row);
      const SlotPool* lower = found & kInSlot ? &pool_at(table, found) : nullptr;
      const auto old = static_cast<std::uint32_t>(found);
      const Location location = lower != nullptr ? lower->index.location(old) : found & kLocationMask;
      new_slots.push_back(pool.index.insert(table.first_key + row, location, clock_));
      if (lower != nullptr) {
        std::memcpy(place(k), lower->record(old), pool.stride);
      } else if (location == 0) {
        fresh.emplace_back(row, place(k));
      } else if (const StagedRows::Row* read = staged_row(staged, read_of_row, missing[k], location)) {
        copy_record(table, read->layout, staged->bytes.get() + read->begin, place(k));
        ++from_staged;
      } else {
        reads.push_back({location, static_cast<std::uint32_t>(k)});
      }
    }
    initialise(table, fresh);
    log_.read(table.number, reads,
              [&](std::uint32_t k, std::uint16_t layout, std::span<const std::byte> record) {
                copy_record(table, layout, record.data(), place(k));
              });
    if (pool.device != nullptr) pool.device->store(new_slots.data(), missing.size(), for_device.data());
  } catch (...) {
    for (const std::uint32_t slot : new_slots) pool.index.evict(slot);
    throw;
  }
  pool.num_protected += static_cast<std::uint32_t>(missing.size());
  std::array<std::uint64_t, kSlotTiers> promoted{};
  for (std::size_t k = 0; k < missing.size(); ++k) {
    const std::uint64_t row = rows[missing[k]];
    const Entry found = table.directory.get(row);
    if (found & kInSlot) {
      ++promoted[level_of(found)];
      promote(table, found, new_slots[k]);
    }
    table.directory.insert(row, slot_entry(0, new_slots[k]));
    slots[missing[k]] = new_slots[k];
  }
  for (const auto& tier : levels_) {
    const std::uint64_t rows_up = promoted[tier->level()];
    tier->charge(rows_up, 0, pool.stride);
    if (why == Bring::kAccess) count_hits(table, rows_up, tier->level());
  }
  const std::uint64_t fetched = reads.size() + from_staged;
  count_brought(table, why, fresh.size(), fetched, missing.size() - fresh.size() - fetched);
}

// --- changing rows

void RowStore::settle_owed(Table& table, const std::uint32_t* slots, std::size_t n) {
  if (num_owed_ == 0) return;
  const std::uint32_t owed = stamp_of(epoch_ - 1);
  if (table.resident) {
    for (std::size_t i = 0; i < n; ++i) {
      if ((table.directory.get(slots[i]) & kStampMask) >> kStampShift == owed)
        append_resident(table, slots[i]);
    }
    return;
  }
  SlotPool& pool = table.pool();
  std::vector<std::uint32_t> owing;
  for (std::size_t i = 0; i < n; ++i) {
    if (pool.index.hot(slots[i]).stamp() == owed) owing.push_back(slots[i]);
  }
  each_record(pool, owing,
              [&](std::uint32_t slot, const std::byte* record) { append_slot(pool, slot, table, record); });
}

std::uint64_t RowStore::mark_dirty(Table& table, const std::uint32_t* slots, std::size_t begin,
                                   std::size_t end) {
  const std::uint32_t stamp = stamp_of(epoch_);
  std::uint64_t were_clean = 0;
  if (table.resident) {
    const Entry bits = Entry{stamp} << kStampShift;
    const Entry* entries = table.directory.data();
    for (std::size_t i = begin; i < end; ++i) {
      if (i + kPrefetchRows < end) __builtin_prefetch(&entries[slots[i + kPrefetchRows]], 1);
      const Entry entry = entries[slots[i]];
      if ((entry & kStampMask) == bits) continue;
      assert((entry & kStampMask) == 0);
      ++were_clean;
      table.directory.overwrite(slots[i], entry | bits);
    }
    return were_clean;
  }
  SlotIndex& index = table.pool().index;
  for (std::size_t i = begin; i < end; ++i) {
    if (i + kPrefetchRows < end) __builtin_prefetch(index.hot_data() + slots[i + kPrefetchRows], 1);
    SlotRecord& record = index.hot(slots[i]);
    if (record.stamp() == stamp) continue;
    assert(record.stamp() == kClean);
    ++were_clean;
    record.set_stamp(stamp);
  }
  return were_clean;
}

}  // namespace mtrains
