// A slower device, emulated by waiting.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>

namespace mtrains {

// What a device can do. A rate of 0 is no limit.
struct DeviceLimits {
  double read_bytes_per_second = 0;
  double write_bytes_per_second = 0;
  double read_latency_seconds = 0;  // of one batch of requests
  double write_latency_seconds = 0;
  std::uint32_t granule_bytes = 1;  // each request moves whole granules of the media
};

// Makes callers wait so that in the long run they move no more than the device would: a token bucket for
// reads and one for writes. Thread-safe; batches of several threads queue up one behind another.
//
// Call it after the bytes were moved, at least once a millisecond of moving: up to kBurst of time that passed
// since the last batch counts as the device's own, so that moving the bytes here is not added to the device's
// time, and late wake-ups are made good. Waits below kMinSleep are left owing until they add up, because a
// sleep is no shorter.
class BandwidthLimit {
 public:
  static constexpr std::int64_t kBurstNanoseconds = 1'000'000;
  static constexpr std::int64_t kMinSleepNanoseconds = 60'000;

  // Nanoseconds of a monotonic clock, and a sleep until such a time; replaced in tests.
  using Clock = std::function<std::int64_t()>;
  using SleepUntil = std::function<void(std::int64_t)>;

  explicit BandwidthLimit(const DeviceLimits& limits);  // throws std::invalid_argument
  BandwidthLimit(const DeviceLimits& limits, Clock clock, SleepUntil sleep_until);

  const DeviceLimits& limits() const { return limits_; }
  // One batch of requests that were made together.
  void charge_read(std::uint64_t num_requests, std::uint64_t bytes_each) {
    wait_read(owe_read(num_requests, bytes_each));
  }
  void charge_write(std::uint64_t num_requests, std::uint64_t bytes_each) {
    wait_write(owe_write(num_requests, bytes_each));
  }
  // The same in two parts, for callers that hold what others need: nanoseconds of the clock when the device
  // would be done, and waiting until then.
  std::int64_t owe_read(std::uint64_t num_requests, std::uint64_t bytes_each) {
    return owe(&read_, num_requests, bytes_each);
  }
  std::int64_t owe_write(std::uint64_t num_requests, std::uint64_t bytes_each) {
    return owe(&write_, num_requests, bytes_each);
  }
  void wait_read(std::int64_t until) { wait(&read_, until); }
  void wait_write(std::int64_t until) { wait(&write_, until); }
  double read_seconds_slept() const { return read_.slept.load() * 1e-9; }
  double write_seconds_slept() const { return write_.slept.load() * 1e-9; }

 private:
  struct Bucket {
    double bytes_per_second;
    double latency_nanoseconds;
    std::mutex mutex;
    double busy_until = 0;               // GUARDED_BY(mutex): nanoseconds of the clock
    std::atomic<std::int64_t> slept{0};  // nanoseconds
  };
  std::int64_t owe(Bucket* bucket, std::uint64_t num_requests, std::uint64_t bytes_each);
  void wait(Bucket* bucket, std::int64_t until);

  const DeviceLimits limits_;
  const Clock clock_;
  const SleepUntil sleep_until_;
  Bucket read_, write_;
};

}  // namespace mtrains
