// Rows against the log: looking without moving, checkpoints, garbage collection, base pages of the directory.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstring>

#include "mtrains/crc32c.h"
#include "mtrains/errors.h"
#include "mtrains/row_store.h"
#include "row_store_records.h"

namespace mtrains {
namespace {

constexpr std::size_t kPeekRows = 4096;
// Slots or rows that one sweep call looks at, so that the engine's lock is held shortly.
constexpr std::uint64_t kSweepLook = std::uint64_t{1} << 19;

}  // namespace

// --- base pages

void RowStore::open_base(const std::string& path) {
  close_base();
  base_fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (base_fd_ < 0) throw IoError(errno, "cannot open " + path);
  base_path_ = path;
}

void RowStore::close_base() {
  if (base_fd_ >= 0) ::close(base_fd_);
  base_fd_ = -1;
}

void RowStore::read_base_page(Table& table, std::uint64_t page, std::uint64_t offset) {
  std::vector<std::byte> value(kBasePageBytes);
  for (std::size_t done = 0; done < value.size();) {
    const ssize_t n =
        pread(base_fd_, value.data() + done, value.size() - done, static_cast<off_t>(offset + done));
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n <= 0)
      throw IoError(n < 0 ? errno : EIO,
                    "reading directory page at offset " + std::to_string(offset) + " of " + base_path_);
    done += static_cast<std::size_t>(n);
  }
  std::uint32_t crc, number;
  std::uint64_t named;
  std::memcpy(&crc, value.data(), 4);
  std::memcpy(&number, value.data() + 4, 4);
  std::memcpy(&named, value.data() + 8, 8);
  if (crc != crc32c(value.data() + 4, value.size() - 4) || named != page || number != table.number) {
    throw CorruptionError(base_path_ + ": directory page " + std::to_string(page) + " of table '" +
                          table.name + "' is not what was written; run `mtrains verify --rebuild`");
  }
  table.directory.fill_page(page,
                            reinterpret_cast<const std::uint64_t*>(value.data() + kBasePageHeaderBytes));
}

Entry RowStore::entry(Table& table, std::uint64_t row) {
  const Entry found = table.directory.get(row);
  if (found != 0 || !table.directory.has_unread()) return found;
  const std::uint64_t* offset = table.directory.unread(row);
  if (offset == nullptr) return 0;
  read_base_page(table, row / kBasePageRows, *offset);
  return table.directory.get(row);
}

bool RowStore::touched(const Table& table, Entry entry) const {
  if (table.resident) return (entry & (kStampMask | kLocationMask)) != 0;
  if (!(entry & kInSlot)) return entry != 0;
  const auto slot = static_cast<std::uint32_t>(entry);
  const SlotIndex& index = pool_at(table, entry).index;
  return index.hot(slot).stamp() != kClean || index.location(slot) != 0;
}

std::uint64_t RowStore::touched_rows(Table& table, std::uint64_t begin, std::size_t limit,
                                     std::vector<std::int64_t>& rows) {
  std::uint64_t at = begin;
  while (at < table.num_rows && rows.size() < limit) {
    // As far as the directory is known; then the next page of the base.
    std::uint64_t page;
    const bool unread = table.directory.next_unread(at / kBasePageRows, &page);
    const std::uint64_t known = unread ? std::max(at, page * kBasePageRows) : table.num_rows;
    if (unread && known == at) {
      read_base_page(table, page, *table.directory.unread(page * kBasePageRows));
      continue;
    }
    std::uint64_t next = known;
    table.directory.scan(at, known, [&](std::uint64_t row, Entry entry) {
      if (rows.size() == limit) {
        next = row;
        return false;
      }
      if (touched(table, entry)) rows.push_back(static_cast<std::int64_t>(row));
      return true;
    });
    at = next;
  }
  return at;
}

