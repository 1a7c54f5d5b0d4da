// Least recently used.
#pragma once

#include "mtrains/scored_policy.h"

namespace mtrains {

struct Recency {
  static constexpr bool kNewestLast = true;
  static std::uint32_t of(const SlotRecord& record) { return record.last_use; }
};

// Exactly the least recently used slot, ties by slot number.
using LruPolicy = ScoredPolicy<Recency>;

}  // namespace mtrains
