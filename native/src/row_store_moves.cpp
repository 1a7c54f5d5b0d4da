// Bringing rows to the compute tier and making room for them.
#include <algorithm>
#include <cassert>
#include <cstring>

#include "mtrains/errors.h"
#include "mtrains/row_store.h"

namespace mtrains {
namespace {

constexpr std::size_t kPrefetchRows = 16;
// Slots are lent to a pool by slabs: small ones under a small budget, so that several strides get their
// share.
constexpr std::uint64_t kSlabBytes = 256 << 10;
constexpr std::uint64_t kSlabsPerBudget = 32;
constexpr std::uint32_t kLastClock = 0xf0000000u;
constexpr std::uint32_t kClockRebase = 0x80000000u;
constexpr std::size_t kRowsPerTask = 256;

}  // namespace

void RowStore::next_clock() {
  if (clock_ == kLastClock) {
    for (auto& [stride, pool] : pools_) pool->index.rebase(kClockRebase);
    clock_ -= kClockRebase;
  }
  ++clock_;
  for (auto& [stride, pool] : pools_) pool->num_protected = 0;
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
  SlotIndex& index = table.pool->index;
  const Entry* entries = table.directory.data();
  std::uint32_t first_uses = 0;
  for (std::size_t i = 0; i < n; ++i) {
    if (i + kPrefetchRows < n) __builtin_prefetch(&entries[rows[i + kPrefetchRows]]);
    const Entry entry = entries[rows[i]];
    if (entry & kInSlot) {
      slots[i] = static_cast<std::uint32_t>(entry);
      __builtin_prefetch(index.hot_data() + slots[i], 1);
    } else {
      missing.push_back(static_cast<std::uint32_t>(i));
      slots[i] = 0xffffffffu;
    }
  }
  for (std::size_t i = 0; i < n; ++i) {
    if (slots[i] != 0xffffffffu) first_uses += index.touch(slots[i], clock_);
  }
  table.pool->num_protected.fetch_add(first_uses, std::memory_order_relaxed);
}

void RowStore::count_accesses(Table& table, const std::uint64_t* rows, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    const Entry found = entry(table, rows[i]);
    ++((found & kInSlot) ? counters_.hits : found ? counters_.fetches : counters_.new_rows);
  }
}

std::uint64_t RowStore::pass_capacity(const Table& table) const {
  if (table.resident) return 0xffffffffu;
  return std::max<std::uint64_t>(1, dram_bytes_ / table.pool->slot_bytes());
}

bool RowStore::bring(Table& table, const std::uint64_t* rows, std::uint32_t* slots,
                     const std::vector<std::uint32_t>& missing, bool counted) {
  if (missing.empty()) return true;
  if (table.resident) {
    bring_resident(table, rows, missing, counted);
    return true;
  }
  // Another lookup of this pass may have brought some of them meanwhile.
  std::vector<std::uint32_t> absent;
  absent.reserve(missing.size());
  for (const std::uint32_t i : missing) {
    const Entry entry = table.directory.get(rows[i]);
    if (entry & kInSlot) {
      slots[i] = static_cast<std::uint32_t>(entry);
      table.pool->num_protected += table.pool->index.touch(slots[i], clock_);
    } else {
      absent.push_back(i);
    }
  }
  if (!make_room(*table.pool, absent.size())) return false;
  if (counted) counters_.hits += missing.size() - absent.size();
  bring_pooled(table, rows, slots, absent, counted);
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
                              const std::vector<std::uint32_t>& missing, bool counted) {
  std::vector<std::pair<std::uint64_t, std::byte*>> fresh;
  std::vector<RowRead> reads;
  std::vector<std::uint64_t> read_rows;
  std::vector<std::uint64_t> all;
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
      if (counted) ++counters_.hits;
      continue;
    }
    const Entry found = entry(table, row);
    std::byte* record = table.arena.data() + row * stride;
    if ((found & kLocationMask) == 0) {
      fresh.emplace_back(row, record);
      set_present(row);
    } else {
      reads.push_back({found & kLocationMask, table.number, static_cast<std::uint32_t>(read_rows.size())});
      read_rows.push_back(row);
      set_present(row);
    }
  }
  initialise(table, fresh);
  try {
    log_.read(reads, [&](std::uint32_t tag, std::uint16_t layout, const std::byte* record) {
      copy_record(table, layout, record, table.arena.data() + read_rows[tag] * stride);
    });
  } catch (...) {
    for (const std::uint64_t row : read_rows) {
      present[row / 64] &= ~(std::uint64_t{1} << (row % 64));
      table.directory.overwrite(row, table.directory.get(row) & ~kInSlot);
      --table.num_present;
    }
    throw;
  }
  if (counted) {
    counters_.new_rows += fresh.size();
    counters_.fetches += reads.size();
  } else {
    counters_.refetches += fresh.size() + reads.size();
  }
}

