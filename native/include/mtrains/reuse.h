// How long ago, and behind how many other rows, a row was used before.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "mtrains/access_trace.h"

namespace mtrains {

inline constexpr std::uint32_t kNoReuse = 0xffffffffu;
inline constexpr std::uint64_t kNoDistance = ~std::uint64_t{0};

// Of each access of the trace in order, which is one unique row of one batch: batches since the row's use
// before, or kNoReuse.
std::vector<std::uint32_t> reuse_times(const AccessTrace& trace);

// Of each access: the slots that the distinct other rows used since take, or kNoDistance. An LRU cache of
// more slots hits, and no smaller one (Mattson et al., 1970), if it evicts row by row: a batch counts as so
// many accesses. weights: slots of a row of each table; empty: one. Throws std::invalid_argument if they are
// too few.
std::vector<std::uint64_t> reuse_distances(const AccessTrace& trace, std::span<const std::uint32_t> weights);

}  // namespace mtrains
