// Arithmetic on gradients summed by row, outside of a pass: scale, merge, clamp, norm; and float64 to float32
// and back. For the callers whose own arithmetic would follow the floating-point mode of their thread.
//
// Bits: every operation is one correctly rounded float32 operation in the core's floating-point mode, one
// element after another; factors and limits come in float64 and are rounded once. NaN and infinity propagate.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace mtrains {

// out[i] = factor * values[i]. `out` may be `values`.
void scale_values(const float* values, std::size_t size, double factor, float* out);

// out[i] = values[i] limited to [low, high], NaN as it is. REQUIRES: low <= high.
void clamp_values(const float* values, std::size_t size, double low, double high, float* out);

// The `order`-norm of all values, order >= 0 (0: how many are not zero; infinity: the largest size), NaN if
// one is NaN and order > 0. Computed in float64 with 16 lanes and one fixed tree.
double norm_of_values(const float* values, std::size_t size, double order);

void narrow_values(const double* values, std::size_t size, float* out);
void widen_values(const float* values, std::size_t size, double* out);

// Gradients of some rows, borrowed: rows strictly ascending, sums[i * dim ..] that of rows[i], times `scale`.
struct RowSumsView {
  const std::int64_t* rows = nullptr;
  std::size_t num_rows = 0;
  const float* sums = nullptr;
  double scale = 1.0;
};

struct RowSums {
  std::vector<std::int64_t> rows;  // strictly ascending
  std::vector<float> sums;         // [rows, dim]
};

// first.scale * first.sums + second.scale * second.sums of the union of rows; a row that `first` lacks starts
// from 0.
RowSums merge_sums(const RowSumsView& first, const RowSumsView& second, std::size_t dim);

}  // namespace mtrains
