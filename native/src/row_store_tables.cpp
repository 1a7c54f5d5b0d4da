// Tables, their layouts, and which of them are resident.
#include <algorithm>
#include <cassert>
#include <cstring>
#include <stdexcept>

#include "mtrains/errors.h"
#include "mtrains/row_store.h"
#include "row_store_records.h"

namespace mtrains {
namespace {

constexpr std::size_t kMaxLayouts = 255;
constexpr std::size_t kMaxTables = 65535;
constexpr std::uint64_t kMaxRecordBytes = 128 * kBlockDataBytes;

std::uint64_t saturating_mul(std::uint64_t x, std::uint64_t y) {
  std::uint64_t product;
  return __builtin_mul_overflow(x, y, &product) ? ~std::uint64_t{0} : product;
}

std::uint64_t total_bytes(const std::vector<TierSpec>& tiers) {
  std::uint64_t total = 0;
  for (const TierSpec& tier : tiers) total += tier.bytes;
  return total;
}

// No more than the budgets of all tiers waits in one segment, where that is not too little to write at once.
std::uint32_t blocks_within(std::uint64_t bytes) {
  constexpr std::uint64_t kMinBlocks = 16;
  return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(bytes / kPageBytes, kMinBlocks, kMaxBlocks));
}

// Twice the budgets at most waits for its commit, or what evacuating one segment takes: a small budget means
// that rows are read from the disk, not from the queue before it.
std::uint32_t pending_within(std::uint64_t bytes) {
  const std::uint64_t evacuation = SegmentLog::segments_to_hold_one(blocks_within(bytes)) + 2;
  return static_cast<std::uint32_t>(
      std::clamp<std::uint64_t>(2 * bytes / kSegmentImageBytes, evacuation, 0xffffu));
}

}  // namespace

RowStore::RowStore(std::vector<TierSpec> tiers, std::uint32_t incarnation, std::uint64_t epoch,
                   std::uint32_t max_pending, ThreadPool& threads, PolicyKind eviction)
    : epoch_(epoch),
      threads_(threads),
      log_(incarnation, std::min(max_pending, pending_within(total_bytes(tiers))),
           blocks_within(total_bytes(tiers))),
      birth_((std::uint64_t{incarnation} << 32) ^ epoch) {
  if (tiers.empty() || tiers.size() > kSlotTiers)
    throw std::invalid_argument("a store has 1 to 3 slot tiers");
  for (TierSpec& tier : tiers) {
    if (!levels_.empty() && tier.kind <= levels_.back()->spec().kind)
      throw std::invalid_argument("tiers come from fast to slow, each once");
    if (tier.set_aside > tier.bytes)
      throw CapacityError(std::string("budgets of tables take ") + std::to_string(tier.set_aside) +
                          " bytes of " + name_of(tier.kind) + ", which has " + std::to_string(tier.bytes));
    levels_.push_back(std::make_unique<SlotTier>(levels_.size(), std::move(tier), window_, eviction));
  }
}

std::uint32_t RowStore::add_table(std::string name, std::uint64_t num_rows, std::uint32_t dim,
                                  WeightType dtype, const RowInit& init, const TableBudgets& budgets) {
  if (tables_.size() >= kMaxTables) throw CapacityError("a store has at most 65535 tables");
  if (dim == 0) throw std::invalid_argument("table '" + name + "': embedding_dim must be >= 1");
  if (num_rows >= kNoKey - next_key_) {
    throw CapacityError("table '" + name + "': the tables of a store have at most 2^46 rows together");
  }
  const RecordLayout weights_only{dtype, dim, 0};
  check_record(name, num_rows, weights_only, budgets);
  for (const auto& tier : levels_) {
    const auto& own = budgets[static_cast<std::size_t>(tier->spec().kind)];
    if (own) tier->give(name, *own);
  }
  auto table = std::make_unique<Table>(std::move(name), num_rows);
  table->number = static_cast<std::uint32_t>(tables_.size());
  table->init = init;
  table->first_key = next_key_;
  table->budgets = budgets;
  table->layouts.push_back({weights_only, 0.0f});
  log_.add_layout(table->number, 0, weights_only.stride());
  next_key_ += num_rows;
  residency_stale_ = true;
  tables_.push_back(std::move(table));
  return tables_.back()->number;
}

std::uint64_t RowStore::budget_of(const SlotTier& tier, const TableBudgets& budgets) const {
  const auto& own = budgets[static_cast<std::size_t>(tier.spec().kind)];
  return own ? *own : tier.shared_bytes();
}