void RowStore::peek(Table& table, const std::int64_t* rows, std::size_t n,
                    const std::function<void(std::size_t, const std::byte*)>& take) {
  const std::size_t stride = table.record().stride();
  const RowInit init = table.row_init();
  std::vector<std::byte> converted(stride);
  std::vector<RowRead> reads;
  std::vector<std::uint32_t> device_slots;
  std::vector<std::size_t> device_rows;
  for (std::size_t begin = 0; begin < n; begin += kPeekRows) {
    reads.clear();
    device_slots.clear();
    device_rows.clear();
    const std::size_t end = std::min(n, begin + kPeekRows);
    for (std::size_t i = begin; i < end; ++i) {
      const auto row = static_cast<std::uint64_t>(rows[i]);
      const Entry found = entry(table, row);
      if (found & kInSlot) {
        const auto slot = static_cast<std::uint32_t>(found);
        if (table.resident) {
          take(i, table.arena.data() + row * stride);
        } else if (pool_at(table, found).device != nullptr) {
          device_slots.push_back(slot);
          device_rows.push_back(i);
        } else {
          take(i, pool_at(table, found).record(slot));
        }
      } else if (found & kLocationMask) {
        reads.push_back({found & kLocationMask, static_cast<std::uint32_t>(i - begin)});
      } else {
        init.fill(table.record(), row, converted.data());
        take(i, converted.data());
      }
    }
    log_.read(table.number, reads,
              [&](std::uint32_t i, std::uint16_t layout, std::span<const std::byte> record) {
                copy_record(table, layout, record.data(), converted.data());
                take(begin + i, converted.data());
              });
    if (device_slots.empty()) continue;
    std::size_t next = 0;
    each_record(table.pool(), device_slots,
                [&](std::uint32_t, const std::byte* record) { take(device_rows[next++], record); });
  }
}

// --- checkpoints

std::uint64_t RowStore::begin_checkpoint() {
  if (num_owed_ > 0)
    throw StateError(std::to_string(num_owed_) + " rows of an earlier checkpoint are not written yet");
  num_owed_ = num_dirty_;
  num_dirty_ = 0;
  return epoch_++;
}

std::uint64_t RowStore::sweep(std::size_t max_rows) {
  const std::vector<SlotPool*> slot_pools = pools();
  const std::size_t parts = slot_pools.size() + tables_.size();
  std::size_t done = 0;
  std::uint64_t looked = 0;
  std::size_t visits = 0;  // each part at most once more than all of them
  while (num_owed_ > 0 && done < max_rows && looked < kSweepLook && visits <= parts && log_.has_room()) {
    if (sweep_part_ >= parts) sweep_part_ = 0;
    const std::uint64_t begin = sweep_at_, before = num_owed_;
    if (sweep_part_ < slot_pools.size()) {
      sweep_at_ = sweep_pool(*slot_pools[sweep_part_], max_rows - done);
    } else {
      sweep_at_ = sweep_resident(*tables_[sweep_part_ - slot_pools.size()], max_rows - done);
    }
    done += before - num_owed_;
    looked += sweep_at_ == 0 ? kSweepLook / 64 : sweep_at_ - begin;
    if (sweep_at_ == 0) {
      ++sweep_part_;
      ++visits;
    }
  }
  return num_owed_;
}

// Both return where to go on, or 0 at the end.
std::uint64_t RowStore::sweep_pool(SlotPool& pool, std::size_t max_rows) {
  const std::uint32_t owed = stamp_of(epoch_ - 1);
  const std::uint64_t end = std::min<std::uint64_t>(pool.index.capacity(), sweep_at_ + kSweepLook);
  std::vector<std::uint32_t> owing;
  std::uint64_t next = end == pool.index.capacity() ? 0 : end;
  for (std::uint64_t slot = sweep_at_; slot < end; ++slot) {
    if (pool.index.hot(static_cast<std::uint32_t>(slot)).stamp() != owed) continue;
    if (owing.size() == max_rows) {
      next = std::max<std::uint64_t>(slot, 1);
      break;
    }
    owing.push_back(static_cast<std::uint32_t>(slot));
  }
  bool full = false;
  each_record(pool, owing, [&](std::uint32_t slot, const std::byte* record) {
    if (full) return;
    if (log_.has_room()) {
      append_slot(pool, slot, table_in(pool, slot), record);
    } else {
      full = true;
      next = std::max(slot, 1u);
    }
  });
  levels_[pool.level]->charge(owing.size(), 0, pool.stride);
  return next;
}

