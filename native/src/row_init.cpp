#include "mtrains/row_init.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "float_mode.h"
#include "half.h"
#include "philox_lanes.h"

namespace mtrains {
namespace {

constexpr double kLn2 = 0.693147180559945309417;
constexpr double kHalfPi = 1.57079632679489661923;

// Counter blocks taken at a time, so that the loops over them become vector code: 64 columns.
constexpr std::uint32_t kBlocks = 16;

// The four words of kBlocks counters, word by word.
struct Words {
  std::uint32_t word[4][kBlocks];
};

// Integer to double without a conversion that SSE2 lacks; exact.
inline double half_above(std::uint32_t word) {
  return static_cast<double>(static_cast<std::int32_t>(word ^ 0x80000000u)) + 2147483648.5;
}

// -2 ln((word + 1/2) / 2^32), relative error below 1e-11.
//
// The argument is m * 2^e with m in [sqrt(1/2), sqrt(2)); ln m = 2 atanh((m - 1) / (m + 1)), whose series in
// s^2 <= 0.0295 is cut after s^14.
inline double minus_two_log(std::uint32_t word) {
  constexpr std::uint64_t kSqrtHalf = 0x3fe6a09e667f3bcdu, kBias = 64, kTwo52 = 0x4330000000000000u;
  const std::uint64_t bits = std::bit_cast<std::uint64_t>(half_above(word) * 0x1p-32);
  const std::uint64_t biased = (bits - kSqrtHalf + (kBias << 52)) >> 52;  // e + 64
  const double exponent = std::bit_cast<double>(kTwo52 | biased) - (0x1p52 + static_cast<double>(kBias));
  const double m = std::bit_cast<double>(bits - (biased << 52) + (kBias << 52));
  const double s = (m - 1) / (m + 1);
  const double q = s * s;
  double series = 1.0 / 15;
  series = series * q + 1.0 / 13;
  series = series * q + 1.0 / 11;
  series = series * q + 1.0 / 9;
  series = series * q + 1.0 / 7;
  series = series * q + 1.0 / 5;
  series = series * q + 1.0 / 3;
  series = series * q + 1.0;
  return -2 * (exponent * kLn2 + 2 * s * series);
}

// Sine and cosine of |x| <= pi / 4: the Taylor series up to x^13 and x^14, error below 1e-13.
inline double sine(double x) {
  const double q = x * x;
  double s = 1.0 / 6227020800;
  s = s * q - 1.0 / 39916800;
  s = s * q + 1.0 / 362880;
  s = s * q - 1.0 / 5040;
  s = s * q + 1.0 / 120;
  s = s * q - 1.0 / 6;
  return x + x * q * s;
}
inline double cosine(double x) {
  const double q = x * x;
  double c = -1.0 / 87178291200;
  c = c * q + 1.0 / 479001600;
  c = c * q - 1.0 / 3628800;
  c = c * q + 1.0 / 40320;
  c = c * q - 1.0 / 720;
  c = c * q + 1.0 / 24;
  c = c * q - 1.0 / 2;
  return 1 + q * c;
}

// Pairs of independent standard normals by the method of Box and Muller, |z| <= sqrt(66 ln 2) < 6.77.
//
// The two high bits of `angle` name a quadrant, the other 30 an angle within it, taken from its middle.
void normal_pairs(const std::uint32_t* radius, const std::uint32_t* angle, double* first, double* second) {
  double length[kBlocks];
  for (std::uint32_t i = 0; i < kBlocks; ++i) length[i] = minus_two_log(radius[i]);
  for (std::uint32_t i = 0; i < kBlocks; ++i) length[i] = std::sqrt(length[i]);
  for (std::uint32_t i = 0; i < kBlocks; ++i) {
    const double turn =
        (static_cast<double>(static_cast<std::int32_t>(angle[i] & 0x3fffffffu)) + 0.5) * 0x1p-30 - 0.5;
    const std::uint64_t s = std::bit_cast<std::uint64_t>(sine(turn * kHalfPi));
    const std::uint64_t c = std::bit_cast<std::uint64_t>(cosine(turn * kHalfPi));
    // Quadrant 1 turns (c, s) into (-s, c), quadrant 2 into (-c, -s), quadrant 3 into (s, -c).
    const std::uint64_t quadrant = angle[i] >> 30;
    const std::uint64_t swap = 0 - (quadrant & 1);
    const std::uint64_t x = ((s & swap) | (c & ~swap)) ^ (((quadrant + 1) & 2) << 62);
    const std::uint64_t y = ((c & swap) | (s & ~swap)) ^ ((quadrant & 2) << 62);
    first[i] = length[i] * std::bit_cast<double>(x);
    second[i] = length[i] * std::bit_cast<double>(y);
  }
}

// The largest float below `value`, which is finite and above the lowest float.
float float_below(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) == 0) return std::bit_cast<float>(0x80000001u);
  return std::bit_cast<float>(bits & 0x80000000u ? bits + 1 : bits - 1);
}