void RowStore::check_record(const std::string& name, std::uint64_t num_rows, const RecordLayout& record,
                            const TableBudgets& budgets) const {
  const std::uint64_t slot = record.stride() + kSlotIndexBytes;
  const auto has_own = [&budgets](const SlotTier& tier) {
    return budgets[static_cast<std::size_t>(tier.spec().kind)].has_value();
  };
  const auto refuse = [&](const SlotTier& tier, std::uint64_t needed, std::uint64_t budget) {
    const std::string kind = name_of(tier.spec().kind);
    const bool own = has_own(tier);
    throw CapacityError("table '" + name + "': one row takes " + std::to_string(needed) + " bytes, " +
                        (own ? "its own " + kind + " budget is " : "the " + kind + " budget is ") +
                        std::to_string(budget) + "; raise " +
                        (own ? "its " + kind + " in budgets=" : kind + "="));
  };
  for (const auto& tier : levels_) {
    const std::uint64_t budget = budget_of(*tier, budgets);
    // Rows of a table that is held whole need no index.
    const bool whole = tier->level() == 0 && tier->spec().kind == TierKind::kDram && has_own(*tier) &&
                       saturating_mul(num_rows, record.stride()) <= budget;
    if (whole) continue;
    if (slot > budget && (budget > 0 || tier->level() == 0)) refuse(*tier, slot, budget);
    if (budget == 0 || tier->spec().memory == nullptr) continue;
    // Records and the two halves of their index are in units of their own.
    const std::uint64_t unit = tier->spec().memory->unit_bytes();
    const std::uint64_t least = ((record.stride() + unit - 1) / unit + 2) * unit;
    if (least > tier->spec().bytes) refuse(*tier, least, tier->spec().bytes);
  }
  if (record.stride() > kMaxRecordBytes) {
    throw CapacityError("table '" + name + "': one row takes " + std::to_string(record.stride()) +
                        " bytes, the limit is " + std::to_string(kMaxRecordBytes));
  }
}

std::uint16_t RowStore::add_layout(std::uint32_t number, std::uint32_t state_floats, float initial_state) {
  Table& table = *tables_.at(number);
  if (table.layouts.size() >= kMaxLayouts) {
    throw CapacityError("table '" + table.name + "' has had 255 record layouts, the limit");
  }
  RecordLayout record = table.layouts.front().record;
  record.state_floats = state_floats;
  check_record(table.name, table.num_rows, record, table.budgets);
  const auto layout = static_cast<std::uint16_t>(table.layouts.size());
  table.layouts.push_back({record, initial_state});
  log_.add_layout(number, layout, record.stride());
  return layout;
}

void RowStore::use_layout(std::uint32_t number, std::uint16_t layout) {
  Table& table = *tables_.at(number);
  const TableLayout next = table.layouts.at(layout);
  if (layout == table.layout) return;
  release_pins();
  if (table.pools[0] != nullptr) empty_slots_of(table);
  if (table.resident) {
    // A running checkpoint knows the layouts of its moment, so what is owed to it leaves in the present one.
    const std::uint32_t owed = stamp_of(epoch_ - 1);
    table.directory.scan(0, table.num_rows, [&](std::uint64_t row, Entry entry) {
      if ((entry & kStampMask) >> kStampShift == owed) append_resident(table, row);
      return num_owed_ > 0;
    });
    // In place: each present row keeps its weights and gets the new initial state.
    const TableLayout before = table.layouts[table.layout];
    const std::size_t from = before.record.stride(), to = next.record.stride();
    MemoryMap arena(std::max<std::size_t>(1, table.num_rows * to), /*huge=*/true);
    std::uint64_t given_back = 0;
    const std::uint16_t old_layout = table.layout;
    table.layout = layout;
    for (std::uint64_t row = 0; row < table.num_rows; ++row) {
      if (!table.is_present(row)) continue;
      copy_record(table, old_layout, table.arena.data() + row * from, arena.data() + row * to);
      if (row * from - given_back > (std::uint64_t{64} << 20)) {
        table.arena.discard(given_back, row * from);
        given_back = row * from;
      }
    }
    table.arena = std::move(arena);
  }
  table.layout = layout;
  table.pools = {};
  residency_stale_ = true;
}

bool RowStore::fits_whole(const Table& table, std::uint64_t bytes) const {
  return table.num_rows < 0xffffffffu && saturating_mul(table.num_rows, table.record().stride()) <= bytes;
}

