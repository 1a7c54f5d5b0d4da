// The whole chain without Python: training over any subset of the tiers and a flat file against everything in
// memory.
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "kernel_cases.h"
#include "mtrains/engine.h"
#include "mtrains/errors.h"

using namespace mtrains;

namespace {

constexpr std::uint64_t kEverything = std::uint64_t{1} << 30;

// A device whose memory is the host's: its kernels are the core's own, one thread.
struct FakeRecords : DeviceRecords {
  explicit FakeRecords(std::size_t stride) : stride(stride) {}
  void load(const std::uint32_t* slots, std::size_t n, std::byte* out) override {
    for (std::size_t i = 0; i < n; ++i) std::memcpy(out + i * stride, &bytes.at(slots[i] * stride), stride);
  }
  void store(const std::uint32_t* slots, std::size_t n, const std::byte* records) override {
    for (std::size_t i = 0; i < n; ++i)
      std::memcpy(&bytes.at(slots[i] * stride), records + i * stride, stride);
  }
  void resize(std::uint32_t capacity) override { bytes.resize(capacity * stride); }
  std::size_t stride;
  std::vector<std::byte> bytes;
};

struct FakeMemory : DeviceMemory {
  std::unique_ptr<DeviceRecords> reserve(std::size_t stride, std::uint32_t) override {
    return std::make_unique<FakeRecords>(stride);
  }
};

struct FakeCompute : DeviceCompute {
  void pool(std::size_t, DeviceRecords& records, const PoolTask& task, std::uint64_t) override {
    PoolTask own = task;
    own.records = static_cast<FakeRecords&>(records).bytes.data();
    mtrains::pool(own);
  }
  void weight_grad(DeviceRecords& records, const WeightGradTask& task, std::uint64_t) override {
    WeightGradTask own = task;
    own.records = static_cast<FakeRecords&>(records).bytes.data();
    per_sample_weight_grad(own);
  }
  void update(std::size_t, DeviceRecords& records, const UpdateTask& task, const BatchPlan* plan,
              const std::vector<float>* counts) override {
    CHECK(counts == nullptr && (plan == nullptr) == (task.source.csr == nullptr));
    UpdateTask own = task;
    own.records = static_cast<FakeRecords&>(records).bytes.data();
    update_rows(own);
  }
};

std::vector<TierSpec> dram_of(std::uint64_t bytes) { return {TierSpec{TierKind::kDram, bytes}}; }

// On the heap: on the stack, the mutexes of one test would be at the addresses of another's, which a thread
// sanitizer takes for an order of locks.
std::unique_ptr<Engine> make_engine(std::vector<TierSpec> tiers, int num_threads, std::uint32_t max_pending,
                                    PolicyKind eviction = PolicyKind::kLru) {
  return std::make_unique<Engine>(std::move(tiers), num_threads, 1, 1, max_pending, eviction);
}

std::uint64_t hits_of(RowStore& store) {
  std::uint64_t hits = 0;
  for (const auto& tier : store.levels()) hits += tier->counters.hits;
  return hits;
}

// Commits sealed segments to a plain file, sweeps and evacuates, as the writer thread of a store does.
class FlatWriter {
 public:
  explicit FlatWriter(Engine& engine) : engine_(engine) {
    char path[] = "/tmp/mtrains_test_engine_XXXXXX";
    fd_ = mkstemp(path);
    path_ = path;
    CHECK(ftruncate(fd_, 4096) == 0);
    engine_.locked([this](RowStore& store) { store.log().open(path_, "pread"); });
    thread_ = std::thread([this] { run(); });
  }
  ~FlatWriter() {
    stop_ = true;
    engine_.wake();
    thread_.join();
    close(fd_);
    unlink(path_.c_str());
  }
  std::atomic<bool> pause_gc{false};

