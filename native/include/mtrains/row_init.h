// The value of a row that was never touched: a function of (key, row, column) alone.
#pragma once

#include <cstddef>
#include <cstdint>

#include "mtrains/record_layout.h"

namespace mtrains {

// Philox4x32-10 (Salmon et al., SC 2011): counter -> four 32-bit words.
struct Philox {
  std::uint64_t key;
  void operator()(std::uint64_t counter_low, std::uint64_t counter_high, std::uint32_t out[4]) const;
};

enum class InitKind : std::uint8_t { kConstant = 0, kUniform = 1, kNormal = 2 };

// kConstant: a. kUniform: in [a, b). kNormal: mean a, standard deviation b, |value - a| bounded.
// Uses integer arithmetic, + - * / sqrt and polynomials of ours, never libm, so every machine agrees.
struct RowInit {
  InitKind kind = InitKind::kConstant;
  float a = 0, b = 0;
  std::uint64_t key = 0;          // of (seed, table name)
  std::int64_t padding_row = -1;  // this row is zeros
  float initial_state = 0;        // every float of the state
  // Writes the whole record (16-bit weights rounded to nearest even, padding bytes zero).
  void fill(const RecordLayout& layout, std::uint64_t row, std::byte* record) const;
};

// One uniformly distributed 32-bit word per (key, update_count, row, column) for stochastic rounding; the
// domain is separated from RowInit's. REQUIRES: update_count < 2^38, dim <= 2^27.
void rounding_words(std::uint64_t key, std::uint64_t update_count, std::uint64_t row, std::uint32_t dim,
                    std::uint32_t* out /* [dim] */);

}  // namespace mtrains
