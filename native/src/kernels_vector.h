// Sixteen float32 lanes on any instruction set, and the weight types as such lanes.
//
// Part of kernels_impl.h: compiled once per instruction set, in an unnamed namespace, so that no code for a
// newer CPU can be linked into the path for an older one. For the same reason nothing of std is called here.
#pragma once

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#define MTRAINS_VECTOR_WIDTH 16
#elif defined(__AVX2__)
#define MTRAINS_VECTOR_WIDTH 8
#else
#define MTRAINS_VECTOR_WIDTH 4
#endif

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "mtrains/record_layout.h"

#define MTRAINS_INLINE [[gnu::always_inline]] inline

namespace mtrains {
namespace {

constexpr int kWidth = MTRAINS_VECTOR_WIDTH;
constexpr int kLanes = 16;
constexpr int kParts = kLanes / kWidth;

typedef float VecF __attribute__((vector_size(4 * kWidth)));
typedef std::uint32_t VecU __attribute__((vector_size(4 * kWidth)));
typedef std::int32_t VecI __attribute__((vector_size(4 * kWidth)));
typedef std::uint64_t VecL __attribute__((vector_size(4 * kWidth)));
typedef std::uint16_t VecH __attribute__((vector_size(2 * kWidth)));
// The same in memory, at any address that suits one element.
typedef float VecFMemory __attribute__((vector_size(4 * kWidth), aligned(4), may_alias));
typedef std::uint32_t VecUMemory __attribute__((vector_size(4 * kWidth), aligned(4), may_alias));
typedef std::uint16_t VecHMemory __attribute__((vector_size(2 * kWidth), aligned(2), may_alias));

MTRAINS_INLINE VecU select(VecI mask, VecU yes, VecU no) {
  return (VecU)((mask & (VecI)yes) | (~mask & (VecI)no));
}

MTRAINS_INLINE VecF vector_sqrt(VecF x) {
#if MTRAINS_VECTOR_WIDTH == 16
  return (VecF)_mm512_maskz_sqrt_ps(0xffff, (__m512)x);
#elif MTRAINS_VECTOR_WIDTH == 8
  return (VecF)_mm256_sqrt_ps((__m256)x);
#elif defined(__SSE2__)
  return (VecF)_mm_sqrt_ps((__m128)x);
#else
  for (int i = 0; i < kWidth; ++i) x[i] = std::sqrt(x[i]);
  return x;
#endif
}

// Products of the even 32-bit lanes, 64 bits wide.
MTRAINS_INLINE VecL multiply_even(VecL a, VecL b) {
#if MTRAINS_VECTOR_WIDTH == 16
  return (VecL)_mm512_maskz_mul_epu32(0xff, (__m512i)a, (__m512i)b);
#elif MTRAINS_VECTOR_WIDTH == 8
  return (VecL)_mm256_mul_epu32((__m256i)a, (__m256i)b);
#elif defined(__SSE2__)
  return (VecL)_mm_mul_epu32((__m128i)a, (__m128i)b);
#else
  return (a & 0xffffffffu) * (b & 0xffffffffu);
#endif
}

// Sixteen floats.
struct Block {
  VecF part[kParts];
};

#define MTRAINS_BLOCK_OPERATOR(op)                                         \
  MTRAINS_INLINE Block operator op(const Block& a, const Block& b) {       \
    Block out;                                                             \
    for (int i = 0; i < kParts; ++i) out.part[i] = a.part[i] op b.part[i]; \
    return out;                                                            \
  }
MTRAINS_BLOCK_OPERATOR(+)
MTRAINS_BLOCK_OPERATOR(-)
MTRAINS_BLOCK_OPERATOR(*)
MTRAINS_BLOCK_OPERATOR(/)
#undef MTRAINS_BLOCK_OPERATOR

MTRAINS_INLINE Block broadcast(float value) {
  Block out;
  for (int i = 0; i < kParts; ++i) out.part[i] = value - VecF{};
  return out;
}

MTRAINS_INLINE Block square_root(const Block& x) {
  Block out;
  for (int i = 0; i < kParts; ++i) out.part[i] = vector_sqrt(x.part[i]);
  return out;
}

MTRAINS_INLINE Block negate(const Block& x) {
  Block out;
  for (int i = 0; i < kParts; ++i) out.part[i] = -x.part[i];
  return out;
}

// The sum of the lanes: l + (l + 8), then + 4, + 2, + 1. This tree is part of the definition of every sum
// over D.
MTRAINS_INLINE float sum_lanes(const Block& x) {
  typedef float Four __attribute__((vector_size(16)));
  Four quarter[4];
  __builtin_memcpy(quarter, &x, sizeof quarter);
  const Four four = (quarter[0] + quarter[2]) + (quarter[1] + quarter[3]);
  return (four[0] + four[2]) + (four[1] + four[3]);
}

// The first n of sixteen floats at p; the other lanes are 0.
MTRAINS_INLINE Block load_some(const float* p, std::uint32_t n) {
#if MTRAINS_VECTOR_WIDTH == 16
  return {{(VecF)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p)}};
#else
  float lanes[kLanes] = {};
  for (std::uint32_t i = 0; i < n; ++i) lanes[i] = p[i];
  Block out;
  __builtin_memcpy(&out, lanes, sizeof out);
  return out;
#endif
}

MTRAINS_INLINE void store_some(float* p, const Block& x, std::uint32_t n) {
#if MTRAINS_VECTOR_WIDTH == 16
  _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), (__m512)x.part[0]);
