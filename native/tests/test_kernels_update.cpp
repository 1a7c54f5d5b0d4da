// Row gradients, optimizer steps and stochastic rounding: against the oracle, bit by bit, on every
// instruction set.
#include <cmath>

#include "check.h"
#include "kernel_cases.h"
#include "mtrains/thread_pool.h"
#include "reference_kernels.h"

using namespace mtrains;
using cases::Case;

namespace {

constexpr Optimizer kOptimizers[] = {Optimizer::kSgd, Optimizer::kAdagrad, Optimizer::kRowWiseAdagrad,
                                     Optimizer::kSparseAdam, Optimizer::kPartialRowWiseAdam};

template <typename Function>
void for_each_step(const Function& function) {
  for (WeightType dtype : cases::weight_types()) {
    for (std::uint32_t dim : cases::dims()) {
      for (Optimizer optimizer : kOptimizers) {
        function(RecordLayout{dtype, dim, cases::state_floats(optimizer, dim)}, optimizer);
      }
    }
  }
}

std::vector<std::byte> expected_records(RecordLayout layout, UpdateTask task) {
  Case table(layout, 11);
  task.records = table.records();
  for (std::uint64_t u = task.unique_begin; u < task.unique_end; ++u) reference::update_row(task, u);
  return table.storage;
}

}  // namespace

TEST(updates_equal_oracle) {
  for_each_step([](RecordLayout layout, Optimizer optimizer) {
    for (WeightDecay decay : {WeightDecay::kNone, WeightDecay::kL2, WeightDecay::kDecoupled}) {
      Case data(layout, 11);
      UpdateTask task = data.update_task(optimizer);
      task.decay = decay;
      task.maximize = decay == WeightDecay::kL2;
      const std::vector<std::byte> expected = expected_records(layout, task);
      for (Isa isa : cases::isas()) {
        set_isa(isa);
        Case table(layout, 11);
        task.records = table.records();
        update_rows(task);
        CHECK(table.storage == expected);
      }
    }
  });
}

TEST(updates_by_ranges_change_no_bit) {
  for_each_step([](RecordLayout layout, Optimizer optimizer) {
    Case whole(layout, 11), split(layout, 11);
    update_rows(whole.update_task(optimizer));
    UpdateTask task = split.update_task(optimizer);
    const std::uint64_t n = task.unique_end;
    for (std::uint64_t begin = 0; begin < n; begin += 3) {
      task.unique_begin = begin;
      task.unique_end = std::min(begin + 3, n);
      update_rows(task);
    }
    task.unique_begin = task.unique_end = n;  // an empty range
    update_rows(task);
    CHECK(whole.storage == split.storage);
  });
}

TEST(a_step_on_threads_changes_no_bit) {
  const RecordLayout layout{WeightType::kFloat16, 130, 1};
  Case alone(layout, 14), shared(layout, 14);
  std::vector<float> out_alone, out_shared, counts;
  std::vector<std::int64_t> argmax;
  pool(alone.pool_task(PoolMode::kMean, out_alone, argmax, counts));
  update_rows(alone.update_task(Optimizer::kRowWiseAdagrad));
  const PoolTask forward = shared.pool_task(PoolMode::kMean, out_shared, argmax, counts);
  const UpdateTask step = shared.update_task(Optimizer::kRowWiseAdagrad);
  ThreadPool threads(3);
  threads.run(Case::kBags, [&](std::size_t i) {
    PoolTask task = forward;
    task.bag_begin = i;
    task.bag_end = i + 1;
    pool(task);
  });
  threads.run(step.unique_end, [&](std::size_t i) {
    UpdateTask task = step;
    task.unique_begin = i;
    task.unique_end = i + 1;
    update_rows(task);
  });
  CHECK(cases::same_bits(out_alone, out_shared));
  CHECK(alone.storage == shared.storage);
}

