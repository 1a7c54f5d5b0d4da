// The rows of the batches to come: when each row is used next.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "mtrains/eviction_policy.h"
#include "mtrains/flat_map.h"

namespace mtrains {

// A window over consecutive batches, numbered from 0. Batches enter at one end (known early) and leave at the
// other (done). Every step costs O(1) per unique row of a batch, whatever the window's length.
//
// A row's next use is the first batch of the window that has it, the oldest batch included. The window knows
// it for every row of its batches, in a slot or not: 12 bytes an occurrence and 32 to 64 a distinct row.
// changed(key, next_use) is called for each row whose next use changes; kNoUse: none is left.
//
// Not thread-safe.
class LookaheadWindow {
 public:
  std::uint32_t first() const { return first_; }  // number of the oldest batch, which has not left
  std::uint32_t end() const { return first_ + static_cast<std::uint32_t>(begins_.size()); }
  std::uint32_t size() const { return static_cast<std::uint32_t>(begins_.size()); }
  std::size_t num_rows() const { return rows_.size(); }  // distinct

  // Begins a batch, without rows yet; its number. Throws StateError after 2^32 - 2 batches.
  std::uint32_t enter();
  // Adds rows to the newest batch; rows that it has already are left out. REQUIRES: size() > 0.
  template <typename Changed>
  void add(const RowKey* keys, std::size_t n, const Changed& changed);
  // The oldest batch is done. REQUIRES: size() > 0.
  template <typename Changed>
  void leave(const Changed& changed);
  // All batches leave, used or not.
  template <typename Changed>
  void clear(const Changed& changed);

  // kNoUse if no batch of the window has the row.
  std::uint32_t next_use(RowKey key) const {
    const Row* row = rows_.find({key, 0, 0});
    return row == nullptr ? kNoUse : row->next_use;
  }

 private:
  static constexpr RowKey kEmpty = ~RowKey{0};
  struct Row {
    RowKey key = kEmpty;
    std::uint32_t next_use = 0;  // number of a batch
    std::uint32_t latest = 0;    // its latest occurrence, counted from the first ever, modulo 2^32
    bool empty() const { return key == kEmpty; }
    std::uint64_t hash() const { return key; }
    bool same(const Row& other) const { return key == other.key; }
  };

  std::uint32_t end_occurrence() const {
    return first_occurrence_ + static_cast<std::uint32_t>(keys_.size());
  }

  std::uint32_t first_ = 0;
  std::uint32_t first_occurrence_ = 0;
  std::deque<std::uint32_t> begins_;      // of each batch: its first occurrence
  std::deque<RowKey> keys_;               // of each occurrence in the window
  std::deque<std::uint32_t> later_uses_;  // of each: the batch of the row's next occurrence, or kNoUse
  FlatMap<Row> rows_;
};

template <typename Changed>
void LookaheadWindow::add(const RowKey* keys, std::size_t n, const Changed& changed) {
  const std::uint32_t batch = end() - 1;
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint32_t occurrence = end_occurrence();
    const auto [row, is_new] = rows_.insert({keys[i], batch, occurrence});
    if (!is_new) {
      const std::uint32_t of_batch = occurrence - begins_.back();  // occurrences so far
      if (occurrence - row->latest <= of_batch) continue;
      later_uses_[row->latest - first_occurrence_] = batch;
      row->latest = occurrence;
    }
    keys_.push_back(keys[i]);
    later_uses_.push_back(kNoUse);
    if (is_new) changed(keys[i], batch);
  }
}

template <typename Changed>
void LookaheadWindow::leave(const Changed& changed) {
  begins_.pop_front();
  const std::uint32_t end = begins_.empty() ? end_occurrence() : begins_.front();
  ++first_;
  for (; first_occurrence_ != end; ++first_occurrence_) {
    const RowKey key = keys_.front();
    const std::uint32_t next_use = later_uses_.front();
    keys_.pop_front();
    later_uses_.pop_front();
    Row* row = rows_.find({key, 0, 0});
    if (next_use == kNoUse) {
      rows_.erase(row);
    } else {
      row->next_use = next_use;
    }
    changed(key, next_use);
  }
}

template <typename Changed>
void LookaheadWindow::clear(const Changed& changed) {
  FlatMap<Row> rows;
  std::swap(rows, rows_);
  first_ = end();
  first_occurrence_ = end_occurrence();
  begins_.clear();
  keys_.clear();
  later_uses_.clear();
  rows.each([&](const Row& row) { changed(row.key, kNoUse); });
}

}  // namespace mtrains
