#include "mtrains/row_init.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "counters.h"
#include "float_mode.h"
#include "half.h"

namespace mtrains {
namespace {

constexpr double kLn2 = 0.693147180559945309417;
constexpr double kHalfPi = 1.57079632679489661923;

// -2 ln((word + 1/2) / 2^32), relative error below 1e-11.
//
// The argument is m * 2^e with m in [sqrt(1/2), sqrt(2)); ln m = 2 atanh((m - 1) / (m + 1)), whose series in
// s^2 <= 0.0295 is cut after s^14.
double minus_two_log(std::uint32_t word) {
  const double u = (static_cast<double>(word) + 0.5) * 0x1p-32;
  const std::uint64_t bits = std::bit_cast<std::uint64_t>(u);
  constexpr std::uint64_t kSqrtHalf = 0x3fe6a09e667f3bcdu;
  const std::int64_t exponent = static_cast<std::int64_t>(bits - kSqrtHalf) >> 52;
  const double m = std::bit_cast<double>(bits - (static_cast<std::uint64_t>(exponent) << 52));
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
  return -2 * (static_cast<double>(exponent) * kLn2 + 2 * s * series);
}

// Sine and cosine of |x| <= pi / 4: the Taylor series up to x^13 and x^14, error below 1e-13.
struct SineCosine {
  double sine, cosine;
};
SineCosine sine_cosine(double x) {
  const double q = x * x;
  double s = 1.0 / 6227020800;
  s = s * q - 1.0 / 39916800;
  s = s * q + 1.0 / 362880;
  s = s * q - 1.0 / 5040;
  s = s * q + 1.0 / 120;
  s = s * q - 1.0 / 6;
  double c = -1.0 / 87178291200;
  c = c * q + 1.0 / 479001600;
  c = c * q - 1.0 / 3628800;
  c = c * q + 1.0 / 40320;
  c = c * q - 1.0 / 720;
  c = c * q + 1.0 / 24;
  c = c * q - 1.0 / 2;
  return {x + x * q * s, 1 + q * c};
}

// Two independent standard normals by the method of Box and Muller, |z| <= sqrt(66 ln 2) < 6.77.
//
// The two high bits of `angle` name a quadrant, the other 30 an angle within it, taken from its middle.
void normal_pair(std::uint32_t radius, std::uint32_t angle, double out[2]) {
  const double length = std::sqrt(minus_two_log(radius));
  const double turn = (static_cast<double>(angle & 0x3fffffffu) + 0.5) * 0x1p-30 - 0.5;
  const SineCosine value = sine_cosine(turn * kHalfPi);
  const std::uint32_t quadrant = angle >> 30;
  const double x = quadrant & 1 ? value.sine : value.cosine;
  const double y = quadrant & 1 ? value.cosine : value.sine;
  out[0] = length * ((quadrant == 1 || quadrant == 2) ? -x : x);
  out[1] = length * ((quadrant & 2) ? -y : y);
}

// The largest float below `value`, which is finite and above the lowest float.
float float_below(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) == 0) return std::bit_cast<float>(0x80000001u);
  return std::bit_cast<float>(bits & 0x80000000u ? bits + 1 : bits - 1);
}

float uniform(float low, float high, std::uint32_t word) {
  const double width = static_cast<double>(high) - static_cast<double>(low);
  const float value = static_cast<float>(low + width * (static_cast<double>(word) * 0x1p-32));
  if (value < high || low >= high) return value;
  return float_below(high);  // the rounding to float reached `high`
}

void four_values(const RowInit& init, const std::uint32_t words[4], float out[4]) {
  if (init.kind == InitKind::kUniform) {
    for (int i = 0; i < 4; ++i) out[i] = uniform(init.a, init.b, words[i]);
    return;
  }
  double z[4];
  normal_pair(words[0], words[1], z);
  normal_pair(words[2], words[3], z + 2);
  for (int i = 0; i < 4; ++i) {
    out[i] = static_cast<float>(static_cast<double>(init.a) + static_cast<double>(init.b) * z[i]);
  }
}

void store_weight(WeightType dtype, float value, std::byte* weights, std::uint32_t column) {
  if (dtype == WeightType::kFloat32) {
    std::memcpy(weights + 4 * std::size_t{column}, &value, 4);
    return;
  }
  const std::uint16_t bits =
      dtype == WeightType::kFloat16 ? round_to_float16(value) : round_to_bfloat16(value);
  std::memcpy(weights + 2 * std::size_t{column}, &bits, 2);
}

// Never inlined: its arithmetic must stay inside the FloatMode of its caller.
[[gnu::noinline]] void fill_weights(const RowInit& init, const RecordLayout& layout, std::uint64_t row,
                                    std::byte* weights) {
  const bool zero = init.padding_row >= 0 && static_cast<std::uint64_t>(init.padding_row) == row;
  if (zero || init.kind == InitKind::kConstant) {
    const float value = zero ? 0.0f : init.a;
    for (std::uint32_t d = 0; d < layout.dim; ++d) store_weight(layout.dtype, value, weights, d);
    return;
  }
  const Philox philox{init.key};
  for (std::uint32_t d = 0; d < layout.dim; d += 4) {
    std::uint32_t words[4];
    float values[4];
    philox(row, d / 4, words);
    four_values(init, words, values);
    for (std::uint32_t i = 0; i < 4 && d + i < layout.dim; ++i) {
      store_weight(layout.dtype, values[i], weights, d + i);
    }
  }
}

}  // namespace

void Philox::operator()(std::uint64_t counter_low, std::uint64_t counter_high, std::uint32_t out[4]) const {
  std::uint32_t c0 = static_cast<std::uint32_t>(counter_low);
  std::uint32_t c1 = static_cast<std::uint32_t>(counter_low >> 32);
  std::uint32_t c2 = static_cast<std::uint32_t>(counter_high);
  std::uint32_t c3 = static_cast<std::uint32_t>(counter_high >> 32);
  std::uint32_t k0 = static_cast<std::uint32_t>(key);
  std::uint32_t k1 = static_cast<std::uint32_t>(key >> 32);
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
  const Philox philox{key};
  for (std::uint32_t group = 0; group < dim; group += 64) {
    for (std::uint32_t lane = 0; lane < 16 && group + lane < dim; ++lane) {
      const std::uint64_t block = group / 4 + lane;
      std::uint32_t words[4];
      philox(row, kRoundingDomain | (update_count << kRoundingBlockBits) | block, words);
      for (std::uint32_t i = 0; i < 4; ++i) {
        const std::uint64_t column = std::uint64_t{group} + 16 * i + lane;
        if (column < dim) out[column] = words[i];
      }
    }
  }
}

}  // namespace mtrains
