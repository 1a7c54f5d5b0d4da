// Gather and pool, dot products, loads and stores: against the oracle, bit by bit, on every instruction set.
#include <algorithm>

#include "check.h"
#include "kernel_cases.h"
#include "reference_kernels.h"

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

using namespace mtrains;
using cases::Case;

namespace {

template <typename Function>
void for_each_table(const Function& function) {
  for (WeightType dtype : cases::weight_types()) {
    for (std::uint32_t dim : cases::dims()) function(RecordLayout{dtype, dim, 1});
  }
}

struct Pooled {
  std::vector<float> out;
  std::vector<std::int64_t> argmax;
  std::vector<float> counts;
  bool operator==(const Pooled& other) const {
    return cases::same_bits(out, other.out) && argmax == other.argmax && counts == other.counts;
  }
};

}  // namespace

TEST(pool_equals_oracle) {
  for_each_table([](RecordLayout layout) {
    Case table(layout, 1);
    for (PoolMode mode : {PoolMode::kSum, PoolMode::kMean, PoolMode::kMax}) {
      for (bool weighted : {false, true}) {
        if (weighted && mode != PoolMode::kSum) continue;
        Pooled expected;
        PoolTask task = table.pool_task(mode, expected.out, expected.argmax, expected.counts);
        task.per_sample_weights = weighted ? table.sample_weights.data() : nullptr;
        reference::pool(task);
        for (Isa isa : cases::isas()) {
          set_isa(isa);
          Pooled seen;
          task = table.pool_task(mode, seen.out, seen.argmax, seen.counts);
          task.per_sample_weights = weighted ? table.sample_weights.data() : nullptr;
          pool(task);
          CHECK(seen == expected);
        }
      }
    }
  });
}

TEST(pool_in_pieces_changes_no_bit) {
  std::mt19937 random(2);
  for_each_table([&](RecordLayout layout) {
    Case table(layout, 3);
    for (PoolMode mode : {PoolMode::kSum, PoolMode::kMean, PoolMode::kMax}) {
      Pooled expected;
      pool(table.pool_task(mode, expected.out, expected.argmax, expected.counts));
      for (int round = 0; round < 8; ++round) {
        // Cuts may repeat (pieces without positions) and may all fall into one bag.
        std::vector<std::uint64_t> cuts = {0, table.indices.size()};
        for (int i = 0; i < round; ++i)
          cuts.push_back(round < 4 ? random() % 4 + 9 : random() % table.indices.size());
        std::sort(cuts.begin(), cuts.end());
        set_isa(cases::isas()[static_cast<std::size_t>(round) % cases::isas().size()]);
        Pooled seen;
        PoolTask task = table.pool_task(mode, seen.out, seen.argmax, seen.counts);
        for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
          task.position_begin = cuts[i];
          task.position_end = cuts[i + 1];
          task.first_piece = i == 0;
          task.last_piece = i + 2 == cuts.size();
          pool(task);
        }
        CHECK(seen == expected);
      }
    }
  });
}

TEST(pool_by_threads_changes_no_bit) {
  for_each_table([](RecordLayout layout) {
    Case table(layout, 4);
    Pooled expected, seen;
    pool(table.pool_task(PoolMode::kMean, expected.out, expected.argmax, expected.counts));
    PoolTask task = table.pool_task(PoolMode::kMean, seen.out, seen.argmax, seen.counts);
    for (std::uint64_t begin = 0; begin < Case::kBags; begin += 5) {
      task.bag_begin = begin;
      task.bag_end = std::min<std::uint64_t>(begin + 5, Case::kBags);
      pool(task);
    }
    CHECK(seen == expected);
  });
}

TEST(max_takes_the_first_of_equals_and_keeps_nan) {
  const RecordLayout layout{WeightType::kFloat32, 2, 0};
  const float rows[] = {1, 5, 1, NAN, 0, 7};
  const std::uint32_t slots[] = {0, 1, 2};
  const std::int64_t offsets[] = {0, 3};
  float out[2], counts[1];
  std::int64_t argmax[2];
  PoolTask task;
  task.layout = layout;
  task.records = reinterpret_cast<const std::byte*>(rows);
  task.slot_of_position = slots;
  task.offsets = offsets;
  task.bag_end = 1;
  task.position_end = 3;
  task.mode = PoolMode::kMax;
  task.out = out;
  task.out_stride = 2;
  task.argmax = argmax;
  task.counts = counts;
  for (Isa isa : cases::isas()) {
    set_isa(isa);
    pool(task);
    CHECK_EQ(out[0], 1.0f);
    CHECK_EQ(argmax[0], 0);
    CHECK(std::isnan(out[1]));
    CHECK_EQ(argmax[1], 1);
  }
}

TEST(weight_grad_equals_oracle) {
  for_each_table([](RecordLayout layout) {
    Case table(layout, 5);
    for (Isa isa : cases::isas()) {
      set_isa(isa);
      std::vector<float> out(table.indices.size(), -99);
      WeightGradTask task;
      task.layout = layout;
      task.records = table.records();
      task.slot_of_position = table.plan.slot_of_position.data();
      task.offsets = table.offsets.data();
      task.bag_end = Case::kBags;
      task.position_end = table.indices.size();
      task.grad = table.grad.data();
      task.grad_stride = table.grad_stride;
      task.out = out.data();
      per_sample_weight_grad(task);
      for (std::uint64_t p = 0; p < out.size(); ++p) {
        const std::uint32_t slot = task.slot_of_position[p];
        std::vector<float> terms(layout.dim, 0);
        const std::uint32_t bag = table.plan.bag_of_position[p];
        for (std::uint32_t d = 0; d < layout.dim && slot != kNoSlot; ++d) {
          terms[d] = reference::weight(layout, task.records + slot * layout.stride(), d) *
                     task.grad[bag * task.grad_stride + d];
        }
        CHECK_EQ(out[p], reference::lane_sum(terms));
      }
    }
  });
}