 private:
  void run() {
    for (std::uint32_t round = 0; !stop_; ++round) {
      commit();
      if (round % 3 == 0) settle();
      if (round % 5 == 0 && !pause_gc) evacuate();
    }
  }
  void commit() {
    const auto segments = engine_.next_sealed(4, 0.002);
    if (segments.empty()) return;
    for (const auto& [number, id] :
         engine_.locked([](RowStore& store) { return store.log().take_deletable({}, 64); })) {
      free_.push_back(place_.at(number));
      place_.erase(number);
      engine_.locked([n = number](RowStore& store) { store.log().deleted(n); });
    }
    std::vector<std::uint32_t> numbers;
    std::vector<std::uint64_t> offsets;
    for (const auto& segment : segments) {
      seal_image(segment->header, segment->image.data());
      std::uint64_t place = end_;
      if (!free_.empty()) {
        place = free_.back();
        free_.pop_back();
      } else {
        end_ += kSegmentImageBytes;
      }
      CHECK(pwrite(fd_, segment->image.data(), kSegmentImageBytes, static_cast<off_t>(place)) ==
            static_cast<ssize_t>(kSegmentImageBytes));
      place_[segment->header.number] = place;
      numbers.push_back(segment->header.number);
      offsets.push_back(place + kValueOffset);
    }
    engine_.publish(numbers, offsets);
  }
  void settle() {
    engine_.locked([](RowStore& store) {
      if (store.owed() == 0) store.begin_checkpoint();
      store.sweep(50);
      store.log().flush(store.epoch() - 1, false, 0);
    });
  }
  void evacuate() {
    auto evacuation = engine_.locked([](RowStore& store) -> std::optional<Evacuation> {
      for (std::uint32_t number = 1; number < store.log().segments().size(); ++number) {
        const Segment& segment = store.log().segments()[number];
        if (segment.state == SegmentState::kPublished && segment.live > 0 &&
            segment.live < segment.rows / 2) {
          return store.log().begin_evacuation(number);
        }
      }
      return std::nullopt;
    });
    if (!evacuation) return;
    evacuation->read();
    engine_.locked([&](RowStore& store) {
      if (store.log().has_room_to_empty_one()) store.evacuate(*evacuation);
    });
  }

  Engine& engine_;
  int fd_;
  std::string path_;
  std::map<std::uint32_t, std::uint64_t> place_;
  std::vector<std::uint64_t> free_;
  std::uint64_t end_ = 0;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

struct Run {
  std::vector<float> outputs;
  std::vector<std::byte> records;
  std::vector<TierCounters> tiers;
  std::uint64_t accesses = 0;
};

struct Config {
  std::vector<TierSpec> tiers = dram_of(kEverything);
  TableBudgets budgets;  // of the first table
  int num_threads = 2;
  WeightType dtype = WeightType::kFloat32;
  Optimizer optimizer = Optimizer::kRowWiseAdagrad;
  int lookahead = 0, depth = 0;
  double pinned_share = 1.0 / 3;
  PolicyKind eviction = PolicyKind::kLru;
};

struct Batch {
  std::vector<std::int64_t> indices;
  std::vector<float> grad;
};

// Lets batches enter the window and stages them on a thread, as far ahead of training as the configuration
// says; every ninth ticket is given up instead.
class Stager {
 public:
  Stager(Engine& engine, const std::vector<FeatureSpec>& features, const std::vector<Batch>& batches,
         const ForwardInput& like, const Config& config)
      : engine_(engine), features_(features), batches_(batches), like_(like), config_(config) {
    if (config.depth > 0) thread_ = std::thread([this] { run(); });
  }
  ~Stager() {
    trained(1 << 30);
    if (thread_.joinable()) thread_.join();
  }
  void trained(int batches) {
    const std::lock_guard<std::mutex> lock(mutex_);
    trained_ = batches;
    changed_.notify_all();
  }

 private:
  ForwardInput input(std::size_t batch) const {
    ForwardInput input = like_;
    input.indices = {batches_[batch].indices.data(), batches_[batch].indices.size(), true};
    return input;
  }
  void run() {
    CHECK(engine_.begin_window() && !engine_.begin_window());
    std::vector<std::shared_ptr<Ticket>> tickets;
    std::size_t left = 0;
    for (std::size_t s = 0; s < batches_.size(); ++s) {
      std::size_t trained;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [&] { return trained_ + config_.depth >= static_cast<int>(s); });
        trained = std::min<std::size_t>(static_cast<std::size_t>(trained_), batches_.size());
      }
      while (tickets.size() <
             std::min(batches_.size(), s + static_cast<std::size_t>(config_.lookahead) + 1)) {
        tickets.push_back(engine_.foresee(features_, input(tickets.size())));
        engine_.enter_window({tickets.back()});
      }
      for (; left < std::min(trained, s); ++left) engine_.leave_window();
      engine_.stage(tickets[s], features_, input(s), config_.pinned_share);
      if (s % 9 == 8) engine_.end(tickets[s]);
    }
    engine_.end_window();
    for (const auto& ticket : tickets) engine_.end(ticket);
  }

