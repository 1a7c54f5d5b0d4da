#include "mtrains/slot_tier.h"

#include <algorithm>
#include <string>

#include "mtrains/errors.h"

namespace mtrains {
namespace {

// Slots are lent to a pool by slabs: small ones under a small budget, so that several strides get their
// share.
constexpr std::uint64_t kSlabBytes = 256 << 10;
constexpr std::uint64_t kSlabsPerBudget = 32;
// A device grows a pool by copying it, so it grows rarely; a pool alone in its tier takes all at once.
constexpr std::uint64_t kDeviceSlabsPerBudget = 4;

std::uint32_t max_slots(std::uint64_t budget, std::size_t stride) {
  return static_cast<std::uint32_t>(
      std::min<std::uint64_t>(budget / (stride + kSlotIndexBytes), 0x7ffffff0u));
}

}  // namespace

const char* name_of(TierKind kind) {
  constexpr const char* kNames[] = {"hbm", "dram", "scm"};
  return kNames[static_cast<int>(kind)];
}

// --- one pool

SlotPool::SlotPool(std::size_t level, std::size_t stride, std::uint64_t budget, const TierSpec& tier,
                   SlotMemory& memory, const LookaheadWindow& window, PolicyKind beyond)
    : level(level), stride(stride), budget(budget), index(max_slots(budget, stride), memory) {
  auto policy = std::make_unique<NextUsePolicy>(window, make_policy(beyond));
  next_use = policy.get();
  index.set_policy(std::move(policy));
  if (tier.device != nullptr) {
    device = tier.device->reserve(stride, max_slots(budget, stride));
  } else {
    range = memory.reserve(std::max<std::size_t>(stride, max_slots(budget, stride) * stride), /*huge=*/true);
    records = range->data();
  }
}

bool SlotPool::grow(std::uint32_t capacity) {
  // The index last: what it says is free must be there, and a device may throw.
  if (range != nullptr && !range->commit(capacity * stride)) return false;
  if (device != nullptr) device->resize(capacity);
  if (index.grow(capacity)) return true;
  trim();
  return false;
}

void SlotPool::trim() {
  if (range != nullptr) range->decommit(index.capacity() * stride);
  if (device != nullptr) device->resize(index.capacity());
}

// --- a tier

SlotTier::SlotTier(std::size_t level, TierSpec spec, const LookaheadWindow& window, PolicyKind beyond)
    : level_(level), spec_(std::move(spec)), window_(window), beyond_(beyond) {}

void SlotTier::give(const std::string& table, std::uint64_t bytes) {
  if (bytes > spec_.set_aside - given_) {
    throw CapacityError("table '" + table + "': its budget of " + std::to_string(bytes) + " bytes of " +
                        name_of(spec_.kind) + " is more than the " +
                        std::to_string(spec_.set_aside - given_) +
                        " that are left of what budgets set aside");
  }
  given_ += bytes;
}

SlotPool* SlotTier::pool_for(std::uint32_t table, std::size_t stride, const std::uint64_t* own) {
  const std::uint64_t budget = own != nullptr ? *own : shared_bytes();
  if (budget < stride + kSlotIndexBytes) return nullptr;
  auto& pool = pools_[{own != nullptr ? table : kShared, stride}];
  if (pool == nullptr) {
    SlotMemory& memory = spec_.memory != nullptr ? *spec_.memory : host_;
    pool = std::make_unique<SlotPool>(level_, stride, budget, spec_, memory, window_, beyond_);
  }
  return pool.get();
}

std::vector<SlotPool*> SlotTier::pools() const {
  std::vector<SlotPool*> all;
  for (const auto& [key, pool] : pools_) all.push_back(pool.get());
  return all;
}

bool SlotTier::is_shared(const SlotPool& pool) const {
  const auto it = pools_.find({kShared, pool.stride});
  return it != pools_.end() && it->second.get() == &pool;
}

std::uint32_t SlotTier::slab_slots(const SlotPool& pool) const {
  std::uint64_t slab = std::min(kSlabBytes, pool.budget / kSlabsPerBudget);
  if (pool.device != nullptr) slab = pools_.size() == 1 ? pool.budget : pool.budget / kDeviceSlabsPerBudget;
  return static_cast<std::uint32_t>(std::max<std::uint64_t>(1, slab / pool.slot_bytes()));
}

bool SlotTier::grow(SlotPool& pool) {
  std::uint64_t used = pool.bytes();
  if (is_shared(pool)) {
    used = 0;
    for (const auto& [key, other] : pools_) used += key.first == kShared ? other->bytes() : 0;
  }
  if (used >= pool.budget) return false;
  const std::uint64_t slots =
      std::min<std::uint64_t>(slab_slots(pool), (pool.budget - used) / pool.slot_bytes());
  return slots > 0 && pool.grow(pool.index.capacity() + static_cast<std::uint32_t>(slots));
}

bool SlotTier::leaves_before(const Victim& victim, std::size_t stride, const Victim& other,
                             std::size_t other_stride) const {
  const bool wanted = victim.next_use != kNoUse, other_wanted = other.next_use != kNoUse;
  if (wanted != other_wanted) return other_wanted;
  if (!wanted) return victim.last_use < other.last_use;
  return std::uint64_t{victim.next_use - window_.first()} * stride >
         std::uint64_t{other.next_use - window_.first()} * other_stride;
}

SlotPool* SlotTier::lender_for(SlotPool& pool, bool only_worse, std::uint32_t clock) const {
  if (pools_.size() == 1) return nullptr;
  if (!is_shared(pool)) {
    // Memory comes in units, so the shared pools may have some of what was set aside for this one.
    if (pool.bytes() + pool.slot_bytes() > pool.budget) return nullptr;
    only_worse = false;
  }
  Victim least{.slot = 0, .last_use = 0xffffffffu, .next_use = kNoUse};
  std::size_t least_stride = pool.stride;
  SlotPool* lender = nullptr;
  // Whoever may leave is worth lending, unless the pool has a row of its own that shall leave before.
  bool any = !only_worse || !pool.index.policy().peek(pool.index, clock, &least);
  for (const auto& [key, other] : pools_) {
    if (key.first != kShared || other.get() == &pool || other->index.capacity() == 0) continue;
    Victim victim{.slot = 0, .last_use = 0, .next_use = kNoUse};  // of a pool with free slots
    if (other->index.num_used() == other->index.capacity() &&
        !other->index.policy().peek(other->index, clock, &victim))
      continue;
    if (!any && !leaves_before(victim, other->stride, least, least_stride)) continue;
    any = false;
    least = victim;
    least_stride = other->stride;
    lender = other.get();
  }
  return lender;
}

bool SlotTier::may_pin(const std::map<SlotPool*, std::uint64_t>& more, double share) const {
  double shared = 0;
  for (const auto& [key, pool] : pools_) {
    const auto it = more.find(pool.get());
    const std::uint64_t slots = pool->num_pinned + (it == more.end() ? 0 : it->second);
    const double bytes = static_cast<double>(slots * pool->slot_bytes());
    if (key.first == kShared) {
      shared += bytes;
    } else if (it != more.end() && bytes > share * static_cast<double>(pool->budget)) {
      return false;
    }
  }
  return shared <= share * static_cast<double>(shared_bytes());
}

void SlotTier::charge_limit(std::uint64_t rows_read, std::uint64_t rows_written, std::size_t stride) {
  const std::int64_t read_until = spec_.limit->owe_read(rows_read, stride);
  const std::int64_t write_until = spec_.limit->owe_write(rows_written, stride);
  if (owed_ != nullptr) {
    owed_->read_until = std::max(owed_->read_until, read_until);
    owed_->write_until = std::max(owed_->write_until, write_until);
    return;
  }
  if (rows_read > 0) spec_.limit->wait_read(read_until);
  if (rows_written > 0) spec_.limit->wait_write(write_until);
}

std::uint64_t SlotTier::slots() const {
  std::uint64_t count = 0;
  for (const auto& [key, pool] : pools_) count += pool->index.capacity();
  return count;
}

std::uint64_t SlotTier::used_slots() const {
  std::uint64_t count = 0;
  for (const auto& [key, pool] : pools_) count += pool->index.num_used();
  return count;
}

std::uint64_t SlotTier::used_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& [key, pool] : pools_) bytes += pool->bytes();
  return bytes;
}

}  // namespace mtrains
