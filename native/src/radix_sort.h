// A stable least-significant-digit radix sort of keys that carry a payload.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <utility>
#include <vector>

namespace mtrains {

// How to cut keys of `bits` bits into digits: few passes, and a histogram that stays in the L1 cache.
struct RadixDigits {
  unsigned passes = 1;
  unsigned digit_bits = 1;

  // A pass costs one move an element and about a quarter of that a histogram bin.
  static RadixDigits choose(unsigned bits, std::uint64_t num_elements) {
    constexpr unsigned kMaxDigitBits = 11;
    bits = std::max(bits, 1u);
    RadixDigits best;
    std::uint64_t best_cost = ~std::uint64_t{0};
    for (unsigned passes = (bits + kMaxDigitBits - 1) / kMaxDigitBits; passes <= 8; ++passes) {
      const unsigned digit_bits = (bits + passes - 1) / passes;
      const std::uint64_t cost = passes * (4 * num_elements + (std::uint64_t{1} << digit_bits));
      if (cost < best_cost) {
        best_cost = cost;
        best = {passes, digit_bits};
      }
    }
    return best;
  }

  std::uint32_t bins() const { return 1u << digit_bits; }
  std::uint32_t digit(std::uint64_t key, unsigned pass) const {
    return static_cast<std::uint32_t>(key >> (pass * digit_bits)) & (bins() - 1);
  }
};

// Bins of all passes, filled by the caller while it writes the elements.
class RadixHistogram {
 public:
  void reset(RadixDigits digits) {
    digits_ = digits;
    counts_.assign(std::size_t{digits.passes} << digits.digit_bits, 0);
  }
  void add(std::uint64_t key) {
    for (unsigned pass = 0; pass < digits_.passes; ++pass) ++bins(pass)[digits_.digit(key, pass)];
  }
  std::uint32_t* bins(unsigned pass) { return counts_.data() + (std::size_t{pass} << digits_.digit_bits); }
  RadixDigits digits() const { return digits_; }

 private:
  RadixDigits digits_;
  std::vector<std::uint32_t> counts_;
};

// Sorts elements[0, n) by key_of(element), with `other` as room for n more. Returns whichever of the two
// holds the result. REQUIRES: `histogram` holds the keys of exactly these elements; it is consumed.
template <typename Element, typename KeyOf>
Element* radix_sort(Element* elements, Element* other, std::uint64_t n, RadixHistogram& histogram,
                    KeyOf key_of) {
  const RadixDigits digits = histogram.digits();
  for (unsigned pass = 0; pass < digits.passes; ++pass) {
    std::uint32_t* next = histogram.bins(pass);
    std::uint32_t sum = 0;
    for (std::uint32_t bin = 0; bin < digits.bins(); ++bin) sum += std::exchange(next[bin], sum);
    for (std::uint64_t i = 0; i < n; ++i) {
      other[next[digits.digit(key_of(elements[i]), pass)]++] = elements[i];
    }
    std::swap(elements, other);
  }
  return elements;
}

}  // namespace mtrains
