// How rows, columns and updates are laid out in the 128-bit counter of Philox.
//
// Initial values and stochastic rounding never share a counter: bit 127 tells them apart. Both name the row
// in the low 64 bits.
#pragma once

#include <cstdint>

namespace mtrains {

// Constants of Philox4x32-10. Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
static constexpr std::uint32_t kPhiloxMultiplier0 = 0xD2511F53u;
static constexpr std::uint32_t kPhiloxMultiplier1 = 0xCD9E8D57u;
static constexpr std::uint32_t kPhiloxWeyl0 = 0x9E3779B9u;
static constexpr std::uint32_t kPhiloxWeyl1 = 0xBB67AE85u;
static constexpr int kPhiloxRounds = 10;

// Column d of a rounding takes word (d / 16) % 4 of counter block (d / 64) * 16 + d % 16: sixteen lanes give
// four vectors of sixteen columns without a transposition.
static constexpr std::uint64_t kRoundingDomain = std::uint64_t{1} << 63;
static constexpr int kRoundingBlockBits = 25;  // below them 38 bits of update count

}  // namespace mtrains