#else
  float lanes[kLanes];
  __builtin_memcpy(lanes, &x, sizeof lanes);
  for (std::uint32_t i = 0; i < n; ++i) p[i] = lanes[i];
#endif
}

MTRAINS_INLINE Block load(const float* p) {
  Block out;
  for (int i = 0; i < kParts; ++i) out.part[i] = *(const VecFMemory*)(p + i * kWidth);
  return out;
}

MTRAINS_INLINE void store(float* p, const Block& x) {
  for (int i = 0; i < kParts; ++i) *(VecFMemory*)(p + i * kWidth) = x.part[i];
}

MTRAINS_INLINE Block load(const float* p, std::uint32_t n) { return n == kLanes ? load(p) : load_some(p, n); }

MTRAINS_INLINE void store(float* p, const Block& x, std::uint32_t n) {
  n == kLanes ? store(p, x) : store_some(p, x, n);
}

// Weights are read and written through one of the following types. `words` are random words, one a lane;
// only the 16-bit types use them.
struct Float32 {
  static constexpr bool kRounds = false;
  static constexpr std::size_t kSize = 4;
  MTRAINS_INLINE static Block load(const std::byte* p) { return mtrains::load((const float*)p); }
  MTRAINS_INLINE static Block load(const std::byte* p, std::uint32_t n) {
    return mtrains::load((const float*)p, n);
  }
  MTRAINS_INLINE static void store(std::byte* p, const Block& x, std::uint32_t n, const std::uint32_t*) {
    mtrains::store((float*)p, x, n);
  }
};

// float16 -> float32, exact, so that the instruction and the integer code agree; a signalling NaN becomes
// quiet.
MTRAINS_INLINE VecF widen_float16(VecH half) {
#if MTRAINS_VECTOR_WIDTH == 16
  return (VecF)_mm512_maskz_cvtph_ps(0xffff, (__m256i)half);
#elif MTRAINS_VECTOR_WIDTH == 8 && defined(__F16C__)
  return (VecF)_mm256_cvtph_ps((__m128i)half);
#else
  const VecU h = __builtin_convertvector(half, VecU);
  const VecU sign = (h & 0x8000u) << 16;
  const VecU magnitude = h & 0x7fffu;
  const VecU normal = (magnitude << 13) + (112u << 23);
  const VecU subnormal = (VecU)(__builtin_convertvector((VecI)magnitude, VecF) * 0x1p-24f);
  const VecU special = select(magnitude > 0x7c00u, (magnitude << 13) | 0x7fc00000u, VecU{} + 0x7f800000u);
  const VecU finite = select(magnitude < 0x400u, subnormal, normal);
  return (VecF)(sign | select(magnitude >= 0x7c00u, special, finite));
#endif
}

MTRAINS_INLINE VecF widen_bfloat16(VecH half) {
  const VecU bits = __builtin_convertvector(half, VecU) << 16;
  return (VecF)select((bits & 0x7fffffffu) > 0x7f800000u, bits | 0x400000u, bits);
}

