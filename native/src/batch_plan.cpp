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

template <typename Index>
BadIndex first_bad_index(const Index* indices, std::uint64_t n, std::uint64_t num_rows) {
  std::uint64_t i = 0;
  while (i < n && static_cast<std::uint64_t>(static_cast<std::int64_t>(indices[i])) < num_rows) ++i;
  return {i, static_cast<std::int64_t>(indices[i])};
}

// Writes and counts the occurrences that are kept. Returns their number, or nothing if an index is bad.
template <unsigned kPasses, typename Element, typename Index>
std::optional<std::uint64_t> collect(const Index* indices, std::uint64_t n, std::uint64_t num_rows,
                                     std::int64_t padding_row, typename Element::Codec codec,
                                     RadixScratch<Element>& scratch, RadixDigits digits) {
  Element* elements = scratch.elements.data();
  std::uint32_t* bins = scratch.bins.data();
  std::uint64_t kept = 0;
  bool bad = false;
  for (std::uint64_t i = 0; i < n; ++i) {
    const std::int64_t index = indices[i];
    const std::uint64_t row = static_cast<std::uint64_t>(index);
    bad |= row >= num_rows;
    if (index == padding_row) continue;
    elements[kept++] = codec.pack(row, i);
    scratch.template count<kPasses>(bins, digits, row);
  }
  if (bad) return std::nullopt;
  return kept;
}

// Unique rows and their positions from sorted occurrences. Without branches: a third of them are new rows.
template <typename Element>
void fill_plan(BatchPlan& plan, const Element* sorted, std::uint64_t n, typename Element::Codec codec) {
  std::uint64_t num_unique = n > 0;
  for (std::uint64_t i = 1; i < n; ++i) num_unique += codec.row(sorted[i]) != codec.row(sorted[i - 1]);
  plan.rows.resize(num_unique);
  plan.csr.resize(num_unique + 1);
  plan.positions.resize(n);
  if (n == 0) return;
  std::uint64_t* rows = plan.rows.data();
  std::uint32_t* ends = plan.csr.data() + 1;
  std::uint32_t* positions = plan.positions.data();
  std::uint64_t previous = codec.row(sorted[0]), u = 0;
  for (std::uint64_t i = 0; i < n; ++i) {
    const std::uint64_t row = codec.row(sorted[i]);
    u += row != previous;
    previous = row;
    rows[u] = row;
    ends[u] = static_cast<std::uint32_t>(i + 1);
    positions[i] = codec.position(sorted[i]);
  }
}

template <typename Element, typename Index>
std::optional<BadIndex> build_sorted(BatchPlan& plan, const Index* indices, std::uint64_t n,
                                     std::uint64_t num_rows, std::int64_t padding_row,
                                     typename Element::Codec codec, unsigned row_bits) {
  const RadixDigits digits = RadixDigits::choose(row_bits, n);
  auto& scratch = RadixScratch<Element>::of_thread(n, digits);
  const std::optional<std::uint64_t> kept = with_passes(digits.passes, [&]<unsigned kPasses>() {
    return collect<kPasses, Element>(indices, n, num_rows, padding_row, codec, scratch, digits);
  });
  if (!kept) return first_bad_index(indices, n, num_rows);
  const Element* sorted =
      scratch.sort(*kept, digits, [codec](const Element& element) { return codec.row(element); });
  fill_plan(plan, sorted, *kept, codec);
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

// Moves unique row sorted[u] of the plan to place u.
void permute(BatchPlan& plan, const PackedOccurrence* sorted, PackedOccurrence::Codec codec) {
  static thread_local std::vector<std::uint64_t> rows;
  static thread_local std::vector<std::uint32_t> csr, positions;
  constexpr std::uint32_t kRun = 4;  // most rows have no more positions, and a fixed count needs no branch
  const std::uint64_t n = plan.slots.size();
  const std::uint32_t total = static_cast<std::uint32_t>(plan.positions.size());
  rows.resize(n);
  csr.resize(n + 1);
  positions.resize(total + kRun);
  plan.positions.resize(total + kRun);
  std::uint32_t filled = 0;
  for (std::uint64_t u = 0; u < n; ++u) {
    if (u + kPrefetchRows < n) {
      __builtin_prefetch(&plan.positions[plan.csr[codec.position(sorted[u + kPrefetchRows])]]);
    }
    const std::uint32_t old = codec.position(sorted[u]);
    plan.slots[u] = static_cast<std::uint32_t>(codec.row(sorted[u]));
    rows[u] = plan.rows[old];
    csr[u] = filled;
    const std::uint32_t* from = plan.positions.data() + plan.csr[old];
    std::uint32_t* to = positions.data() + filled;
    const std::uint32_t count = plan.csr[old + 1] - plan.csr[old];
    for (std::uint32_t i = 0; i < kRun; ++i) to[i] = from[i];
    for (std::uint32_t i = kRun; i < count; ++i) to[i] = from[i];
    filled += count;
  }
  csr[n] = total;
  positions.resize(total);
  plan.rows.swap(rows);
  plan.csr.swap(csr);
  plan.positions.swap(positions);
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
  for (std::uint64_t u = 1; u < n; ++u) ordered &= slots[u - 1] <= slots[u];
  if (ordered) return;
  for (std::uint64_t u = 0; u < n; ++u) all |= slots[u];

  const PackedOccurrence::Codec codec{32};  // its row is the slot, its position the unique row
  const RadixDigits digits = RadixDigits::choose(static_cast<unsigned>(std::bit_width(all)), n);
  auto& scratch = RadixScratch<PackedOccurrence>::of_thread(n, digits);
  with_passes(digits.passes, [&]<unsigned kPasses>() {
    PackedOccurrence* elements = scratch.elements.data();
    std::uint32_t* bins = scratch.bins.data();
    for (std::uint64_t u = 0; u < n; ++u) {
      elements[u] = codec.pack(slots[u], u);
      scratch.count<kPasses>(bins, digits, slots[u]);
    }
  });
  permute(*this, scratch.sort(n, digits, [codec](PackedOccurrence element) { return codec.row(element); }),
          codec);
}

void BatchPlan::scatter_slots() {
  if (positions.size() == num_positions) {
    slot_of_position.resize(num_positions);
  } else {
    slot_of_position.assign(num_positions, kNoSlot);
  }
  std::uint32_t* out = slot_of_position.data();
  for (std::uint64_t u = 0; u < slots.size(); ++u) {
    const std::uint32_t slot = slots[u], end = csr[u + 1];
    for (std::uint32_t i = csr[u]; i < end; ++i) out[positions[i]] = slot;
  }
}

}  // namespace mtrains
