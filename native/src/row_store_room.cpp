// Making room: who must leave a tier, and where it goes.
#include <algorithm>
#include <cassert>
#include <cstring>

#include "mtrains/errors.h"
#include "mtrains/row_store.h"
#include "row_store_records.h"

namespace mtrains {
namespace {

constexpr std::size_t kVictimsAtOnce = 32;
constexpr std::size_t kPrefetchBytes = 1024;

}  // namespace

bool RowStore::make_room(SlotPool& pool, std::size_t needed) {
  SlotTier& tier = *levels_[pool.level];
  while (pool.index.num_free() < needed && tier.grow(pool)) {
  }
  // What could be free at the end, without touching what this pass protects.
  const auto evictable = [&pool] {
    return pool.index.capacity() - pool.num_protected.load() - pool.num_pinned;
  };
  while (evictable() < needed) {
    if (!borrow(pool, /*only_worse=*/false)) return false;
  }
  while (pool.index.num_free() < needed) {
    if (borrow(pool, /*only_worse=*/true)) continue;
    if (evict_oldest(pool, needed - pool.index.num_free()) == 0) return false;  // pinned slots
  }
  return true;
}

// Takes a slab from the pool that has the row that shall leave first, if that is none of this pool's own or
// (unless only_worse) in any case.
bool RowStore::borrow(SlotPool& pool, bool only_worse) {
  SlotTier& tier = *levels_[pool.level];
  SlotPool* lender = tier.lender_for(pool, only_worse, clock_);
  if (lender == nullptr || !shrink(*lender)) return false;
  tier.grow(pool);  // a small slab of the lender's may not make a slot yet
  return true;
}

bool RowStore::shrink(SlotPool& pool) {
  const std::uint32_t slab = levels_[pool.level]->slab_slots(pool);
  const std::uint32_t capacity = pool.index.capacity() - std::min(slab, pool.index.capacity());
  for (std::uint32_t slot = capacity; slot < pool.index.capacity(); ++slot) {
    if (pool.index.occupied(slot) &&
        (pool.index.hot(slot).last_use >= clock_ || pool.index.hot(slot).pins() > 0))
      return false;
  }
  while (pool.index.num_used() > capacity) {
    if (evict_oldest(pool, pool.index.num_used() - capacity) == 0) return false;
  }
  const SlotMoves moves = pool.index.moves_below(capacity);
  // The bytes first: a device may fail, and rows are where they were then.
  if (pool.device != nullptr) {
    std::vector<std::byte> records(std::min(moves.from.size(), kDeviceRecords) * pool.stride);
    for (std::size_t begin = 0; begin < moves.from.size(); begin += kDeviceRecords) {
      const std::size_t n = std::min(moves.from.size() - begin, kDeviceRecords);
      pool.device->load(&moves.from[begin], n, records.data());
      pool.device->store(&moves.to[begin], n, records.data());
    }
  } else {
    for (std::size_t i = 0; i < moves.from.size(); ++i)
      std::memcpy(pool.record(moves.to[i]), pool.record(moves.from[i]), pool.stride);
  }
  for (std::size_t i = 0; i < moves.from.size(); ++i) {
    const RowKey key = pool.index.key(moves.from[i]);
    Table& table = *tables_[table_of(key)];
    table.directory.overwrite(key - table.first_key, slot_entry(pool.level, moves.to[i]));
  }
  pool.index.shrink(capacity);
  pool.trim();
  return true;
}

void RowStore::prefetch(const SlotPool& pool, std::uint32_t slot, const Table& table) const {
  const std::byte* record = pool.record(slot);
  for (std::size_t at = 0; at < std::min(pool.stride, kPrefetchBytes); at += 64)
    __builtin_prefetch(record + at);
  __builtin_prefetch(table.directory.data() + (pool.index.key(slot) - table.first_key), 1);
}

std::size_t RowStore::evict_oldest(SlotPool& pool, std::size_t wanted) {
  // Several at once, so that what the cache lacks of one is loaded while another is written; from a device as
  // many as are asked for, since its copies are slow to start.
  const std::size_t most = std::min(wanted, pool.device != nullptr ? kDeviceRecords : kVictimsAtOnce);
  std::vector<std::uint32_t> slots, last_uses;
  std::vector<Table*> tables;
  slots.reserve(most);
  last_uses.reserve(most);
  tables.reserve(most);
  while (slots.size() < most) {
    const std::int64_t victim = pool.index.policy().victim(pool.index, clock_);
    if (victim < 0) break;
    slots.push_back(static_cast<std::uint32_t>(victim));
    SlotRecord& record = pool.index.hot(slots.back());
    last_uses.push_back(record.last_use);
    record.last_use = clock_;  // not chosen again
    tables.push_back(&table_in(pool, slots.back()));
    if (pool.device == nullptr) prefetch(pool, slots.back(), *tables.back());
  }
  std::size_t i = 0;
  try {
    each_record(pool, slots, [&](std::uint32_t slot, const std::byte* record) {
      pool.index.hot(slot).last_use = last_uses[i];
      evict(pool, slot, *tables[i++], record, Below::kNextTier);
    });
  } catch (...) {
    for (; i < slots.size(); ++i) pool.index.hot(slots[i]).last_use = last_uses[i];
    pool.index.policy().clear();  // it thinks that they left
    throw;
  }
  return slots.size();
}

// A row that was never changed is forgotten: its value follows from its id.
void RowStore::evict(SlotPool& pool, std::uint32_t slot, Table& table, const std::byte* record, Below below) {
  TierCounters& counters = levels_[pool.level]->counters;
  ++counters.evictions;
  const SlotRecord& hot = pool.index.hot(slot);
  if (hot.stamp() != kClean) ++counters.dirty_evictions;
  if (below == Below::kNextTier && (hot.stamp() != kClean || pool.index.location(slot) != 0) &&
      move_down(pool, slot, table, record)) {
    return;
  }
  append_slot(pool, slot, table, record);
  table.directory.overwrite(pool.index.key(slot) - table.first_key, pool.index.location(slot));
  pool.index.evict(slot);
}

// Moves a row to the next tier that its table may use and that has room; false if there is none. What is
// dirty stays so, of its epoch.
bool RowStore::move_down(SlotPool& pool, std::uint32_t slot, Table& table, const std::byte* record) {
  const RowKey key = pool.index.key(slot);
  for (std::size_t level = pool.level + 1; level < levels_.size(); ++level) {
    SlotPool* lower = table.pools[level];
    if (lower == nullptr || !make_room(*lower, 1)) continue;
    const std::uint32_t to =
        lower->index.insert(key, pool.index.location(slot), pool.index.hot(slot).last_use);
    lower->index.hot(to).set_stamp(pool.index.hot(slot).stamp());
    std::memcpy(lower->record(to), record, pool.stride);
    table.directory.overwrite(key - table.first_key, slot_entry(level, to));
    pool.index.evict(slot);
    ++levels_[level]->counters.rows_in;
    levels_[level]->charge(0, 1, pool.stride);
    return true;
  }
  return false;
}

// --- to the log

void RowStore::append_slot(SlotPool& pool, std::uint32_t slot, Table& table, const std::byte* record) {
  SlotRecord& hot = pool.index.hot(slot);
  if (hot.stamp() == kClean) return;
  if (!log_.has_room()) wait_for_room();
  if (hot.stamp() == kClean) return;  // swept while waiting
  const std::uint64_t epoch = epoch_of(hot.stamp());
  const RowKey key = pool.index.key(slot);
  const Location before = pool.index.location(slot);
  const Location location =
      log_.append(epoch, table.number, table.layout, key - table.first_key, key, record);
  ++table.counters.rows_appended;
  if (before != 0) log_.supersede(before, epoch);
  pool.index.set_location(slot, location);
  uncount(hot.stamp());
  hot.set_stamp(kClean);
}

void RowStore::append_resident(Table& table, std::uint64_t row) {
  if (!log_.has_room()) wait_for_room();
  const Entry entry = table.directory.get(row);
  const auto stamp = static_cast<std::uint32_t>((entry & kStampMask) >> kStampShift);
  if (stamp == kClean) return;  // swept while waiting
  const std::uint64_t epoch = epoch_of(stamp);
  const Location location = log_.append(epoch, table.number, table.layout, row, table.first_key + row,
                                        table.arena.data() + row * table.record().stride());
  ++table.counters.rows_appended;
  if (entry & kLocationMask) log_.supersede(entry & kLocationMask, epoch);
  table.directory.overwrite(row, kInSlot | location);
  uncount(stamp);
}

}  // namespace mtrains
