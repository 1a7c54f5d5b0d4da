#include "mtrains/batch_plan.h"

#include "radix_sort.h"

namespace mtrains {
namespace {

// How far ahead of a random access to prefetch, in rows.
constexpr std::uint64_t kPrefetchRows = 16;

// A row and the position that names it in one word, when both fit.
struct PackedOccurrence {
  struct Codec {
    unsigned position_bits;
    PackedOccurrence pack(std::uint64_t row, std::uint64_t position) const {
      return {row << position_bits | position};
    }
    std::uint64_t row(PackedOccurrence o) const { return o.word >> position_bits; }
    std::uint32_t position(PackedOccurrence o) const {
      return static_cast<std::uint32_t>(o.word & ((std::uint64_t{1} << position_bits) - 1));
    }
  };
  std::uint64_t word;
};

struct WideOccurrence {
  struct Codec {
    WideOccurrence pack(std::uint64_t row, std::uint64_t position) const {
      return {row, static_cast<std::uint32_t>(position)};
    }
    std::uint64_t row(const WideOccurrence& o) const { return o.row; }
    std::uint32_t position(const WideOccurrence& o) const { return o.position; }
  };
  std::uint64_t row;
  std::uint32_t position;
};

// Room for a sort, kept by each thread from plan to plan.
template <typename Element>
struct SortScratch {
  std::vector<Element> elements, other;
  RadixHistogram histogram;

