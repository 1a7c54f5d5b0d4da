// float32 bits to 16-bit floats, rounded to nearest even, in integers so that every machine agrees.
#pragma once

#include <bit>
#include <cstdint>

namespace mtrains {

// IEEE binary16: overflow gives infinity, NaN stays NaN (quiet), subnormals are exact multiples of 2^-24.
inline std::uint16_t round_to_float16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);  // >= 65520
  std::uint32_t significand = magnitude, shift = 13, bias = 112u << 10;
  if (magnitude < 0x38800000u) {  // below 2^-14: a multiple of 2^-24
    const std::uint32_t exponent = magnitude >> 23;
    if (exponent < 102) return static_cast<std::uint16_t>(sign);  // below 2^-25
    significand = (magnitude & 0x7fffffu) | 0x800000u;
    shift = 126 - exponent;
    bias = 0;
  }
  const std::uint32_t half = (1u << (shift - 1)) - 1;
  const std::uint32_t rounded = (significand + half + ((significand >> shift) & 1)) >> shift;
  return static_cast<std::uint16_t>(sign | (rounded - bias));
}

inline std::uint16_t round_to_bfloat16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

}  // namespace mtrains
