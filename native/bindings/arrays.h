// Arrays between Python and the core: taken as they are or refused, given with their owner.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace mtrains {

namespace nb = nanobind;

template <typename T, typename... Shape>
using ArrayIn = nb::ndarray<const T, nb::c_contig, nb::device::cpu, Shape...>;
template <typename T, typename... Shape>
using ArrayOut = nb::ndarray<T, nb::c_contig, nb::device::cpu, Shape...>;
template <typename T, typename... Shape>
using NumpyArray = nb::ndarray<nb::numpy, T, Shape...>;

// A numpy array that owns `values`.
template <typename T>
NumpyArray<T> own(std::vector<T>&& values, std::initializer_list<std::size_t> shape) {
  auto* kept = new std::vector<T>(std::move(values));
  const nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return NumpyArray<T>(kept->data(), shape, owner);
}
template <typename T>
NumpyArray<T> own(std::vector<T>&& values) {
  const std::size_t size = values.size();
  return own(std::move(values), {size});
}

template <typename T>
T* pointer(std::uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

}  // namespace mtrains