void RowStore::bring_pooled(Table& table, const std::uint64_t* rows, std::uint32_t* slots,
                            const std::vector<std::uint32_t>& missing, bool counted) {
  SlotPool& pool = *table.pool;
  std::vector<std::pair<std::uint64_t, std::byte*>> fresh;
  std::vector<RowRead> reads;
  for (const std::uint32_t i : missing) entry(table, rows[i]);  // base pages first: reading them may fail
  for (const std::uint32_t i : missing) {
    const Location location = table.directory.get(rows[i]) & kLocationMask;
    slots[i] = pool.index.insert(table.first_key + rows[i], location, clock_);
    table.directory.insert(rows[i], kInSlot | slots[i]);
    if (location == 0) {
      fresh.emplace_back(rows[i], pool.record(slots[i]));
    } else {
      reads.push_back({location, table.number, i});
    }
  }
  pool.num_protected += static_cast<std::uint32_t>(missing.size());
  initialise(table, fresh);
  try {
    log_.read(reads, [&](std::uint32_t i, std::uint16_t layout, const std::byte* record) {
      copy_record(table, layout, record, pool.record(slots[i]));
    });
  } catch (...) {
    for (const RowRead& read : reads) {
      pool.index.evict(slots[read.tag]);
      table.directory.overwrite(rows[read.tag], read.location);
    }
    throw;
  }
  if (counted) {
    counters_.new_rows += fresh.size();
    counters_.fetches += reads.size();
  } else {
    counters_.refetches += missing.size();
  }
}

// --- room

bool RowStore::make_room(SlotPool& pool, std::size_t needed) {
  while (pool.index.num_free() < needed && grow(pool)) {
  }
  // What could be free at the end, without touching what this pass protects.
  const auto evictable = [&pool] { return pool.index.capacity() - pool.num_protected.load(); };
  while (evictable() < needed) {
    if (!borrow(pool, /*only_older=*/false)) return false;
  }
  while (pool.index.num_free() < needed) {
    if (borrow(pool, /*only_older=*/true)) continue;
    if (!evict_one(pool)) return false;  // pinned slots
  }
  return true;
}

bool RowStore::grow(SlotPool& pool) {
  std::uint64_t used = 0;
  for (const auto& [stride, other] : pools_) used += other->index.capacity() * other->slot_bytes();
  const std::uint64_t slab =
      std::max<std::uint64_t>(1, std::min(kSlabBytes, dram_bytes_ / kSlabsPerBudget) / pool.slot_bytes());
  const std::uint64_t slots = std::min(slab, (dram_bytes_ - used) / pool.slot_bytes());
  if (slots == 0) return false;
  pool.index.grow(pool.index.capacity() + static_cast<std::uint32_t>(slots));
  return true;
}

// Takes a slab from the pool that holds the least recently used row, or (unless only_older) from any that can
// spare one.
bool RowStore::borrow(SlotPool& pool, bool only_older) {
  if (pools_.size() == 1) return false;
  std::uint32_t own = 0xffffffffu;
  if (only_older && !pool.index.policy().oldest(pool.index, clock_, &own)) own = 0xffffffffu;
  SlotPool* lender = nullptr;
  std::uint32_t oldest = own;
  for (const auto& [stride, other] : pools_) {
    std::uint32_t last_use = 0;
    if (other.get() == &pool || other->index.capacity() == 0) continue;
    if (other->index.num_used() == other->index.capacity() &&
        !other->index.policy().oldest(other->index, clock_, &last_use)) {
      continue;
    }
    if (last_use < oldest) {
      oldest = last_use;
      lender = other.get();
    }
  }
  if (lender == nullptr || !shrink(*lender)) return false;
  grow(pool);  // a small slab of the lender's may not make a slot yet
  return true;
}

