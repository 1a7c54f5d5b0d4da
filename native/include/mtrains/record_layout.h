// The bytes of one row: weights, padded to 4 bytes, followed by float32 optimizer state.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mtrains {

enum class WeightType : std::uint8_t { kFloat32 = 0, kFloat16 = 1, kBFloat16 = 2 };

inline std::size_t weight_size(WeightType type) { return type == WeightType::kFloat32 ? 4 : 2; }

// One record moves as one piece through every tier.
struct RecordLayout {
  WeightType dtype = WeightType::kFloat32;
  std::uint32_t dim = 0;           // embedding_dim, >= 1
  std::uint32_t state_floats = 0;  // float32 values of optimizer state: 0, 1, D, D + 1 or 2D

  std::size_t state_offset() const { return (weight_size(dtype) * dim + 3) / 4 * 4; }
  std::size_t stride() const { return state_offset() + 4 * std::size_t{state_floats}; }

  bool operator==(const RecordLayout&) const = default;
};

}  // namespace mtrains