// float32 -> float16 bits, one of the two neighbours, the farther one with a probability equal to the
// distance from the nearer: adds as many random bits as are cut off. Values that are representable stay.
// Finite values beyond the largest become the largest; infinities and NaN stay what they are.
MTRAINS_INLINE VecU round_float16(VecF x, VecU words) {
  const VecU bits = (VecU)x;
  const VecU sign = (bits >> 16) & 0x8000u;
  const VecU magnitude = bits & 0x7fffffffu;
  const VecU exponent = magnitude >> 23;
  const VecU normal = ((magnitude + (words & 0x1fffu)) >> 13) - (112u << 10);
  // Below 2^-14 the value is significand / 2^shift units of 2^-24. At most 31 random bits are compared: below
  // 2^-31 the probability is cut to a multiple of 2^-31.
  const VecU significand = select(exponent > 0u, (magnitude & 0x7fffffu) | 0x800000u, magnitude);
  const VecU want = 126u - select(exponent > 0u, exponent, VecU{} + 1u);
  const VecU wide = VecU{} + 31u;
  const VecU shift = select(want < 31u, want, wide) & 31u;
  const VecU excess = select(want > 31u, want - 31u, VecU{});
  const VecU cut = significand >> select(excess < 31u, excess, wide);
  const VecU subnormal = (cut + (words & (((VecU{} + 1u) << shift) - 1u))) >> shift;
  const VecU finite = select(magnitude < 0x38800000u, subnormal, normal);
  const VecU bounded = select((finite > 0x7bffu) | (magnitude >= 0x47800000u), VecU{} + 0x7bffu, finite);
  const VecU special = select(magnitude > 0x7f800000u, VecU{} + 0x7e00u, VecU{} + 0x7c00u);
  return sign | select(magnitude >= 0x7f800000u, special, bounded);
}

MTRAINS_INLINE VecU round_bfloat16(VecF x, VecU words) {
  const VecU bits = (VecU)x;
  const VecU magnitude = bits & 0x7fffffffu;
  const VecU rounded = (magnitude + (words & 0xffffu)) >> 16;
  const VecU bounded = select(rounded > 0x7f7fu, VecU{} + 0x7f7fu, rounded);
  const VecU special = (magnitude >> 16) | select(magnitude > 0x7f800000u, VecU{} + 0x40u, VecU{});
  return ((bits >> 16) & 0x8000u) | select(magnitude >= 0x7f800000u, special, bounded);
}

template <VecF (*kWiden)(VecH), VecU (*kRound)(VecF, VecU)>
struct SixteenBit {
  static constexpr bool kRounds = true;
  static constexpr std::size_t kSize = 2;
  MTRAINS_INLINE static Block load(const std::byte* p) {
    Block out;
    for (int i = 0; i < kParts; ++i) {
      out.part[i] = kWiden(*(const VecHMemory*)(p + 2 * kWidth * i));
    }
    return out;
  }
  MTRAINS_INLINE static Block load(const std::byte* p, std::uint32_t n) {
    if (n == kLanes) return load(p);
    std::uint16_t lanes[kLanes] = {};
    for (std::uint32_t i = 0; i < n; ++i) __builtin_memcpy(lanes + i, p + 2 * i, 2);
    return load((const std::byte*)lanes);
  }
  MTRAINS_INLINE static void store(std::byte* p, const Block& x, std::uint32_t n,
                                   const std::uint32_t* words) {
    std::uint16_t lanes[kLanes];
    for (int i = 0; i < kParts; ++i) {
      const VecU rounded = kRound(x.part[i], *(const VecUMemory*)(words + i * kWidth));
      *(VecHMemory*)(lanes + i * kWidth) = __builtin_convertvector(rounded, VecH);
    }
    if (n == kLanes) {
      __builtin_memcpy(p, lanes, sizeof lanes);
    } else {
      for (std::uint32_t i = 0; i < n; ++i) __builtin_memcpy(p + 2 * i, lanes + i, 2);
    }
  }
};
using Float16 = SixteenBit<widen_float16, round_float16>;
using BFloat16 = SixteenBit<widen_bfloat16, round_bfloat16>;

// Calls function.template operator()<W>() for the weight type that `dtype` names.
template <typename Function>
MTRAINS_INLINE void with_weights(WeightType dtype, const Function& function) {
  switch (dtype) {
    case WeightType::kFloat32:
      return function.template operator()<Float32>();
    case WeightType::kFloat16:
      return function.template operator()<Float16>();
    case WeightType::kBFloat16:
      return function.template operator()<BFloat16>();
  }
}

// Asks for the cache lines of `size` bytes at `p`, which need not be a valid address.
MTRAINS_INLINE void prefetch(const void* p, std::size_t size) {
  const std::uintptr_t begin = (std::uintptr_t)p;
  for (std::size_t offset = 0; offset < size; offset += 64) __builtin_prefetch((const void*)(begin + offset));
  __builtin_prefetch((const void*)(begin + size - 1));
}

}  // namespace
}  // namespace mtrains