TEST(row_sums_equal_oracle) {
  for (std::uint32_t dim : cases::dims()) {
    Case table({WeightType::kFloat32, dim, 0}, 12);
    const std::uint64_t n = table.plan.num_unique();
    std::vector<float> earlier(n * dim, 0.75f);
    std::vector<std::uint32_t> of_unique(n);
    for (std::uint32_t u = 0; u < n; ++u)
      of_unique[u] = u % 3 == 0 ? kNoSlot : static_cast<std::uint32_t>(n - 1 - u);
    std::vector<std::int64_t> argmax(Case::kBags * dim);
    for (std::size_t i = 0; i < argmax.size(); ++i) {
      const std::int64_t* offset = &table.offsets[i / dim];
      argmax[i] =
          offset[0] == offset[1] ? -1 : offset[0] + static_cast<std::int64_t>(i) % (offset[1] - offset[0]);
    }
    std::vector<GradSource> sources(6, table.source());
    sources[1].per_sample_weights = table.sample_weights.data();
    sources[2].sums = earlier.data();
    sources[2].sum_of_unique = of_unique.data();
    sources[2].scale = -0.5f;
    sources[3].argmax = argmax.data();
    sources[3].sums = earlier.data();
    sources[3].scale = 3;
    sources[4] = GradSource{};
    sources[4].sums = earlier.data();
    sources[4].sum_of_unique = of_unique.data();
    sources[4].scale = 0.3f;
    sources[5].sums = earlier.data();
    for (const GradSource& source : sources) {
      std::vector<float> expected(n * dim);
      for (std::uint64_t u = 0; u < n; ++u) {
        for (std::uint32_t d = 0; d < dim; ++d)
          expected[u * dim + d] = reference::row_gradient(source, dim, u, d);
      }
      for (Isa isa : cases::isas()) {
        set_isa(isa);
        std::vector<float> seen(n * dim, -99);
        sum_rows(source, dim, 0, n / 2, seen.data());
        sum_rows(source, dim, n / 2, n, seen.data());
        CHECK(cases::same_bits(seen, expected));
      }
    }
  }
}

// A second lookup continues the fold of the first: sums, then more occurrences.
TEST(a_fold_that_continues_changes_no_bit) {
  Case table({WeightType::kFloat32, 70, 70}, 13);
  const std::uint64_t n = table.plan.num_unique();
  std::vector<std::uint32_t> first, second, positions;
  for (std::uint64_t u = 0; u < n; ++u) {
    const std::uint32_t middle = (table.plan.csr[u] + table.plan.csr[u + 1]) / 2;
    first.push_back(middle);
    second.push_back(middle);
  }
  GradSource all = table.source();
  std::vector<float> expected(n * 70), half(n * 70), seen(n * 70);
  sum_rows(all, 70, 0, n, expected.data());
  // Two CSRs over copies of the positions: the first halves, then the second halves.
  std::vector<std::uint32_t> csr_a = {0}, csr_b = {0}, positions_a, positions_b;
  for (std::uint64_t u = 0; u < n; ++u) {
    for (std::uint32_t i = table.plan.csr[u]; i < table.plan.csr[u + 1]; ++i) {
      (i < first[u] ? positions_a : positions_b).push_back(table.plan.positions[i]);
    }
    csr_a.push_back(static_cast<std::uint32_t>(positions_a.size()));
    csr_b.push_back(static_cast<std::uint32_t>(positions_b.size()));
  }
  GradSource a = all, b = all;
  a.csr = csr_a.data();
  a.positions = positions_a.data();
  b.csr = csr_b.data();
  b.positions = positions_b.data();
  sum_rows(a, 70, 0, n, half.data());
  b.sums = half.data();
  sum_rows(b, 70, 0, n, seen.data());
  CHECK(cases::same_bits(seen, expected));
}

