#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <vector>

#include "check.h"
#include "mtrains/row_init.h"

using namespace mtrains;

namespace {

std::vector<float> rows_of(const RowInit& init, std::uint32_t dim, std::uint64_t num_rows) {
  std::vector<float> out(dim * num_rows);
  for (std::uint64_t row = 0; row < num_rows; ++row) {
    init.fill({WeightType::kFloat32, dim, 0}, row, reinterpret_cast<std::byte*>(out.data() + row * dim));
  }
  return out;
}

// Moments of (value - shift) / scale.
struct Moments {
  double mean = 0, variance = 0, skewness = 0, kurtosis = 0;
};
Moments moments(const std::vector<float>& values, double shift, double scale) {
  double sum[4] = {};
  for (float value : values) {
    const double z = (value - shift) / scale;
    sum[0] += z, sum[1] += z * z, sum[2] += z * z * z, sum[3] += z * z * z * z;
  }
  const double n = static_cast<double>(values.size());
  return {sum[0] / n, sum[1] / n, sum[2] / n, sum[3] / n};
}

// The two normals of a pair of words, in long double and with libm: what fill() approximates.
void exact_pair(std::uint32_t radius, std::uint32_t angle, long double out[2]) {
  const long double length = std::sqrt(-2 * std::log((radius + 0.5L) * 0x1p-32L));
  const long double turn = (angle & 0x3fffffffu) * 0x1p-30L + 0x1p-31L - 0.5L + (angle >> 30);
  out[0] = length * std::cos(turn * 1.57079632679489661923L);
  out[1] = length * std::sin(turn * 1.57079632679489661923L);
}

}  // namespace