  Engine& engine_;
  const std::vector<FeatureSpec>& features_;
  const std::vector<Batch>& batches_;
  const ForwardInput like_;
  const Config& config_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int trained_ = 0;
  std::thread thread_;
};

Run train(const Config& config) {
  constexpr std::uint64_t kRows = 700;
  constexpr std::uint64_t kBags = 24, kPooling = 4;
  const std::vector<std::uint32_t> dims = {8, 3, 1100};  // the last one takes two blocks with its state
  const auto owned = make_engine(config.tiers, config.num_threads, 6, config.eviction);
  Engine& engine = *owned;
  std::vector<FeatureSpec> features;
  std::size_t width = 0;
  for (std::uint32_t t = 0; t < dims.size(); ++t) {
    RowInit init;
    init.kind = InitKind::kNormal;
    init.b = 1.0f;
    init.key = t;
    engine.add_table("t" + std::to_string(t), kRows, dims[t], config.dtype, init,
                     t == 0 ? config.budgets : TableBudgets{});
    engine.use_layout(t, engine.add_layout(t, cases::state_floats(config.optimizer, dims[t]), 0.0f));
    features.push_back({t, PoolMode::kSum, width});
    width += dims[t];
  }
  features.push_back({0, PoolMode::kMean, width});  // a second feature of the first table
  width += dims[0];
  Run run;
  FakeCompute compute;
  {
    FlatWriter writer(engine);
    std::mt19937_64 random(5);
    std::vector<float> out(kBags * width);
    std::vector<Batch> batches(25);
    for (auto& [indices, grad] : batches) {
      indices.resize(features.size() * kBags * kPooling);
      for (auto& index : indices)
        index = static_cast<std::int64_t>((random() % kRows) * (random() % kRows) / kRows);
      grad.resize(kBags * width);
      for (auto& value : grad) value = static_cast<float>(static_cast<int>(random() % 33) - 16) / 16.0f;
    }
    ForwardInput input;
    input.num_bags = kBags;
    input.bag_size = kPooling;
    Stager stager(engine, features, batches, input, config);
    for (std::size_t s = 0; s < batches.size(); ++s) {
      const std::vector<float>& grad = batches[s].grad;
      input.indices = {batches[s].indices.data(), batches[s].indices.size(), true};
      input.out = out.data();
      input.out_stride = width;
      input.keep = true;
      input.device = &compute;
      auto lookup = engine.forward(features, input);
      run.outputs.insert(run.outputs.end(), out.begin(), out.end());
      std::vector<TableUpdate> updates;
      std::vector<RowSums> sums(dims.size());
      for (std::uint32_t t = 0; t < dims.size(); ++t) {
        TableUpdate update;
        update.table = t;
        update.scalars.optimizer = config.optimizer;
        update.scalars.lr = 0.1f;
        update.scalars.eps = 1e-8f;
        update.scalars.one_minus_beta1 = 0.1f;
        update.scalars.one_minus_beta2 = 0.001f;
        update.lookup = lookup;
        update.feature = t;
        update.grad = grad.data() + features[t].out_column;
        update.grad_stride = width;
        if (t == 0) {
          // Both lookups of the table, summed first.
          TableUpdate second = update;
          second.feature = 3;
          second.grad = grad.data() + features[3].out_column;
          const RowSums first = engine.row_sums(update, nullptr, nullptr, 0);
          sums[t] = engine.row_sums(second, first.rows.data(), first.sums.data(), first.rows.size());
          update.lookup = nullptr;
          update.rows = reinterpret_cast<const std::uint64_t*>(sums[t].rows.data());
          update.sums = sums[t].sums.data();
          update.num_rows = sums[t].rows.size();
        }
        updates.push_back(update);
      }
      engine.step(updates, &compute);
      stager.trained(static_cast<int>(s) + 1);
    }
    writer.pause_gc = true;
    for (std::uint32_t t = 0; t < dims.size(); ++t) {
      std::vector<std::int64_t> rows;
      CHECK_EQ(engine.touched_rows(t, 0, kRows, rows), kRows);
      const std::size_t stride =
          engine.locked([t](RowStore& store) { return store.table(t).record().stride(); });
      std::vector<std::byte> records(rows.size() * stride);
      engine.read_records(t, rows.data(), rows.size(), records.data());
      run.records.insert(run.records.end(), records.begin(), records.end());
    }
    engine.locked([&run](RowStore& store) {
      for (const auto& tier : store.levels()) run.tiers.push_back(tier->counters);
      run.accesses = hits_of(store) + store.counters().new_rows + store.counters().fetches;
    });
  }
  return run;
}

