#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <thread>
#include <vector>

#include "check.h"
#include "mtrains/bandwidth_limit.h"

using mtrains::BandwidthLimit;
using mtrains::DeviceLimits;

namespace {

constexpr std::int64_t kMillisecond = 1'000'000;

// A clock that stands still but for sleeps, which come back `late` nanoseconds late.
struct FakeTime {
  std::int64_t now = 1000 * kMillisecond;
  std::int64_t late = 0;
  std::vector<std::int64_t> sleeps;

  BandwidthLimit limit(const DeviceLimits& limits) {
    return BandwidthLimit(
        limits, [this] { return now; },
        [this](std::int64_t until) {
          sleeps.push_back(until - now);
          now = until + late;
        });
  }
};

// Bytes per second of `num_batches` batches that begin `host` nanoseconds after each other's end.
double rate_of(FakeTime& time, BandwidthLimit& limit, int num_batches, std::int64_t bytes,
               std::int64_t host) {
  const std::int64_t began = time.now;
  for (int i = 0; i < num_batches; ++i) {
    time.now += host;
    limit.charge_read(1, static_cast<std::uint64_t>(bytes));
  }
  return 1e9 * num_batches * static_cast<double>(bytes) / static_cast<double>(time.now - began);
}

bool within(double value, double expected, double tolerance) {
  return std::abs(value - expected) <= tolerance * expected;
}

const DeviceLimits kGigabyte = {.read_bytes_per_second = 1e9, .write_bytes_per_second = 5e8};

}  // namespace

TEST(the_long_run_rate_is_the_devices) {
  for (std::int64_t bytes : {100, 10'000, 59'999, 1'000'000}) {          // 0.1 to 1000 us each
    for (std::int64_t late : {std::int64_t{0}, std::int64_t{50'000}}) {  // late wake-ups are made good
      for (std::int64_t host : {std::int64_t{0}, bytes / 2}) {           // so is the host's own copying
        FakeTime time;
        time.late = late;
        BandwidthLimit limit = time.limit(kGigabyte);
        const int num_batches = static_cast<int>(100 * kMillisecond / bytes);
        CHECK(within(rate_of(time, limit, num_batches, bytes, host), 1e9, 0.03));
      }
    }
  }
}

TEST(a_slower_host_never_waits) {
  FakeTime time;
  BandwidthLimit limit = time.limit(kGigabyte);
  rate_of(time, limit, 100, 100'000, 200'000);
  CHECK(time.sleeps.empty());
  CHECK_EQ(limit.read_seconds_slept(), 0.0);
}

TEST(short_waits_add_up_until_a_sleep_is_worth_it) {
  FakeTime time;
  BandwidthLimit limit = time.limit(kGigabyte);
  for (int i = 0; i < 1000; ++i) limit.charge_read(1, 1000);  // 1 us each
  CHECK(!time.sleeps.empty());
  CHECK(time.sleeps.size() <= 17);
  for (std::int64_t sleep : time.sleeps) CHECK(sleep >= BandwidthLimit::kMinSleepNanoseconds);
}

TEST(idle_time_counts_only_up_to_the_burst) {
  FakeTime time;
  BandwidthLimit limit = time.limit(kGigabyte);
  time.now += 1000 * kMillisecond;
  limit.charge_read(1, 10'000'000);  // 10 ms
  CHECK_EQ(time.sleeps.size(), 1);
  CHECK_EQ(time.sleeps[0], 9 * kMillisecond);
}

TEST(reads_and_writes_have_rates_of_their_own) {
  FakeTime time;
  BandwidthLimit limit = time.limit(kGigabyte);
  const std::int64_t began = time.now;
  limit.charge_write(1, 10'000'000);
  CHECK(within(static_cast<double>(time.now - began), 20e6, 0.06));
  CHECK_EQ(limit.read_seconds_slept(), 0.0);
  CHECK(within(limit.write_seconds_slept(), 0.02, 0.06));
  limit.charge_read(1, 500'000);  // the write did not use up what reads may do
  CHECK_EQ(time.sleeps.size(), 1);
}

TEST(each_request_moves_whole_granules) {
  FakeTime time;
  DeviceLimits limits = kGigabyte;
  limits.granule_bytes = 256;
  BandwidthLimit limit = time.limit(limits);
  const std::int64_t began = time.now;
  limit.charge_read(100'000, 260);  // two granules each
  CHECK_EQ(time.now - began, 51'200'000);
  limit.charge_read(100'000, 512);
  CHECK_EQ(time.now - began, 102'400'000);
}

TEST(a_batch_has_one_latency) {
  FakeTime time;
  BandwidthLimit limit = time.limit({.read_latency_seconds = 100e-6, .write_latency_seconds = 1e-3});
  for (int i = 0; i < 1000; ++i) limit.charge_read(10, 64);  // no rate: latency alone
  CHECK(within(limit.read_seconds_slept(), 0.1, 0.02));
  limit.charge_read(0, 64);
  CHECK(within(limit.read_seconds_slept(), 0.1, 0.02));
}

TEST(no_limit_never_waits) {
  FakeTime time;
  BandwidthLimit limit = time.limit({});
  for (int i = 0; i < 1000; ++i) limit.charge_write(1'000'000, 1'000'000);
  CHECK(time.sleeps.empty());
}

TEST(impossible_devices_are_refused) {
  CHECK_THROWS(BandwidthLimit({.read_bytes_per_second = -1}), std::invalid_argument);
  CHECK_THROWS(BandwidthLimit({.write_latency_seconds = NAN}), std::invalid_argument);
  CHECK_THROWS(BandwidthLimit({.granule_bytes = 0}), std::invalid_argument);
}

// In real time, with nothing asserted but the least that must have been waited.
TEST(several_threads_share_one_rate) {
  BandwidthLimit limit(kGigabyte);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) limit.charge_read(1000, 250);
    });
  }
  const DeviceLimits& limits = limit.limits();
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(limits.read_bytes_per_second, 1e9);
  CHECK(limit.read_seconds_slept() > 0.0);
}

TEST_MAIN()