bool RowStore::shrink(SlotPool& pool) {
  const std::uint64_t slab =
      std::max<std::uint64_t>(1, std::min(kSlabBytes, dram_bytes_ / kSlabsPerBudget) / pool.slot_bytes());
  const std::uint32_t capacity = pool.index.capacity() - static_cast<std::uint32_t>(std::min<std::uint64_t>(
                                                             slab, pool.index.capacity()));
  for (std::uint32_t slot = capacity; slot < pool.index.capacity(); ++slot) {
    if (pool.index.occupied(slot) &&
        (pool.index.hot(slot).last_use >= clock_ || pool.index.hot(slot).pins() > 0))
      return false;
  }
  while (pool.index.num_used() > capacity) {
    if (!evict_one(pool)) return false;
  }
  const std::size_t end = pool.index.capacity() * pool.stride;
  pool.index.shrink(capacity, [&](std::uint32_t from, std::uint32_t to) {
    std::memcpy(pool.record(to), pool.record(from), pool.stride);
    Table& table = *tables_[table_of(pool.index.key(to))];
    table.directory.overwrite(pool.index.key(to) - table.first_key, kInSlot | to);
  });
  pool.arena.discard(capacity * pool.stride, end);
  return true;
}

bool RowStore::evict_one(SlotPool& pool) {
  if (!log_.has_room()) wait_for_room();
  const std::int64_t victim = pool.index.policy().victim(pool.index, clock_);
  if (victim < 0) return false;
  evict(pool, static_cast<std::uint32_t>(victim));
  return true;
}

void RowStore::evict(SlotPool& pool, std::uint32_t slot) {
  if (!log_.has_room()) wait_for_room();
  if (pool.index.hot(slot).stamp() != kClean) {
    append_slot(pool, slot);
    ++counters_.dirty_evictions;
  }
  ++counters_.evictions;
  const RowKey key = pool.index.key(slot);
  Table& table = *tables_[table_of(key)];
  table.directory.overwrite(key - table.first_key, pool.index.location(slot));
  pool.index.evict(slot);
}

void RowStore::append_slot(SlotPool& pool, std::uint32_t slot) {
  SlotRecord& record = pool.index.hot(slot);
  const std::uint64_t epoch = epoch_of(record.stamp());
  const RowKey key = pool.index.key(slot);
  const std::uint32_t number = table_of(key);
  const Table& table = *tables_[number];
  const Location before = pool.index.location(slot);
  const Location location =
      log_.append(epoch, number, table.layout, key - table.first_key, key, pool.record(slot));
  if (before != 0) log_.supersede(before, epoch);
  pool.index.set_location(slot, location);
  uncount(record.stamp());
  record.set_stamp(kClean);
}

void RowStore::append_resident(Table& table, std::uint64_t row) {
  if (!log_.has_room()) wait_for_room();
  const Entry entry = table.directory.get(row);
  const auto stamp = static_cast<std::uint32_t>((entry & kStampMask) >> kStampShift);
  if (stamp == kClean) return;  // swept while waiting
  const std::uint64_t epoch = epoch_of(stamp);
  const Location location = log_.append(epoch, table.number, table.layout, row, table.first_key + row,
                                        table.arena.data() + row * table.record().stride());
  if (entry & kLocationMask) log_.supersede(entry & kLocationMask, epoch);
  table.directory.overwrite(row, kInSlot | location);
  uncount(stamp);
}

// --- changing rows

void RowStore::settle_owed(Table& table, const std::uint32_t* slots, std::size_t n) {
  if (num_owed_ == 0) return;
  const std::uint32_t owed = stamp_of(epoch_ - 1);
  for (std::size_t i = 0; i < n; ++i) {
    if (table.resident) {
      if ((table.directory.get(slots[i]) & kStampMask) >> kStampShift == owed)
        append_resident(table, slots[i]);
    } else {
      if (!log_.has_room()) wait_for_room();
      if (table.pool->index.hot(slots[i]).stamp() == owed) append_slot(*table.pool, slots[i]);
    }
  }
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
  SlotIndex& index = table.pool->index;
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
