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

// The high 64 bits of a rounding: the domain bit, 38 bits of update count, 25 of counter block.
static constexpr std::uint64_t kRoundingDomain = std::uint64_t{1} << 63;
static constexpr int kRoundingBlockBits = 25;

}  // namespace mtrains