std::uint64_t RowStore::sweep_resident(Table& table, std::size_t max_rows) {
  if (!table.resident) return 0;
  const std::uint32_t owed = stamp_of(epoch_ - 1);
  const std::uint64_t end = std::min(table.num_rows, sweep_at_ + kSweepLook);
  std::size_t done = 0;
  std::uint64_t next = end == table.num_rows ? 0 : end;
  table.directory.scan(sweep_at_, end, [&](std::uint64_t row, Entry entry) {
    const auto stamp = static_cast<std::uint32_t>((entry & kStampMask) >> kStampShift);
    if (stamp != owed) return true;
    if (done == max_rows || !log_.has_room()) {
      next = std::max<std::uint64_t>(row, 1);
      return false;
    }
    append_resident(table, row);
    ++done;
    return true;
  });
  return next;
}

// --- garbage collection

std::uint64_t RowStore::evacuate(Evacuation& evacuation) {
  const std::uint32_t number = evacuation.number();
  const Segment& segment = log_.segments().at(number);
  if (segment.state != SegmentState::kPublished || segment.id != evacuation.segment_id()) return 0;
  const LogCounters before = log_.counters();
  for (std::uint32_t b = 0; b < evacuation.blocks().size(); ++b) {
    const BlockContents& block = evacuation.blocks()[b];
    Table& table = *tables_.at(block.table);
    const std::byte* data = nullptr;  // asked for when the first row of the block turns out to be current
    for (std::uint32_t position = 0; position < block.rows.size(); ++position) {
      const Location location = make_location(number, b, position);
      const std::uint64_t row = block.rows[position];
      if (log_location(table, row) != location) continue;
      if (const std::uint32_t stamp = dirty_stamp(table, row); stamp != kClean) {
        leave_log(table, row, location, epoch_of(stamp));
        continue;
      }
      if (data == nullptr) data = evacuation.rows_of(b);
      move_row(table, row, location, block.layout, data + position * block.stride);
      log_.counters().gc_bytes += block.stride;
      ++log_.counters().gc_rows;
    }
  }
  return log_.counters().gc_bytes - before.gc_bytes;
}

// Where the row is in the log, be it in a slot as well; 0 if it is not there.
Location RowStore::log_location(Table& table, std::uint64_t row) {
  const Entry found = entry(table, row);
  if (table.resident || !(found & kInSlot)) return found & kLocationMask;
  return pool_at(table, found).index.location(static_cast<std::uint32_t>(found));
}

std::uint32_t RowStore::dirty_stamp(const Table& table, std::uint64_t row) const {
  const Entry found = table.directory.get(row);
  if (table.resident) return static_cast<std::uint32_t>((found & kStampMask) >> kStampShift);
  if (!(found & kInSlot)) return kClean;
  return pool_at(table, found).index.hot(static_cast<std::uint32_t>(found)).stamp();
}

// A dirty row is about to be written again, of the epoch of its stamp: its old place may go before it is.
void RowStore::leave_log(Table& table, std::uint64_t row, Location location, std::uint64_t epoch) {
  log_.supersede(location, epoch);
  const Entry found = table.directory.get(row);
  if (table.resident) {
    table.directory.overwrite(row, found & ~kLocationMask);
  } else {
    pool_at(table, found).index.set_location(static_cast<std::uint32_t>(found), 0);
  }
}

void RowStore::move_row(Table& table, std::uint64_t row, Location location, std::uint16_t layout,
                        const std::byte* record) {
  const Entry found = table.directory.get(row);
  const Location next = log_.append(epoch_, table.number, layout, row, table.first_key + row, record);
  log_.supersede(location, epoch_);
  if (!table.resident && (found & kInSlot)) {
    pool_at(table, found).index.set_location(static_cast<std::uint32_t>(found), next);
  } else {
    table.directory.overwrite(row, (found & ~kLocationMask) | next);
  }
}

}  // namespace mtrains