// A table is resident where it fits its own budget, or where all that share the rest of the tier fit
// together. Only in DRAM: elsewhere rows have slots, which cost their index.
void RowStore::settle_residency() {
  if (!residency_stale_) return;
  release_pins();
  const SlotTier& tier = compute();
  const auto own = [&tier](const Table& table) {
    return table.budgets[static_cast<std::size_t>(tier.spec().kind)];
  };
  std::uint64_t total = 0;
  bool addressable = true;
  for (const auto& table : tables_) {
    if (own(*table)) continue;
    const std::uint64_t bytes = saturating_mul(table->num_rows, table->record().stride());
    total = total + bytes < total ? ~std::uint64_t{0} : total + bytes;
    addressable = addressable && table->num_rows < 0xffffffffu;
  }
  const bool in_memory = tier.spec().kind == TierKind::kDram;
  const bool all_resident = total <= tier.shared_bytes() && addressable;
  for (const auto& table : tables_) {
    if (in_memory && (own(*table) ? fits_whole(*table, *own(*table)) : all_resident)) {
      make_resident(*table);
    } else {
      make_pooled(*table);
    }
  }
  for (const auto& level : levels_) {
    level->drop_unused([this, &level](const SlotPool* pool) {
      return std::any_of(tables_.begin(), tables_.end(),
                         [&](const auto& table) { return table->pools[level->level()] == pool; });
    });
  }
  residency_stale_ = false;
  ++num_layouts_settled_;
}

std::uint64_t RowStore::layout_generation() const {
  // splitmix64
  std::uint64_t x = birth_ + num_layouts_settled_ * 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

void RowStore::make_resident(Table& table) {
  if (table.resident) return;
  if (table.pools[0] != nullptr) empty_slots_of(table);
  table.pools = {};
  table.arena = MemoryMap(std::max<std::size_t>(1, table.num_rows * table.record().stride()), /*huge=*/true);
  table.present = MemoryMap((table.num_rows / 64 + 1) * 8, /*huge=*/false);
  table.num_present = 0;
  table.resident = true;
}

void RowStore::make_pooled(Table& table) {
  if (table.resident) {
    table.directory.scan(0, table.num_rows, [&](std::uint64_t row, Entry entry) {
      if (!(entry & kInSlot)) return true;
      if (entry & kStampMask) append_resident(table, row);
      table.directory.overwrite(row, table.directory.get(row) & kLocationMask);
      return true;
    });
    table.arena = MemoryMap();
    table.present = MemoryMap();
    table.num_present = 0;
    table.resident = false;
  }
  std::array<SlotPool*, kSlotTiers> pools{};
  for (const auto& tier : levels_) {
    const auto& own = table.budgets[static_cast<std::size_t>(tier->spec().kind)];
    pools[tier->level()] = tier->pool_for(table.number, table.record().stride(), own ? &*own : nullptr);
  }
  if (table.pools[0] != nullptr && table.pools != pools) empty_slots_of(table);
  table.pools = pools;
}

void RowStore::empty_slots_of(Table& table) {
  for (SlotPool* pool : table.pools) {
    if (pool == nullptr) continue;
    std::vector<std::uint32_t> slots;
    for (std::uint32_t slot = 0; slot < pool->index.capacity(); ++slot) {
      if (!pool->index.occupied(slot)) continue;
      const RowKey key = pool->index.key(slot);
      if (key >= table.first_key && key < table.first_key + table.num_rows) slots.push_back(slot);
    }
    each_record(*pool, slots, [&](std::uint32_t slot, const std::byte* record) {
      evict(*pool, slot, table, record, Below::kLog);
    });
  }
}

std::uint32_t RowStore::table_of(RowKey key) const {
  const auto it = std::upper_bound(tables_.begin(), tables_.end(), key,
                                   [](RowKey k, const auto& table) { return k < table->first_key; });
  auto number = static_cast<std::uint32_t>(it - tables_.begin() - 1);
  // Tables without rows share their first key with the next one.
  while (key >= tables_[number]->first_key + tables_[number]->num_rows) --number;
  return number;
}

std::vector<SlotPool*> RowStore::pools() const {
  std::vector<SlotPool*> all;
  for (const auto& level : levels_) {
    const std::vector<SlotPool*> own = level->pools();
    all.insert(all.end(), own.begin(), own.end());
  }
  return all;
}

std::uint64_t RowStore::resident_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& table : tables_) {
    if (table->resident) bytes += table->num_present * table->record().stride();
  }
  return bytes;
}

}  // namespace mtrains
