// Least frequently used, with decay.
#pragma once

#include <cstdint>

#include "mtrains/flat_map.h"
#include "mtrains/scored_policy.h"

namespace mtrains {

struct FrequencyThenRecency {
  static constexpr bool kNewestLast = false;
  static std::uint32_t of(const SlotRecord& record) {
    return (std::uint32_t{record.rank} << 24) | record.last_use;
  }
};

struct LfuSpec {
  // After so many accesses a slot of the index all counts are halved, so that what was popular once leaves.
  // 0: never.
  std::uint32_t decay = 8;
  // Counts of so many rows a slot outlive their eviction, at 32 to 64 bytes each. 0: a row that returns
  // starts anew.
  std::uint32_t remembered = 1;
};

// The slot whose row had the fewest accesses, ties by recency and then by slot number. Counts stop at 255.
// When too many rows are remembered, their counts are halved until enough are forgotten.
class LfuPolicy : public ScoredPolicy<FrequencyThenRecency> {
 public:
  explicit LfuPolicy(LfuSpec spec) : spec_(spec) {}

  void inserted(SlotIndex& index, std::uint32_t slot) override;
  void accessed(SlotIndex& index, std::uint32_t slot) override;
  bool hears_accesses() const override { return true; }
  void evicted(SlotIndex& index, std::uint32_t slot) override;

 private:
  struct Count {
    RowKey key = 0;
    std::uint32_t count = 0;
    bool empty() const { return count == 0; }
    std::uint64_t hash() const { return key; }
    bool same(const Count& other) const { return key == other.key; }
  };

  void count(SlotIndex& index, std::uint32_t slot);
  void halve_remembered();

  const LfuSpec spec_;
  FlatMap<Count> remembered_;
  std::uint64_t num_counted_ = 0;  // since the last halving
};

}  // namespace mtrains
