// Tables, their layouts, and which of them are resident.
#include <algorithm>
#include <cassert>
#include <cstring>
#include <stdexcept>

#include "mtrains/errors.h"
#include "mtrains/row_store.h"

namespace mtrains {
namespace {

constexpr std::size_t kMaxLayouts = 255;
constexpr std::size_t kMaxTables = 65535;
constexpr std::uint64_t kMaxRecordBytes = 128 * kBlockDataBytes;

std::uint64_t saturating_mul(std::uint64_t x, std::uint64_t y) {
  std::uint64_t product;
  return __builtin_mul_overflow(x, y, &product) ? ~std::uint64_t{0} : product;
}

// No more than the budget waits in one segment, where that is not too little to write at once.
std::uint32_t blocks_within(std::uint64_t dram_bytes) {
  constexpr std::uint64_t kMinBlocks = 16;
  return static_cast<std::uint32_t>(
      std::clamp<std::uint64_t>(dram_bytes / kPageBytes, kMinBlocks, kMaxBlocks));
}

// Twice the budget at most waits for its commit, or what evacuating one segment takes: a small budget means
// that rows are read from the disk, not from the queue before it.
std::uint32_t pending_within(std::uint64_t dram_bytes) {
  const std::uint64_t evacuation = SegmentLog::segments_to_hold_one(blocks_within(dram_bytes)) + 2;
  return static_cast<std::uint32_t>(
      std::clamp<std::uint64_t>(2 * dram_bytes / kSegmentImageBytes, evacuation, 0xffffu));
}

}  // namespace

SlotPool::SlotPool(std::size_t stride, std::uint64_t budget)
    : stride(stride),
      arena(std::max<std::size_t>(stride, budget), /*huge=*/true),
      index(static_cast<std::uint32_t>(std::min<std::uint64_t>(budget / slot_bytes(), 0xfffffff0u))) {}

RowStore::RowStore(std::uint64_t dram_bytes, std::uint32_t incarnation, std::uint64_t epoch,
                   std::uint32_t max_pending, ThreadPool& threads)
    : dram_bytes_(dram_bytes),
      epoch_(epoch),
      threads_(threads),
      log_(incarnation, std::min(max_pending, pending_within(dram_bytes)), blocks_within(dram_bytes)),
      birth_((std::uint64_t{incarnation} << 32) ^ epoch) {}

std::uint32_t RowStore::add_table(std::string name, std::uint64_t num_rows, std::uint32_t dim,
                                  WeightType dtype, const RowInit& init) {
  if (tables_.size() >= kMaxTables) throw CapacityError("a store has at most 65535 tables");
  if (dim == 0) throw std::invalid_argument("table '" + name + "': embedding_dim must be >= 1");
  if (num_rows >= kNoKey - next_key_) {
    throw CapacityError("table '" + name + "': the tables of a store have at most 2^46 rows together");
  }
  const RecordLayout weights_only{dtype, dim, 0};
  check_record(name, weights_only);
  auto table = std::make_unique<Table>(std::move(name), num_rows);
  table->number = static_cast<std::uint32_t>(tables_.size());
  table->init = init;
  table->first_key = next_key_;
  table->layouts.push_back({weights_only, 0.0f});
  log_.add_layout(table->number, 0, weights_only.stride());
  next_key_ += num_rows;
  residency_stale_ = true;
  tables_.push_back(std::move(table));
  return tables_.back()->number;
}

void RowStore::check_record(const std::string& name, const RecordLayout& record) const {
  const std::uint64_t slot = record.stride() + kSlotIndexBytes;
  if (slot > dram_bytes_) {
    throw CapacityError("table '" + name + "': one row takes " + std::to_string(slot) +
                        " bytes, the dram budget is " + std::to_string(dram_bytes_) + "; raise dram=");
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
  check_record(table.name, record);
  const auto layout = static_cast<std::uint16_t>(table.layouts.size());
  table.layouts.push_back({record, initial_state});
  log_.add_layout(number, layout, record.stride());
  return layout;
}

void RowStore::use_layout(std::uint32_t number, std::uint16_t layout) {
  Table& table = *tables_.at(number);
  const TableLayout next = table.layouts.at(layout);
  if (layout == table.layout) return;
  if (table.pool != nullptr) empty_slots_of(table);
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
  table.pool = nullptr;
  residency_stale_ = true;
}

SlotPool& RowStore::pool_of_stride(std::size_t stride) {
  auto& pool = pools_[stride];
  if (pool == nullptr) pool = std::make_unique<SlotPool>(stride, dram_bytes_);
  return *pool;
}

void RowStore::settle_residency() {
  if (!residency_stale_) return;
  std::uint64_t total = 0;
  bool addressable = true;
  for (const auto& table : tables_) {
    const std::uint64_t bytes = saturating_mul(table->num_rows, table->record().stride());
    total = total + bytes < total ? ~std::uint64_t{0} : total + bytes;
    addressable = addressable && table->num_rows < 0xffffffffu;
  }
  const bool all_resident = total <= dram_bytes_ && addressable;
  for (const auto& table : tables_) {
    if (all_resident) {
      make_resident(*table);
    } else {
      make_pooled(*table);
    }
  }
  if (all_resident) {
    pools_.clear();
  } else {
    std::erase_if(pools_, [this](const auto& item) {
      return std::none_of(tables_.begin(), tables_.end(),
                          [&item](const auto& table) { return table->pool == item.second.get(); });
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
  if (table.pool != nullptr) empty_slots_of(table);
  table.pool = nullptr;
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
  SlotPool& pool = pool_of_stride(table.record().stride());
  if (table.pool != nullptr && table.pool != &pool) empty_slots_of(table);
  table.pool = &pool;
}

void RowStore::empty_slots_of(Table& table) {
  SlotPool& pool = *table.pool;
  for (std::uint32_t slot = 0; slot < pool.index.capacity(); ++slot) {
    if (!pool.index.occupied(slot)) continue;
    const RowKey key = pool.index.key(slot);
    if (key >= table.first_key && key < table.first_key + table.num_rows) evict(pool, slot);
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

std::uint64_t RowStore::slots() const {
  std::uint64_t count = 0;
  for (const auto& [stride, pool] : pools_) count += pool->index.capacity();
  return count;
}

std::uint64_t RowStore::used_slots() const {
  std::uint64_t count = 0;
  for (const auto& [stride, pool] : pools_) count += pool->index.num_used();
  return count;
}

std::uint64_t RowStore::dram_bytes_used() const {
  std::uint64_t bytes = 0;
  for (const auto& [stride, pool] : pools_) bytes += pool->index.capacity() * pool->slot_bytes();
  for (const auto& table : tables_) {
    if (table->resident) bytes += table->num_present * table->record().stride();
  }
  return bytes;
}

}  // namespace mtrains
