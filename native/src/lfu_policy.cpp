#include "mtrains/lfu_policy.h"

namespace mtrains {
namespace {

constexpr std::uint32_t kMaxCount = 255;

}  // namespace

void LfuPolicy::inserted(SlotIndex& index, std::uint32_t slot) {
  if (Count* former = remembered_.find({index.key(slot), 0})) {
    index.hot(slot).rank = former->count;
    remembered_.erase(former);
  }
  count(index, slot);
  ScoredPolicy::inserted(index, slot);
}

void LfuPolicy::accessed(SlotIndex& index, std::uint32_t slot) { count(index, slot); }

void LfuPolicy::evicted(SlotIndex& index, std::uint32_t slot) {
  if (spec_.remembered == 0 || index.hot(slot).rank == 0) return;
  remembered_.insert({index.key(slot), index.hot(slot).rank});
  const std::uint64_t most = std::uint64_t{spec_.remembered} * index.capacity();
  while (remembered_.size() > most) halve_remembered();
}

void LfuPolicy::count(SlotIndex& index, std::uint32_t slot) {
  if (index.hot(slot).rank < kMaxCount) index.hot(slot).rank = index.hot(slot).rank + 1;
  if (spec_.decay == 0 || ++num_counted_ < std::uint64_t{spec_.decay} * index.capacity()) return;
  num_counted_ = 0;
  for (std::uint32_t each = 0; each < index.capacity(); ++each) {
    index.hot(each).rank = index.hot(each).rank / 2;
  }
  halve_remembered();
  clear();
}

void LfuPolicy::halve_remembered() {
  FlatMap<Count> kept;
  remembered_.each([&kept](const Count& count) {
    if (count.count > 1) kept.insert({count.key, count.count / 2});
  });
  remembered_ = std::move(kept);
}

}  // namespace mtrains
