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
  static constexpr unsigned kMaxDigitBits = 11;
  static constexpr unsigned kMaxPasses = 6;  // 66 bits

  unsigned passes = 1;
  unsigned digit_bits = 1;

  // A pass costs one move an element and about a quarter of that a histogram bin.
  static RadixDigits choose(unsigned bits, std::uint64_t num_elements) {
    bits = std::max(bits, 1u);
    RadixDigits best;
    std::uint64_t best_cost = ~std::uint64_t{0};
    for (unsigned passes = (bits + kMaxDigitBits - 1) / kMaxDigitBits; passes <= kMaxPasses; ++passes) {
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

// Calls function.template operator()<passes>(): loops over the passes are unrolled inside it.
template <typename Function>
auto with_passes(unsigned passes, const Function& function) {
  switch (passes) {
    case 1:
      return function.template operator()<1>();
    case 2:
      return function.template operator()<2>();
    case 3:
      return function.template operator()<3>();
    case 4:
      return function.template operator()<4>();
    case 5:
      return function.template operator()<5>();
    default:
      return function.template operator()<RadixDigits::kMaxPasses>();
  }
}

// Room for a sort, kept by each thread from sort to sort.
template <typename Element>
struct RadixScratch {
  std::vector<Element> elements, other;
  std::vector<std::uint32_t> bins;  // of all passes; the caller counts while it writes the elements

  static RadixScratch& of_thread(std::uint64_t n, RadixDigits digits) {
    static thread_local RadixScratch scratch;
    if (scratch.elements.size() < n) {
      scratch.elements.resize(n);
      scratch.other.resize(n);
    }
    scratch.bins.assign(std::size_t{digits.passes} << digits.digit_bits, 0);
    return scratch;
  }

  template <unsigned kPasses>
  static void count(std::uint32_t* bins, RadixDigits digits, std::uint64_t key) {
    for (unsigned pass = 0; pass < kPasses; ++pass) {
      ++bins[(std::size_t{pass} << digits.digit_bits) + digits.digit(key, pass)];
    }
  }

  // Sorts elements[0, n) by key_of(element) and returns where they are. REQUIRES: `bins` counts exactly these
  // elements; they are consumed.
  template <typename KeyOf>
  const Element* sort(std::uint64_t n, RadixDigits digits, KeyOf key_of) {
    Element* from = elements.data();
    Element* to = other.data();
    for (unsigned pass = 0; pass < digits.passes; ++pass) {
      std::uint32_t* next = bins.data() + (std::size_t{pass} << digits.digit_bits);
      std::uint32_t sum = 0;
      for (std::uint32_t bin = 0; bin < digits.bins(); ++bin) sum += std::exchange(next[bin], sum);
      for (std::uint64_t i = 0; i < n; ++i) {
        const Element element = from[i];
        to[next[digits.digit(key_of(element), pass)]++] = element;
      }
      std::swap(from, to);
    }
    return from;
  }
};

}  // namespace mtrains
