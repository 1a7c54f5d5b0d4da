// Where a row lies in the log: segment number (24 bits), block (8), position in the block (10).
#pragma once

#include <cstdint>

namespace mtrains {

inline constexpr int kPositionBits = 10;
inline constexpr int kBlockBits = 8;
inline constexpr int kLocationBits = 42;
inline constexpr std::uint64_t kLocationMask = (std::uint64_t{1} << kLocationBits) - 1;
inline constexpr std::uint32_t kMaxSegments = 1u << 24;

// 0 is no location: segment numbers begin at 1.
using Location = std::uint64_t;

inline Location make_location(std::uint32_t segment, std::uint32_t block, std::uint32_t position) {
  return (Location{segment} << (kBlockBits + kPositionBits)) | (Location{block} << kPositionBits) | position;
}
inline std::uint32_t segment_of(Location location) {
  return static_cast<std::uint32_t>(location >> (kBlockBits + kPositionBits));
}
inline std::uint32_t block_of(Location location) {
  return static_cast<std::uint32_t>(location >> kPositionBits) & ((1u << kBlockBits) - 1);
}
inline std::uint32_t position_of(Location location) {
  return static_cast<std::uint32_t>(location) & ((1u << kPositionBits) - 1);
}

}  // namespace mtrains
