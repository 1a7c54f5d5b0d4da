#include "mtrains/slot_index.h"

#include <cassert>

#include "mtrains/lru_policy.h"

namespace mtrains {

SlotIndex::SlotIndex(std::uint32_t max_capacity, SlotMemory& memory)
    : hot_range_(memory.reserve(std::size_t{max_capacity} * sizeof(SlotRecord), /*huge=*/true)),
      cold_range_(memory.reserve(std::size_t{max_capacity} * 8, /*huge=*/true)),
      hot_(reinterpret_cast<SlotRecord*>(hot_range_->data())),
      cold_(reinterpret_cast<std::uint64_t*>(cold_range_->data())),
      max_capacity_(max_capacity),
      policy_(std::make_unique<LruPolicy>()) {}

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
    set_free(slot, free_head_);
    free_head_ = slot;
  }
  capacity_ = capacity;
  return true;
}

void SlotIndex::drop_free_from(std::uint32_t capacity) {
  std::uint32_t head = kEnd, tail = kEnd;
  for (std::uint32_t slot = free_head_; slot != kEnd; slot = after_free(slot)) {
    if (slot >= capacity) continue;
    if (tail == kEnd) {
      head = slot;
    } else {
      set_location(tail, slot);
    }
    tail = slot;
  }
  if (tail != kEnd) set_location(tail, kEnd);
  free_head_ = head;
}

SlotMoves SlotIndex::moves_below(std::uint32_t capacity) const {
  assert(num_used_ <= capacity);
  SlotMoves moves;
  std::uint32_t free = free_head_;
  for (std::uint32_t slot = capacity; slot < capacity_; ++slot) {
    if (!occupied(slot)) continue;
    while (free >= capacity) free = after_free(free);
    moves.from.push_back(slot);
    moves.to.push_back(free);
    free = after_free(free);
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
  free_head_ = after_free(to);
  hot(to) = hot(from);
  cold_[to] = cold_[from];
  set_key(from, kNoKey, 0);
  ++generation_;
}

std::uint32_t SlotIndex::insert(RowKey key, Location location, std::uint32_t clock) {
  assert(free_head_ != kEnd);
  const std::uint32_t slot = free_head_;
  free_head_ = after_free(slot);
  set_key(slot, key, location);
  hot(slot).last_use = clock;
  hot(slot).rank = 0;
  ++num_used_;
  policy_->inserted(*this, slot);
  return slot;
}

void SlotIndex::evict(std::uint32_t slot) {
  assert(occupied(slot));
  policy_->evicted(*this, slot);
  if (hot(slot).wanted()) --num_wanted_;
  set_free(slot, free_head_);
  free_head_ = slot;
  --num_used_;
  ++generation_;
}

void SlotIndex::rebase(std::uint32_t subtract) {
  for (std::uint32_t slot = 0; slot < capacity_; ++slot) {
    if (!occupied(slot)) continue;
    const std::uint32_t last_use = hot(slot).last_use;
    hot(slot).last_use = last_use > subtract ? last_use - subtract : 0;
  }
  policy_->clear();
}

}  // namespace mtrains