// Source: the known-answer file of Random123, philox 4x32 with 10 rounds.
TEST(philox_known_answers) {
  const struct {
    std::uint64_t low, high, key;
    std::uint32_t out[4];
  } answers[] = {
      {0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
      {~0ull, ~0ull, ~0ull, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
      {0x85a308d3243f6a88,
       0x0370734413198a2e,
       0x299f31d0a4093822,
       {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
  };
  for (const auto& answer : answers) {
    std::uint32_t out[4];
    Philox{answer.key}(answer.low, answer.high, out);
    for (int i = 0; i < 4; ++i) CHECK_EQ(out[i], answer.out[i]);
  }
}

TEST(normal_equals_its_formula) {
  const RowInit init{InitKind::kNormal, 0, 1, 77};
  double worst = 0;
  for (std::uint64_t row = 0; row < 5000; ++row) {
    float values[40];
    init.fill({WeightType::kFloat32, 40, 0}, row, reinterpret_cast<std::byte*>(values));
    for (std::uint32_t d = 0; d < 40; d += 2) {
      std::uint32_t words[4];
      Philox{77}(row, d / 4, words);
      long double exact[2];
      exact_pair(words[d % 4], words[d % 4 + 1], exact);
      for (int i = 0; i < 2; ++i) {
        const double ulp = std::nextafter(std::fabs(values[d + i]), INFINITY) - std::fabs(values[d + i]);
        worst = std::max(worst, static_cast<double>(std::fabs(values[d + i] - exact[i])) / ulp);
      }
    }
  }
  CHECK(worst < 0.501);  // the nearest float32, but for double's own error near a tie
}

TEST(normal_has_the_moments_and_the_tails) {
  const std::vector<float> values = rows_of({InitKind::kNormal, 2, 0.5, 5}, 64, 60000);
  const double n = static_cast<double>(values.size());
  const Moments seen = moments(values, 2, 0.5);
  CHECK(std::fabs(seen.mean) < 5 / std::sqrt(n));
  CHECK(std::fabs(seen.variance - 1) < 5 * std::sqrt(2 / n));
  CHECK(std::fabs(seen.skewness) < 5 * std::sqrt(15 / n));
  CHECK(std::fabs(seen.kurtosis - 3) < 5 * std::sqrt(96 / n));
  for (double limit : {1.0, 2.0, 3.0, 4.0, 4.5}) {
    const auto beyond = std::count_if(values.begin(), values.end(),
                                      [&](float value) { return std::fabs(value - 2) > limit * 0.5; });
    const double expected = n * std::erfc(limit / std::sqrt(2));
    CHECK(std::fabs(static_cast<double>(beyond) - expected) < 5 * std::sqrt(expected) + 1);
  }
  for (float value : values) CHECK(std::fabs(value - 2) < 6.77f * 0.5f);
}

// Columns of a row and rows of a column are not correlated.
TEST(normal_columns_are_independent) {
  const std::vector<float> values = rows_of({InitKind::kNormal, 0, 1, 6}, 16, 50000);
  for (std::size_t lag : {1u, 2u, 3u, 16u, 17u}) {
    double sum = 0, sum_of_squares = 0;
    for (std::size_t i = lag; i < values.size(); ++i) {
      const double a = values[i], b = values[i - lag];
      sum += a * b, sum_of_squares += (a * a - 1) * (b * b - 1);
    }
    const double n = static_cast<double>(values.size());
    CHECK(std::fabs(sum / n) < 5 / std::sqrt(n));
    CHECK(std::fabs(sum_of_squares / n) < 5 * 2 / std::sqrt(n));
  }
}

TEST(uniform_fills_its_interval) {
  const std::vector<float> values = rows_of({InitKind::kUniform, -1, 3, 8}, 7, 100000);
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  CHECK(*low >= -1 && *low < -0.9999f);
  CHECK(*high < 3 && *high > 2.9999f);
  const double n = static_cast<double>(values.size());
  const Moments seen = moments(values, 1, 4 / std::sqrt(12));
  CHECK(std::fabs(seen.mean) < 5 / std::sqrt(n));
  CHECK(std::fabs(seen.variance - 1) < 5 * std::sqrt(0.8 / n));
}

// Rounding to float32 must not reach the open end, however narrow the interval is.
TEST(uniform_stays_below_its_end) {
  const float next = std::nextafter(1.0f, 2.0f);
  for (float value : rows_of({InitKind::kUniform, 1, next, 8}, 8, 1000)) CHECK_EQ(value, 1.0f);
  for (float value : rows_of({InitKind::kUniform, -1, 0, 8}, 8, 1000)) CHECK(value < 0);
  for (float value : rows_of({InitKind::kUniform, 2, 2, 8}, 8, 10)) CHECK_EQ(value, 2.0f);
}

TEST(a_row_depends_on_key_row_and_column_alone) {
  const RowInit init{InitKind::kNormal, 0, 1, 9};
  float wide[130], narrow[3], other_key[3], other_row[3];
  const auto fill = [](const RowInit& init, std::uint32_t dim, std::uint64_t row, float* out) {
    init.fill({WeightType::kFloat32, dim, 0}, row, reinterpret_cast<std::byte*>(out));
  };
  const std::uint64_t far_row = (std::uint64_t{1} << 45) + 12345;
  fill(init, 130, far_row, wide);
  fill(init, 3, far_row, narrow);
  fill({InitKind::kNormal, 0, 1, 10}, 3, far_row, other_key);
  fill(init, 3, far_row - (std::uint64_t{1} << 45), other_row);
  for (int d = 0; d < 3; ++d) {
    CHECK_EQ(wide[d], narrow[d]);
    CHECK(wide[d] != other_key[d]);
    CHECK(wide[d] != other_row[d]);
  }
}

TEST(records_are_filled_whole) {
  for (WeightType dtype : {WeightType::kFloat32, WeightType::kFloat16, WeightType::kBFloat16}) {
    const RecordLayout layout{dtype, 5, 2};
    RowInit init{InitKind::kConstant, 1.5f};
    init.initial_state = 0.25f;
    init.padding_row = 3;
    for (std::uint64_t row : {2u, 3u}) {
      std::vector<std::byte> record(layout.stride(), std::byte{0xee});
      init.fill(layout, row, record.data());
      for (std::size_t d = 0; d < 5; ++d) {
        std::uint32_t bits = 0;
        std::memcpy(&bits, record.data() + weight_size(dtype) * d, weight_size(dtype));
        const std::uint32_t one_and_a_half = dtype == WeightType::kFloat32   ? 0x3fc00000u
                                             : dtype == WeightType::kFloat16 ? 0x3e00u
                                                                             : 0x3fc0u;
        CHECK_EQ(bits, row == 3 ? 0u : one_and_a_half);
      }
      for (std::size_t i = weight_size(dtype) * 5; i < layout.state_offset(); ++i)
        CHECK(record[i] == std::byte{0});
      float state[2];
      std::memcpy(state, record.data() + layout.state_offset(), 8);
      CHECK(state[0] == 0.25f && state[1] == 0.25f);
    }
  }
}

TEST(rounding_words_differ_by_everything) {
  std::set<std::uint32_t> seen;
  std::size_t drawn = 0;
  const auto draw = [&](std::uint64_t key, std::uint64_t count, std::uint64_t row, std::uint32_t dim) {
    std::vector<std::uint32_t> words(dim);
    rounding_words(key, count, row, dim, words.data());
    seen.insert(words.begin(), words.end());
    drawn += dim;
    return words;
  };
  const std::vector<std::uint32_t> whole = draw(1, 2, 3, 300);
  draw(2, 2, 3, 300);
  draw(1, 3, 3, 300);
  draw(1, 2, 4, 300);
  CHECK(drawn - seen.size() <= 2);  // 1,200 of 2^32: a collision has a chance of 1 in 6,000
  for (std::uint32_t dim : {1u, 15u, 16u, 17u, 64u, 65u}) {
    const std::vector<std::uint32_t> part = draw(1, 2, 3, dim);
    CHECK(std::equal(part.begin(), part.end(), whole.begin()));
  }
  for (std::uint32_t d = 0; d < 300; ++d) {
    std::uint32_t block[4], initial[4];
    Philox{1}(3, std::uint64_t{1} << 63 | std::uint64_t{2} << 25 | (d / 64 * 16 + d % 16), block);
    CHECK_EQ(whole[d], block[d / 16 % 4]);
    Philox{1}(3, d, initial);
    CHECK(seen.count(initial[0]) == 0);
  }
}

TEST_MAIN()