void check_same(const Run& run, const Run& expected) {
  CHECK_EQ(run.outputs.size(), expected.outputs.size());
  CHECK(std::memcmp(run.outputs.data(), expected.outputs.data(), run.outputs.size() * 4) == 0);
  CHECK(run.records == expected.records);
}

}  // namespace

TEST(any_budget_gives_the_same_bits) {
  for (const Optimizer optimizer : {Optimizer::kSgd, Optimizer::kRowWiseAdagrad, Optimizer::kSparseAdam}) {
    Config config;
    config.optimizer = optimizer;
    const Run expected = train(config);
    CHECK_EQ(expected.tiers[0].evictions, std::uint64_t{0});
    for (const std::uint64_t budget : {20000u, 100000u, 1000000u}) {
      config.tiers = dram_of(budget);
      const Run run = train(config);
      check_same(run, expected);
      CHECK_EQ(run.accesses, expected.accesses);
      CHECK(run.tiers[0].evictions > 0);
    }
  }
}

TEST(any_chain_gives_the_same_bits) {
  const TierSpec hbm{TierKind::kHbm, 30000, 0, nullptr, std::make_shared<FakeMemory>(), nullptr};
  const TierSpec dram{TierKind::kDram, 60000}, scm{TierKind::kScm, 200000};
  for (const Optimizer optimizer : {Optimizer::kAdagrad, Optimizer::kPartialRowWiseAdam}) {
    Config config;
    config.optimizer = optimizer;
    const Run expected = train(config);
    for (const auto& tiers : std::vector<std::vector<TierSpec>>{
             {hbm}, {dram}, {scm}, {hbm, dram}, {hbm, scm}, {dram, scm}, {hbm, dram, scm}}) {
      config.tiers = tiers;
      const Run run = train(config);
      check_same(run, expected);
      for (std::size_t level = 0; level < tiers.size(); ++level) {
        CHECK(run.tiers[level].evictions > 0);
        CHECK((run.tiers[level].rows_out > 0) == (level > 0));
      }
    }
  }
}

TEST(a_table_with_a_budget_of_its_own_gives_the_same_bits) {
  Config config;
  const Run expected = train(config);
  const TierSpec dram{TierKind::kDram, 160000, 100000}, scm{TierKind::kScm, 200000};
  for (const std::optional<std::uint64_t> own : {std::optional<std::uint64_t>{}, {0}, {2000}, {100000}}) {
    config.tiers = {dram, scm};
    config.tiers[1].set_aside = own.value_or(0);
    config.budgets = {std::nullopt, 50000, own};
    check_same(train(config), expected);
    config.tiers = {TierSpec{TierKind::kHbm, 30000, 4000, nullptr, std::make_shared<FakeMemory>(), nullptr},
                    dram};
    config.budgets = {4000, 0, std::nullopt};
    check_same(train(config), expected);
  }
}

TEST(rows_that_come_ahead_are_the_same) {
  const TierSpec hbm{TierKind::kHbm, 60000, 0, nullptr, std::make_shared<FakeMemory>(), nullptr};
  const TierSpec dram{TierKind::kDram, 200000}, scm{TierKind::kScm, 400000};
  Config config;
  const Run expected = train(config);
  for (const auto& tiers : std::vector<std::vector<TierSpec>>{
           {dram}, {hbm, dram}, {dram, scm}, {TierSpec{TierKind::kDram, 30000}}, {dram_of(kEverything)[0]}}) {
    for (const int depth : {1, 2, 8}) {
      config.tiers = tiers;
      config.depth = depth;
      config.lookahead = depth == 1 ? 1 : 16;
      config.pinned_share = depth == 2 ? 1.0 : 1.0 / 3;
      config.eviction = static_cast<PolicyKind>(depth % 3);
      check_same(train(config), expected);
    }
  }
}

