#include "mtrains/row_sums.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "float_mode.h"

namespace mtrains {
namespace {

constexpr std::size_t kLanes = 16;

// What computes is never inlined and returns through memory: its arithmetic, conversions of scalars too, must
// stay inside the FloatMode of its caller.

[[gnu::noinline]] void scale(const float* values, std::size_t size, double factor, float* out) {
  const float rounded = static_cast<float>(factor);
  for (std::size_t i = 0; i < size; ++i) out[i] = values[i] * rounded;
}

[[gnu::noinline]] void clamp(const float* values, std::size_t size, double low, double high, float* out) {
  const float least = static_cast<float>(low), most = static_cast<float>(high);
  for (std::size_t i = 0; i < size; ++i) {
    const float raised = values[i] < least ? least : values[i];
    out[i] = raised > most ? most : raised;
  }
}

[[gnu::noinline]] void narrow(const double* values, std::size_t size, float* out) {
  for (std::size_t i = 0; i < size; ++i) out[i] = static_cast<float>(values[i]);
}

[[gnu::noinline]] void widen(const float* values, std::size_t size, double* out) {
  for (std::size_t i = 0; i < size; ++i) out[i] = static_cast<double>(values[i]);
}

// Combines term(value) of all values; lane i takes every 16th, then lanes are folded in halves.
template <typename Term, typename Combine>
double reduce(const float* values, std::size_t size, Term term, Combine combine) {
  double lanes[kLanes] = {};
  const std::size_t whole = size / kLanes * kLanes;
  for (std::size_t i = 0; i < whole; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane)
      lanes[lane] = combine(lanes[lane], term(static_cast<double>(values[i + lane])));
  }
  for (std::size_t i = whole; i < size; ++i)
    lanes[i - whole] = combine(lanes[i - whole], term(static_cast<double>(values[i])));
  for (std::size_t half = kLanes / 2; half > 0; half /= 2) {
    for (std::size_t lane = 0; lane < half; ++lane) lanes[lane] = combine(lanes[lane], lanes[lane + half]);
  }
  return lanes[0];
}

[[gnu::noinline]] void norm(const float* values, std::size_t size, double order, double* result) {
  const auto sum = [](double a, double b) { return a + b; };
  if (order == 0.0) {
    *result = reduce(values, size, [](double x) { return x != 0.0 ? 1.0 : 0.0; }, sum);
  } else if (order == 1.0) {
    *result = reduce(values, size, [](double x) { return std::fabs(x); }, sum);
  } else if (order == 2.0) {
    *result = std::sqrt(reduce(values, size, [](double x) { return x * x; }, sum));
  } else if (std::isinf(order)) {
    const auto larger = [](double a, double b) { return b > a || b != b ? b : a; };  // NaN stays
    *result = reduce(values, size, [](double x) { return std::fabs(x); }, larger);
  } else {
    const auto power = [order](double x) { return std::pow(std::fabs(x), order); };
    *result = std::pow(reduce(values, size, power, sum), 1.0 / order);
  }
}

// sums of `rows`, which has the rows of both: first, then second added.
[[gnu::noinline]] void merge(const RowSumsView& first, const RowSumsView& second, std::size_t dim,
                             RowSums& merged) {
  const float first_scale = static_cast<float>(first.scale), second_scale = static_cast<float>(second.scale);
  std::size_t a = 0, b = 0;
  float* out = merged.sums.data();
  for (const std::int64_t row : merged.rows) {
    if (a < first.num_rows && first.rows[a] == row) {
      for (std::size_t d = 0; d < dim; ++d) out[d] = first.sums[a * dim + d] * first_scale;
      ++a;
    }
    if (b < second.num_rows && second.rows[b] == row) {
      for (std::size_t d = 0; d < dim; ++d) out[d] = out[d] + second.sums[b * dim + d] * second_scale;
      ++b;
    }
    out += dim;
  }
}

}  // namespace

void scale_values(const float* values, std::size_t size, double factor, float* out) {
  const FloatMode mode;
  scale(values, size, factor, out);
}

void clamp_values(const float* values, std::size_t size, double low, double high, float* out) {
  const FloatMode mode;
  clamp(values, size, low, high, out);
}

double norm_of_values(const float* values, std::size_t size, double order) {
  double result = 0.0;
  const FloatMode mode;
  norm(values, size, order, &result);
  return result;
}

void narrow_values(const double* values, std::size_t size, float* out) {
  const FloatMode mode;
  narrow(values, size, out);
}

void widen_values(const float* values, std::size_t size, double* out) {
  const FloatMode mode;
  widen(values, size, out);
}

RowSums merge_sums(const RowSumsView& first, const RowSumsView& second, std::size_t dim) {
  RowSums merged;
  merged.rows.reserve(first.num_rows + second.num_rows);
  std::set_union(first.rows, first.rows + first.num_rows, second.rows, second.rows + second.num_rows,
                 std::back_inserter(merged.rows));
  merged.sums.resize(merged.rows.size() * dim);
  const FloatMode mode;
  merge(first, second, dim, merged);
  return merged;
}

}  // namespace mtrains
