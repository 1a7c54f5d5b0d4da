#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "check.h"
#include "mtrains/row_sums.h"

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

using namespace mtrains;

namespace {

constexpr float kTiny = 3e-39f;  // subnormal
constexpr float kInf = std::numeric_limits<float>::infinity();
const float kNan = std::numeric_limits<float>::quiet_NaN();

std::uint32_t bits(float value) {
  std::uint32_t word;
  std::memcpy(&word, &value, 4);
  return word;
}

// Runs `function` with subnormals flushed, as after torch.set_flush_denormal(True).
template <typename Function>
void with_flush(Function function) {
#if defined(__SSE__)
  const unsigned saved = _mm_getcsr();
  _mm_setcsr(saved | 0x8040);
  function();
  const unsigned after = _mm_getcsr();
  _mm_setcsr(saved);
  CHECK_EQ(after & 0x8040, 0x8040u);  // the caller's mode is given back
#else
  function();
#endif
}

}  // namespace

TEST(scale_keeps_subnormals_of_values_and_factor) {
  const std::array<float, 4> values = {kTiny, -kTiny, 1.0f, kInf};
  std::array<float, 4> halves{}, tiny{};
  with_flush([&] {
    scale_values(values.data(), values.size(), 0.5, halves.data());
    scale_values(values.data(), values.size(), double{kTiny}, tiny.data());
  });
  CHECK_EQ(bits(halves[0]), bits(kTiny * 0.5f));
  CHECK_EQ(bits(halves[1]), bits(-kTiny * 0.5f));
  CHECK_EQ(bits(tiny[2]), bits(kTiny));
  CHECK(std::isinf(halves[3]) && std::isinf(tiny[3]));
}

TEST(clamp_keeps_nan_and_subnormals) {
  const std::array<float, 6> values = {kTiny, -kTiny, 5.0f, -kInf, kNan, -0.0f};
  std::array<float, 6> out{};
  with_flush([&] { clamp_values(values.data(), values.size(), -double{kTiny} / 2, 1.0, out.data()); });
  CHECK_EQ(bits(out[0]), bits(kTiny));
  CHECK_EQ(bits(out[1]), bits(-kTiny / 2));
  CHECK_EQ(out[2], 1.0f);
  CHECK_EQ(bits(out[3]), bits(-kTiny / 2));
  CHECK(std::isnan(out[4]));
  CHECK_EQ(bits(out[5]), bits(-0.0f));
}

TEST(merge_scales_each_side_and_adds) {
  const std::array<std::int64_t, 3> first_rows = {1, 4, 9}, second_rows = {0, 4, 10};
  const std::array<float, 6> first = {1, 2, kTiny, 4, kInf, 6}, second = {-0.0f, 8, kTiny, 10, kNan, 12};
  RowSums merged;
  with_flush([&] {
    merged =
        merge_sums({first_rows.data(), 3, first.data(), 0.5}, {second_rows.data(), 3, second.data(), 2.0}, 2);
  });
  CHECK(merged.rows == std::vector<std::int64_t>({0, 1, 4, 9, 10}));
  CHECK_EQ(bits(merged.sums[0]), bits(0.0f));  // from 0 on
  CHECK_EQ(merged.sums[1], 16.0f);
  CHECK_EQ(merged.sums[2], 0.5f);
  CHECK_EQ(bits(merged.sums[4]), bits(kTiny * 0.5f + kTiny * 2.0f));
  CHECK_EQ(merged.sums[5], 22.0f);
  CHECK(std::isinf(merged.sums[6]));
  CHECK(std::isnan(merged.sums[8]));
}

TEST(merge_of_nothing) {
  const std::array<std::int64_t, 1> rows = {7};
  const std::array<float, 1> sums = {3};
  const RowSumsView none, one{rows.data(), 1, sums.data(), 2.0};
  CHECK(merge_sums(none, none, 1).rows.empty());
  CHECK_EQ(merge_sums(none, one, 1).sums.at(0), 6.0f);
  CHECK_EQ(merge_sums(one, none, 1).sums.at(0), 6.0f);
}

TEST(norms) {
  std::vector<float> values(37, 2.0f);
  values[36] = -3.0f;
  values[5] = 0.0f;
  const auto norm = [&](double order) { return norm_of_values(values.data(), values.size(), order); };
  CHECK_EQ(norm(0), 36.0);
  CHECK_EQ(norm(1), 73.0);
  CHECK_EQ(norm(2), std::sqrt(35 * 4.0 + 9.0));
  CHECK(std::fabs(norm(3) - std::cbrt(35 * 8.0 + 27.0)) < 1e-12);
  CHECK_EQ(norm(INFINITY), 3.0);
  values[20] = kNan;
  CHECK_EQ(norm(0), 36.0);
  for (const double order : {1.0, 2.0, 3.0, double{INFINITY}}) CHECK(std::isnan(norm(order)));
  CHECK_EQ(norm_of_values(nullptr, 0, 2), 0.0);
}

TEST(norms_count_subnormals) {
  const std::array<float, 2> values = {kTiny, 0.0f};
  double count = 0, largest = 0;
  with_flush([&] {
    count = norm_of_values(values.data(), 2, 0);
    largest = norm_of_values(values.data(), 2, INFINITY);
  });
  CHECK_EQ(count, 1.0);
  CHECK_EQ(largest, double{kTiny});
}

TEST(narrow_and_widen_keep_subnormals) {
  const double value = kTiny;
  float narrowed = 0;
  double widened = 0;
  with_flush([&] {
    narrow_values(&value, 1, &narrowed);
    widen_values(&kTiny, 1, &widened);
  });
  CHECK_EQ(bits(narrowed), bits(kTiny));
  CHECK_EQ(widened, value);
}

TEST_MAIN()
