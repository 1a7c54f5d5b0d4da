// Arithmetic on summed gradients, of numpy arrays.
#include "mtrains/row_sums.h"

#include <stdexcept>

#include "arrays.h"

using namespace nanobind::literals;

namespace mtrains {
namespace {

using Rows = ArrayIn<std::int64_t, nb::ndim<1>>;
using Sums = ArrayIn<float, nb::ndim<2>>;

template <typename T, typename Compute>
nb::object computed(std::size_t size, std::initializer_list<std::size_t> shape, Compute compute) {
  std::vector<T> out;
  {
    const nb::gil_scoped_release release;
    out.resize(size);
    compute(out.data());
  }
  return nb::cast(own(std::move(out), shape));
}

nb::object scale(const Sums& sums, double factor) {
  return computed<float>(sums.size(), {sums.shape(0), sums.shape(1)},
                         [&](float* out) { scale_values(sums.data(), sums.size(), factor, out); });
}

nb::object clamp(const Sums& sums, double low, double high) {
  return computed<float>(sums.size(), {sums.shape(0), sums.shape(1)},
                         [&](float* out) { clamp_values(sums.data(), sums.size(), low, high, out); });
}

double norm(const Sums& sums, double order) {
  const nb::gil_scoped_release release;
  return norm_of_values(sums.data(), sums.size(), order);
}

nb::object narrow(const ArrayIn<double, nb::ndim<1>>& values) {
  return computed<float>(values.size(), {values.size()},
                         [&](float* out) { narrow_values(values.data(), values.size(), out); });
}

nb::object widen(const ArrayIn<float, nb::ndim<1>>& values) {
  return computed<double>(values.size(), {values.size()},
                          [&](double* out) { widen_values(values.data(), values.size(), out); });
}

nb::tuple merge(const Rows& first_rows, const Sums& first_sums, double first_scale, const Rows& second_rows,
                const Sums& second_sums, double second_scale) {
  const std::size_t dim = first_sums.shape(1);
  if (first_rows.size() != first_sums.shape(0) || second_rows.size() != second_sums.shape(0) ||
      second_sums.shape(1) != dim) {
    throw std::invalid_argument("rows and sums to merge differ in shape");
  }
  RowSums merged;
  {
    const nb::gil_scoped_release release;
    merged = merge_sums({first_rows.data(), first_rows.size(), first_sums.data(), first_scale},
                        {second_rows.data(), second_rows.size(), second_sums.data(), second_scale}, dim);
  }
  const std::size_t num_rows = merged.rows.size();
  return nb::make_tuple(own(std::move(merged.rows)), own(std::move(merged.sums), {num_rows, dim}));
}

}  // namespace

void bind_row_sums(nb::module_& m) {
  m.def("scale_sums", &scale, nb::arg("sums").noconvert(), "scale"_a);
  m.def("clamp_sums", &clamp, nb::arg("sums").noconvert(), "low"_a, "high"_a);
  m.def("norm_of_sums", &norm, nb::arg("sums").noconvert(), "order"_a);
  m.def("merge_sums", &merge, nb::arg("first_rows").noconvert(), nb::arg("first_sums").noconvert(),
        "first_scale"_a, nb::arg("second_rows").noconvert(), nb::arg("second_sums").noconvert(),
        "second_scale"_a);
  m.def("narrow", &narrow, nb::arg("values").noconvert());
  m.def("widen", &widen, nb::arg("values").noconvert());
}

}  // namespace mtrains