  static SortScratch& of_thread(std::uint64_t n) {
    static thread_local SortScratch scratch;
    if (scratch.elements.size() < n) {
      scratch.elements.resize(n);
      scratch.other.resize(n);
    }
    return scratch;
  }
};

template <typename Index>
BadIndex first_bad_index(const Index* indices, std::uint64_t n, std::uint64_t num_rows) {
  std::uint64_t i = 0;
  while (i < n && static_cast<std::uint64_t>(static_cast<std::int64_t>(indices[i])) < num_rows) ++i;
  return {i, static_cast<std::int64_t>(indices[i])};
}

template <typename Element, typename Index>
std::optional<BadIndex> build_sorted(BatchPlan& plan, const Index* indices, std::uint64_t n,
                                     std::uint64_t num_rows, std::int64_t padding_row,
                                     typename Element::Codec codec, unsigned row_bits) {
  auto& scratch = SortScratch<Element>::of_thread(n);
  RadixHistogram& histogram = scratch.histogram;
  histogram.reset(RadixDigits::choose(row_bits, n));
  Element* elements = scratch.elements.data();
  std::uint64_t kept = 0;
  bool bad = false;
  for (std::uint64_t i = 0; i < n; ++i) {
    const std::int64_t index = indices[i];
    const std::uint64_t row = static_cast<std::uint64_t>(index);
    bad |= row >= num_rows;
    if (index == padding_row) continue;
    elements[kept++] = codec.pack(row, i);
    histogram.add(row);
  }
  if (bad) return first_bad_index(indices, n, num_rows);
  elements = radix_sort(elements, scratch.other.data(), kept, histogram,
                        [&](const Element& element) { return codec.row(element); });

  std::uint64_t num_unique = kept > 0;
  for (std::uint64_t i = 1; i < kept; ++i) num_unique += codec.row(elements[i]) != codec.row(elements[i - 1]);
  plan.rows.resize(num_unique);
  plan.csr.resize(num_unique + 1);
  plan.positions.resize(kept);
  std::uint64_t u = 0;
  for (std::uint64_t i = 0; i < kept; ++i) {
    plan.positions[i] = codec.position(elements[i]);
    if (i > 0 && codec.row(elements[i]) == codec.row(elements[i - 1])) continue;
    plan.rows[u] = codec.row(elements[i]);
    plan.csr[u++] = static_cast<std::uint32_t>(i);
  }
  plan.csr[u] = static_cast<std::uint32_t>(kept);
  return std::nullopt;
}

template <typename Index>
std::optional<BadIndex> build_plan(BatchPlan& plan, const Index* indices, std::uint64_t n,
                                   std::uint64_t num_rows, std::int64_t padding_row) {
  const unsigned row_bits = num_rows > 1 ? static_cast<unsigned>(std::bit_width(num_rows - 1)) : 1;
  const unsigned position_bits = n > 1 ? static_cast<unsigned>(std::bit_width(n - 1)) : 1;
  if (row_bits + position_bits <= 64) {
    return build_sorted<PackedOccurrence>(plan, indices, n, num_rows, padding_row, {position_bits}, row_bits);
  }
  return build_sorted<WideOccurrence>(plan, indices, n, num_rows, padding_row, {}, row_bits);
}

}  // namespace

std::optional<BadIndex> BatchPlan::build(const IndexSpan& indices, std::uint64_t num_rows,
                                         std::int64_t padding_row) {
  num_positions = indices.size;
  rows.clear();
  csr.assign(1, 0);
  positions.clear();
  bag_of_position.clear();
  slots.clear();
  slot_of_position.clear();
  std::optional<BadIndex> bad;
  if (indices.is_int64) {
    bad = build_plan(*this, static_cast<const std::int64_t*>(indices.data), indices.size, num_rows,
                     padding_row);
  } else {
    bad = build_plan(*this, static_cast<const std::int32_t*>(indices.data), indices.size, num_rows,
                     padding_row);
  }
  if (bad) num_positions = 0;
  return bad;
}

void BatchPlan::set_bags(const std::int64_t* offsets, std::uint64_t num_bags) {
  bool trivial = num_bags == num_positions;
  for (std::uint64_t b = 0; trivial && b < num_bags; ++b)
    trivial = offsets[b] == static_cast<std::int64_t>(b);
  bag_of_position.clear();
  if (trivial) return;
  bag_of_position.resize(num_positions);
  for (std::uint64_t b = 0; b < num_bags; ++b) {
    for (std::int64_t p = offsets[b]; p < offsets[b + 1]; ++p) {
      bag_of_position[static_cast<std::uint64_t>(p)] = static_cast<std::uint32_t>(b);
    }
  }
}

void BatchPlan::order_by_slot() {
  const std::uint64_t n = slots.size();
  std::uint32_t all = 0;
  bool ordered = true;
  for (std::uint64_t u = 0; u < n; ++u) {
    all |= slots[u];
    ordered &= u == 0 || slots[u - 1] <= slots[u];
  }
  if (ordered) return;

  const PackedOccurrence::Codec codec{32};  // "row" is the slot, "position" the unique row
  auto& scratch = SortScratch<PackedOccurrence>::of_thread(n);
  scratch.histogram.reset(RadixDigits::choose(static_cast<unsigned>(std::bit_width(all)), n));
  for (std::uint64_t u = 0; u < n; ++u) {
    scratch.elements[u] = codec.pack(slots[u], u);
    scratch.histogram.add(slots[u]);
  }
  const PackedOccurrence* sorted =
      radix_sort(scratch.elements.data(), scratch.other.data(), n, scratch.histogram,
                 [&](PackedOccurrence element) { return codec.row(element); });

  static thread_local std::vector<std::uint64_t> old_rows;
  static thread_local std::vector<std::uint32_t> old_csr, old_positions;
  old_rows.assign(rows.begin(), rows.end());
  old_csr.assign(csr.begin(), csr.end());
  old_positions.assign(positions.begin(), positions.end());
  std::uint32_t filled = 0;
  for (std::uint64_t u = 0; u < n; ++u) {
    if (u + kPrefetchRows < n) {
      __builtin_prefetch(&old_positions[old_csr[codec.position(sorted[u + kPrefetchRows])]]);
    }
    const std::uint32_t old = codec.position(sorted[u]);
    slots[u] = static_cast<std::uint32_t>(codec.row(sorted[u]));
    rows[u] = old_rows[old];
    csr[u] = filled;
    for (std::uint32_t i = old_csr[old]; i < old_csr[old + 1]; ++i) positions[filled++] = old_positions[i];
  }
}

void BatchPlan::scatter_slots() {
  if (positions.size() == num_positions) {
    slot_of_position.resize(num_positions);
  } else {
    slot_of_position.assign(num_positions, kNoSlot);
  }
  const std::uint64_t n = positions.size();
  std::uint32_t* out = slot_of_position.data();
  for (std::uint64_t u = 0; u < slots.size(); ++u) {
    for (std::uint32_t i = csr[u]; i < csr[u + 1]; ++i) {
      if (i + kPrefetchRows < n) __builtin_prefetch(out + positions[i + kPrefetchRows], 1);
      out[positions[i]] = slots[u];
    }
  }
}

}  // namespace mtrains