TEST(load_and_store_rows) {
  for_each_table([](RecordLayout layout) {
    Case table(layout, 6);
    const std::vector<std::uint32_t> slots = {4, 0, 36, 4};
    for (Isa isa : cases::isas()) {
      set_isa(isa);
      std::vector<float> out(slots.size() * (layout.dim + 2));
      load_rows(layout, table.records(), slots.data(), slots.size(), out.data(), layout.dim + 2);
      for (std::size_t i = 0; i < slots.size(); ++i) {
        const float* row = out.data() + i * (layout.dim + 2);
        const std::byte* record = table.records() + slots[i] * layout.stride();
        for (std::uint32_t d = 0; d < layout.dim; ++d) CHECK_EQ(row[d], reference::weight(layout, record, d));
        std::vector<std::byte> copy(layout.stride(), std::byte{1});
        std::memcpy(copy.data() + layout.state_offset(), record + layout.state_offset(), 4);
        store_row(layout, row, copy.data());
        CHECK(std::memcmp(copy.data(), record, layout.stride()) == 0);
      }
    }
  });
}

// All 65,536 values of both types, the subnormal and special ones too.
TEST(sixteen_bit_values_load_exactly) {
  for (WeightType dtype : {WeightType::kFloat16, WeightType::kBFloat16}) {
    std::vector<std::uint16_t> halves(65536);
    for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint16_t>(i);
    const RecordLayout layout{dtype, 64, 0};
    std::vector<std::uint32_t> slots(halves.size() / 64);
    for (std::uint32_t i = 0; i < slots.size(); ++i) slots[i] = i;
    std::vector<std::vector<float>> by_isa;
    for (Isa isa : cases::isas()) {
      set_isa(isa);
      std::vector<float> out(halves.size());
      const auto* records = reinterpret_cast<const std::byte*>(halves.data());
      load_rows(layout, records, slots.data(), slots.size(), out.data(), 64);
      by_isa.push_back(out);
      CHECK(cases::same_bits(by_isa.back(), by_isa.front()));
    }
    int wrong = 0;
    for (std::size_t i = 0; i < halves.size(); ++i) {
      const float expected = reference::widen(dtype, halves[i]);
      const float seen = by_isa[0][i];
      wrong += std::isnan(expected) ? !std::isnan(seen) : std::memcmp(&expected, &seen, 4) != 0;
      std::uint16_t back[64];
      std::vector<float> row(64, seen);
      store_row(layout, row.data(), reinterpret_cast<std::byte*>(back));
      wrong += !std::isnan(expected) && back[0] != halves[i];
    }
    CHECK_EQ(wrong, 0);
  }
}

TEST(store_row_rounds_to_nearest_even) {
  const struct {
    WeightType dtype;
    float value;
    std::uint16_t bits;
  } expected[] = {
      {WeightType::kFloat16, 1.00048828125f, 0x3c00},  // a tie
      {WeightType::kFloat16, 1.00146484375f, 0x3c02},  // a tie, to even
      {WeightType::kFloat16, 65519.0f, 0x7bff},       {WeightType::kFloat16, 65520.0f, 0x7c00},
      {WeightType::kFloat16, 0x1p-25f, 0x0000},       {WeightType::kFloat16, -0x1.8p-25f, 0x8001},
      {WeightType::kFloat16, 0x1.8p-24f, 0x0002},     {WeightType::kFloat16, 0x1.ffep-15f, 0x0400},
      {WeightType::kBFloat16, 1.00390625f, 0x3f80},   {WeightType::kBFloat16, 1.01171875f, 0x3f82},
      {WeightType::kBFloat16, 3.4e38f, 0x7f80},       {WeightType::kBFloat16, -0x1p-133f, 0x8001},
  };
  for (const auto& one : expected) {
    std::uint16_t bits[2] = {1, 1};
    store_row({one.dtype, 1, 0}, &one.value, reinterpret_cast<std::byte*>(bits));
    CHECK_EQ(bits[0], one.bits);
    CHECK_EQ(bits[1], 0);  // the padding
  }
}

#if defined(__SSE__)
TEST(flush_to_zero_of_the_caller_has_no_effect) {
  const float rows[] = {0x1p-127f, 0x1p-128f};  // subnormal, as their sum
  const std::uint32_t slots[] = {0, 1};
  const std::int64_t offsets[] = {0, 2};
  float out[1] = {};
  PoolTask task;
  task.layout = {WeightType::kFloat32, 1, 0};
  task.records = reinterpret_cast<const std::byte*>(rows);
  task.slot_of_position = slots;
  task.offsets = offsets;
  task.bag_end = 1;
  task.position_end = 2;
  task.out = out;
  task.out_stride = 1;
  const unsigned before = _mm_getcsr();
  const unsigned flushing = before | 0x8040;
  for (Isa isa : cases::isas()) {
    set_isa(isa);
    _mm_setcsr(flushing);
    pool(task);
    const unsigned after = _mm_getcsr();
    _mm_setcsr(before);
    CHECK_EQ(out[0], 0x1.8p-127f);
    CHECK_EQ(after & 0x8040u, 0x8040u);
  }
}
#endif

TEST_MAIN()