// Uniform values in [low, high), or `low` if that is empty.
void uniform_values(float low, float high, const Words& words, float out[4][kBlocks]) {
  const double start = low, width = low < high ? static_cast<double>(high) - start : 0;
  const float last = low < high ? float_below(high) : low;  // rounding to float may reach `high`
  for (std::uint32_t j = 0; j < 4; ++j) {
    for (std::uint32_t i = 0; i < kBlocks; ++i) {
      const float value =
          static_cast<float>(start + width * ((half_above(words.word[j][i]) - 0.5) * 0x1p-32));
      out[j][i] = value < last ? value : last;
    }
  }
}

void normal_values(float mean, float deviation, const Words& words, float out[4][kBlocks]) {
  double z[4][kBlocks];
  normal_pairs(words.word[0], words.word[1], z[0], z[1]);
  normal_pairs(words.word[2], words.word[3], z[2], z[3]);
  const double a = mean, b = deviation;
  for (std::uint32_t j = 0; j < 4; ++j) {
    for (std::uint32_t i = 0; i < kBlocks; ++i) out[j][i] = static_cast<float>(a + b * z[j][i]);
  }
}

// The values of columns [0, 4 * kBlocks) of a group: column 4 b + j comes from word j of block b.
void group_values(const RowInit& init, const Words& words, float* out) {
  float by_word[4][kBlocks];
  if (init.kind == InitKind::kUniform) {
    uniform_values(init.a, init.b, words, by_word);
  } else {
    normal_values(init.a, init.b, words, by_word);
  }
  for (std::uint32_t i = 0; i < kBlocks; ++i) {
    for (std::uint32_t j = 0; j < 4; ++j) out[4 * i + j] = by_word[j][i];
  }
}

// Writes `n` weights from `column` on.
void store_weights(WeightType dtype, const float* values, std::uint32_t n, std::byte* weights,
                   std::uint32_t column) {
  std::byte* out = weights + weight_size(dtype) * column;
  if (dtype == WeightType::kFloat32) {
    std::memcpy(out, values, 4 * std::size_t{n});
    return;
  }
  for (std::uint32_t i = 0; i < n; ++i) {
    const std::uint16_t bits =
        dtype == WeightType::kFloat16 ? round_to_float16(values[i]) : round_to_bfloat16(values[i]);
    std::memcpy(out + 2 * std::size_t{i}, &bits, 2);
  }
}

// Never inlined: its arithmetic must stay inside the FloatMode of its caller.
[[gnu::noinline]] void fill_weights(const RowInit& init, const RecordLayout& layout, std::uint64_t row,
                                    std::byte* weights) {
  constexpr std::uint32_t kGroup = 4 * kBlocks;
  const bool zero = init.padding_row >= 0 && static_cast<std::uint64_t>(init.padding_row) == row;
  const bool constant = zero || init.kind == InitKind::kConstant;
  float values[kGroup];
  std::fill_n(values, kGroup, zero ? 0.0f : init.a);
  for (std::uint32_t group = 0; group < layout.dim; group += kGroup) {
    if (!constant) {
      Words words;
      philox_lanes(init.key, row, group / 4, words.word[0]);
      group_values(init, words, values);
    }
    store_weights(layout.dtype, values, std::min(layout.dim - group, kGroup), weights, group);
  }
}

}  // namespace

void Philox::operator()(std::uint64_t counter_low, std::uint64_t counter_high, std::uint32_t out[4]) const {
  std::uint32_t c0 = static_cast<std::uint32_t>(counter_low),
                c1 = static_cast<std::uint32_t>(counter_low >> 32);
  std::uint32_t c2 = static_cast<std::uint32_t>(counter_high),
                c3 = static_cast<std::uint32_t>(counter_high >> 32);
  std::uint32_t k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const std::uint64_t p0 = std::uint64_t{kPhiloxMultiplier0} * c0;
    const std::uint64_t p1 = std::uint64_t{kPhiloxMultiplier1} * c2;
    c0 = static_cast<std::uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<std::uint32_t>(p1);
    c2 = static_cast<std::uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<std::uint32_t>(p0);
    k0 += kPhiloxWeyl0;
    k1 += kPhiloxWeyl1;
  }
  out[0] = c0;
  out[1] = c1;
  out[2] = c2;
  out[3] = c3;
}

void RowInit::fill(const RecordLayout& layout, std::uint64_t row, std::byte* record) const {
  const FloatMode mode;
  const std::size_t weight_bytes = weight_size(layout.dtype) * layout.dim;
  fill_weights(*this, layout, row, record);
  std::memset(record + weight_bytes, 0, layout.state_offset() - weight_bytes);
  std::byte* state = record + layout.state_offset();
  for (std::uint32_t i = 0; i < layout.state_floats; ++i)
    std::memcpy(state + 4 * std::size_t{i}, &initial_state, 4);
}

void rounding_words(std::uint64_t key, std::uint64_t update_count, std::uint64_t row, std::uint32_t dim,
                    std::uint32_t* out) {
  std::uint32_t words[4 * kBlocks];
  for (std::uint32_t group = 0; group < dim; group += 4 * kBlocks) {
    philox_lanes(key, row, kRoundingDomain | (update_count << kRoundingBlockBits) | (group / 4), words);
    std::copy_n(words, std::min(dim - group, 4 * kBlocks), out + group);
  }
}

}  // namespace mtrains