TEST(budgets_that_do_not_fit_are_refused) {
  CHECK_THROWS(Engine({TierSpec{TierKind::kDram, 1000, 2000}}, 1, 1, 1, 4), CapacityError);
  CHECK_THROWS(Engine({}, 1, 1, 1, 4), std::invalid_argument);
  CHECK_THROWS(Engine({TierSpec{TierKind::kScm, 1000}, TierSpec{TierKind::kDram, 1000}}, 1, 1, 1, 4),
               std::invalid_argument);
  const auto owned = make_engine({TierSpec{TierKind::kDram, 100000, 1000}}, 1, 4);
  Engine& engine = *owned;
  CHECK_THROWS(
      engine.add_table("t", 10, 2, WeightType::kFloat32, RowInit{}, {std::nullopt, 1001, std::nullopt}),
      CapacityError);
  CHECK_THROWS(engine.add_table("t", 10, 2, WeightType::kFloat32, RowInit{}, {std::nullopt, 0, std::nullopt}),
               CapacityError);
  engine.add_table("t", 10, 2, WeightType::kFloat32, RowInit{}, {std::nullopt, 1000, std::nullopt});
}

TEST(sixteen_bit_weights_round_alike_everywhere) {
  for (const WeightType dtype : {WeightType::kFloat16, WeightType::kBFloat16}) {
    Config config;
    config.dtype = dtype;
    const Run expected = train(config);
    config.tiers = dram_of(60000);
    config.num_threads = 3;
    check_same(train(config), expected);
  }
}

TEST(a_bad_index_changes_nothing) {
  const auto owned = make_engine(dram_of(kEverything), 1, 4);
  Engine& engine = *owned;
  engine.add_table("clicks", 10, 2, WeightType::kFloat32, RowInit{});
  std::vector<float> out(8);
  for (const std::int64_t bad :
       {std::int64_t{10}, std::int64_t{-1}, std::int64_t{-7}, std::int64_t{1} << 40}) {
    const std::int64_t indices[] = {1, 2, bad, 3};
    ForwardInput input;
    input.indices = {indices, 4, true};
    input.num_bags = 4;
    input.bag_size = 1;
    input.out = out.data();
    input.out_stride = 2;
    for (const bool keep : {true, false}) {
      input.keep = keep;
      CHECK_THROWS(engine.forward({{0, PoolMode::kSum, 0}}, input), std::out_of_range);
    }
  }
  CHECK_EQ(engine.locked([](RowStore& store) { return store.counters().new_rows; }), std::uint64_t{0});
}

TEST(a_budget_below_one_row_is_refused) {
  const auto owned = make_engine(dram_of(40), 1, 4);
  Engine& engine = *owned;
  CHECK_THROWS(engine.add_table("wide", 10, 16, WeightType::kFloat32, RowInit{}), CapacityError);
  engine.add_table("narrow", 10, 2, WeightType::kFloat32, RowInit{});
}

TEST(passes_that_wait_for_the_log_hear_of_its_failure) {
  const auto owned = make_engine(dram_of(4000), 1, 2);
  Engine& engine = *owned;
  engine.add_table("t", 100000, 16, WeightType::kFloat32, RowInit{});
  std::vector<std::int64_t> rows(100000);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::int64_t>(i);
  const std::vector<float> values(rows.size() * 16, 1.0f);
  std::thread failing([&engine] {
    while (engine.locked([](RowStore& store) { return store.log().has_room(); })) std::this_thread::yield();
    CHECK_EQ(engine.begin_checkpoint(), std::uint64_t{0});  // the rows of this write_rows are of one epoch
    engine.fail(28, "the disk is full");
  });
  CHECK_THROWS(engine.write_rows(0, rows.data(), rows.size(), values.data()), IoError);
  failing.join();
  engine.close();
  CHECK_THROWS(engine.write_rows(0, rows.data(), 1, values.data()), StateError);
}

// Waits of a minute, which nothing but what they are for may end.
TEST(the_writer_thread_hears_of_a_sealed_segment_and_of_what_needs_room_at_once) {
  Engine engine(dram_of(std::uint64_t{2} << 20), 1, 1, 1, 4);
  engine.add_table("t", 200000, 16, WeightType::kFloat32, RowInit{});
  std::vector<std::int64_t> rows(200000);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::int64_t>(i);
  const std::vector<float> values(rows.size() * 16, 1.0f);
  std::thread writer([&engine] {
    auto segments = engine.next_sealed(8, 60);
    CHECK(!segments.empty());
    for (std::size_t taken = 0; taken < 6; segments = engine.next_sealed(8, 60, 100)) {
      for (const auto& segment : segments) {
        const std::uint32_t number = segment->header.number;
        engine.publish({number}, {kSegmentImageBytes * number + kValueOffset});
      }
      taken += segments.size();
    }
    engine.fail(28, "the disk is full");
  });
  CHECK_THROWS(engine.write_rows(0, rows.data(), rows.size(), values.data()), IoError);
  writer.join();
}

TEST_MAIN()