namespace {

// What SGD with gradient 0 makes of `value`: only its rounding. One bag, one row, 64 columns.
std::vector<std::uint16_t> rounded(WeightType dtype, const std::vector<float>& gradient,
                                   std::uint64_t count) {
  const std::uint32_t dim = static_cast<std::uint32_t>(gradient.size());
  const std::uint32_t zero = 0;
  const std::uint64_t row = 9;
  const std::uint32_t csr[] = {0, 1};
  std::vector<std::uint16_t> record(dim + dim % 2);
  UpdateTask task;
  task.layout = {dtype, dim, 0};
  task.records = reinterpret_cast<std::byte*>(record.data());
  task.slots = &zero;
  task.rows = &row;
  task.unique_end = 1;
  task.source.csr = csr;
  task.source.positions = &zero;
  task.source.grad = gradient.data();
  task.source.grad_stride = dim;
  task.lr = -1;
  task.update_count = count;
  update_rows(task);
  record.resize(dim);
  return record;
}

std::vector<float> rounding_inputs(std::mt19937& random) {
  std::vector<float> values(64);
  for (float& value : values) value = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
  for (std::size_t i = 0; i < 32; ++i)
    values[i] = std::ldexp(static_cast<float>(random()), -30 - static_cast<int>(i) * 2);
  values[40] = INFINITY, values[41] = -INFINITY, values[42] = NAN;
  values[43] = 3.4e38f, values[44] = -65505.0f, values[45] = 65535.9f, values[46] = 1e30f,
  values[47] = 65536.0f;
  values[48] = 0.0f, values[49] = 0x1p-149f, values[50] = 0x1.fffffep-15f, values[51] = 0x1p-24f;
  return values;
}

}  // namespace

TEST(stochastic_rounding_equals_oracle) {
  std::mt19937 random(21);
  for (WeightType dtype : {WeightType::kFloat16, WeightType::kBFloat16}) {
    for (std::uint64_t count = 0; count < 400; ++count) {
      const std::vector<float> values = rounding_inputs(random);
      std::vector<std::uint32_t> words(64);
      rounding_words(0, count, 9, 64, words.data());
      for (Isa isa : cases::isas()) {
        set_isa(isa);
        const std::vector<std::uint16_t> seen = rounded(dtype, values, count);
        for (std::size_t i = 0; i < 64; ++i) {
          const float stored = 0.0f - -1.0f * values[i];
          CHECK_EQ(seen[i], reference::round(dtype, stored, words[i]));
        }
      }
    }
  }
}

TEST(stochastic_rounding_is_unbiased) {
  const float values[] = {1.0003f,        -3.14159f,     1000.3f, 0x1.2345p-16f,
                          -0x1.9578p-23f, 0x1.4343p-26f, 65000.7f};
  for (WeightType dtype : {WeightType::kFloat16, WeightType::kBFloat16}) {
    for (float value : values) {
      double sum = 0, low = INFINITY, high = -INFINITY;
      constexpr int kCounts = 4000;
      for (int count = 0; count < kCounts; ++count) {
        for (std::uint16_t bits :
             rounded(dtype, std::vector<float>(64, value), static_cast<std::uint64_t>(count))) {
          const double seen = reference::widen(dtype, bits);
          sum += seen, low = std::min(low, seen), high = std::max(high, seen);
        }
      }
      const double mean = sum / (64.0 * kCounts), step = high - low;
      CHECK(low <= value && value <= high && step > 0);
      // Five standard deviations of the mean of 256,000 draws from two values.
      const double p = (value - low) / step;
      CHECK(std::fabs(mean - value) <= 5 * step * std::sqrt(p * (1 - p) / (64.0 * kCounts)));
    }
  }
}

TEST(representable_values_stay) {
  for (WeightType dtype : {WeightType::kFloat16, WeightType::kBFloat16}) {
    int wrong = 0;
    for (std::uint32_t base = 0; base < 65536; base += 64) {
      std::vector<float> values(64);
      for (std::uint32_t i = 0; i < 64; ++i)
        values[i] = reference::widen(dtype, static_cast<std::uint16_t>(base + i));
      const std::vector<std::uint16_t> seen = rounded(dtype, values, base);
      for (std::uint32_t i = 0; i < 64; ++i) {
        if (std::isnan(values[i])) {
          wrong += !std::isnan(reference::widen(dtype, seen[i]));
        } else {
          wrong += seen[i] != base + i && values[i] != 0;  // 0 - -0 is 0
        }
      }
    }
    CHECK_EQ(wrong, 0);
  }
}

TEST_MAIN()
