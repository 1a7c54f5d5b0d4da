#include "mtrains/slot_index.h"

#include <algorithm>
#include <cassert>

namespace mtrains {

SlotIndex::SlotIndex(std::uint32_t max_capacity, SlotMemory& memory)
    : hot_range_(memory.reserve(std::size_t{max_capacity} * sizeof(SlotRecord), /*huge=*/true)),
      cold_range_(memory.reserve(std::size_t{max_capacity} * 8, /*huge=*/true)),
      hot_(reinterpret_cast<SlotRecord*>(hot_range_->data())),
      cold_(reinterpret_cast<std::uint64_t*>(cold_range_->data())),
      max_capacity_(max_capacity) {}

void SlotIndex::set_key(std::uint32_t slot, RowKey key, Location location) {
  hot(slot).state = static_cast<std::uint32_t>(key >> kKeyLowBits) << 8;
  cold_[slot] = (key << kLocationBits) | location;
}

bool SlotIndex::grow(std::uint32_t capacity) {
  assert(capacity >= capacity_ && capacity <= max_capacity_);
  if (!hot_range_->commit(capacity * sizeof(SlotRecord))) return false;
  if (!cold_range_->commit(capacity * std::size_t{8})) {
    hot_range_->decommit(capacity_ * sizeof(SlotRecord));
    return false;
  }
  // Pushed from the top, so that slots are handed out in ascending order.
  for (std::uint32_t slot = capacity; slot-- > capacity_;) {
    set_key(slot, kNoKey, 0);
    hot(slot).last_use = free_head_;
    free_head_ = slot;
  }
  capacity_ = capacity;
  return true;
}

void SlotIndex::drop_free_from(std::uint32_t capacity) {
  std::uint32_t kept = kEnd;
  std::uint32_t* tail = &kept;
  for (std::uint32_t slot = free_head_; slot != kEnd; slot = hot(slot).last_use) {
    if (slot < capacity) {
      *tail = slot;
      tail = &hot(slot).last_use;
    }
  }
  *tail = kEnd;
  free_head_ = kept;
}

SlotMoves SlotIndex::moves_below(std::uint32_t capacity) const {
  assert(num_used_ <= capacity);
  SlotMoves moves;
  std::uint32_t free = free_head_;
  for (std::uint32_t slot = capacity; slot < capacity_; ++slot) {
    if (!occupied(slot)) continue;
    while (free >= capacity) free = hot(free).last_use;
    moves.from.push_back(slot);
    moves.to.push_back(free);
    free = hot(free).last_use;
  }
  return moves;
}

void SlotIndex::shrink(std::uint32_t capacity) {
  const SlotMoves moves = moves_below(capacity);
  drop_free_from(capacity);
  for (std::size_t i = 0; i < moves.from.size(); ++i) move(moves.from[i], moves.to[i]);
  capacity_ = capacity;
  policy_->clear();
  hot_range_->decommit(capacity_ * sizeof(SlotRecord));
  cold_range_->decommit(capacity_ * std::size_t{8});
}

// REQUIRES: `to` is the first of the free slots.
void SlotIndex::move(std::uint32_t from, std::uint32_t to) {
  assert(free_head_ == to);
  free_head_ = hot(to).last_use;
  hot(to) = hot(from);
  cold_[to] = cold_[from];
  set_key(from, kNoKey, 0);
  ++generation_;
}

std::uint32_t SlotIndex::insert(RowKey key, Location location, std::uint32_t clock) {
  assert(free_head_ != kEnd);
  const std::uint32_t slot = free_head_;
  free_head_ = hot(slot).last_use;
  set_key(slot, key, location);
  hot(slot).last_use = clock;
  ++num_used_;
  return slot;
}

void SlotIndex::evict(std::uint32_t slot) {
  assert(occupied(slot));
  set_key(slot, kNoKey, 0);
  hot(slot).last_use = free_head_;
  free_head_ = slot;
  --num_used_;
  ++generation_;
}

void SlotIndex::rebase(std::uint32_t subtract) {
  for (std::uint32_t slot = 0; slot < capacity_; ++slot) {
    if (!occupied(slot)) continue;
    std::uint32_t& last_use = hot(slot).last_use;
    last_use = last_use > subtract ? last_use - subtract : 0;
  }
  policy_->clear();
}

bool LruPolicy::advance(const SlotIndex& index, std::uint32_t clock) {
  for (; next_ < queue_.size(); ++next_) {
    const Candidate& candidate = queue_[next_];
    const SlotRecord& record = index.hot(candidate.slot);
    if (record.last_use == candidate.last_use && candidate.last_use < clock && record.pins() == 0 &&
        index.occupied(candidate.slot)) {
      return true;
    }
  }
  return false;
}

void LruPolicy::scan(const SlotIndex& index, std::uint32_t clock) {
  queue_.clear();
  next_ = 0;
  for (std::uint32_t slot = 0; slot < index.capacity(); ++slot) {
    const SlotRecord& record = index.hot(slot);
    if (record.last_use < clock && record.pins() == 0 && index.occupied(slot)) {
      queue_.push_back({slot, record.last_use});
    }
  }
  const auto older = [](const Candidate& x, const Candidate& y) {
    return x.last_use != y.last_use ? x.last_use < y.last_use : x.slot < y.slot;
  };
  const std::size_t keep = std::min<std::size_t>(queue_.size(), index.capacity() / 16 + 64);
  std::nth_element(queue_.begin(), queue_.begin() + static_cast<std::ptrdiff_t>(keep), queue_.end(), older);
  queue_.resize(keep);
  std::sort(queue_.begin(), queue_.end(), older);
}

std::int64_t LruPolicy::victim(const SlotIndex& index, std::uint32_t clock) {
  std::uint32_t last_use;
  return oldest(index, clock, &last_use) ? static_cast<std::int64_t>(queue_[next_++].slot) : -1;
}

bool LruPolicy::oldest(const SlotIndex& index, std::uint32_t clock, std::uint32_t* last_use) {
  if (!advance(index, clock)) {
    scan(index, clock);
    if (!advance(index, clock)) return false;
  }
  *last_use = queue_[next_].last_use;
  return true;
}

}  // namespace mtrains
