#include "mtrains/bandwidth_limit.h"

#include <time.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <stdexcept>
#include <utility>

namespace mtrains {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

std::int64_t monotonic_nanoseconds() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * kSecond + now.tv_nsec;
}

void sleep_until_monotonic(std::int64_t nanoseconds) {
  const timespec until = {.tv_sec = nanoseconds / kSecond, .tv_nsec = nanoseconds % kSecond};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) == EINTR) {
  }
}

void check(const DeviceLimits& limits) {
  for (double value : {limits.read_bytes_per_second, limits.write_bytes_per_second,
                       limits.read_latency_seconds, limits.write_latency_seconds}) {
    if (!std::isfinite(value) || value < 0) {
      throw std::invalid_argument("rates and latencies of a device must be finite and >= 0");
    }
  }
  if (limits.granule_bytes == 0) throw std::invalid_argument("a device's granule must be >= 1 byte");
}

}  // namespace

BandwidthLimit::BandwidthLimit(const DeviceLimits& limits)
    : BandwidthLimit(limits, monotonic_nanoseconds, sleep_until_monotonic) {}

BandwidthLimit::BandwidthLimit(const DeviceLimits& limits, Clock clock, SleepUntil sleep_until)
    : limits_((check(limits), limits)), clock_(std::move(clock)), sleep_until_(std::move(sleep_until)) {
  const auto set = [&](Bucket* bucket, double rate, double latency) {
    bucket->bytes_per_second = rate;
    bucket->latency_nanoseconds = latency * kSecond;
    bucket->busy_until = static_cast<double>(clock_());
  };
  set(&read_, limits.read_bytes_per_second, limits.read_latency_seconds);
  set(&write_, limits.write_bytes_per_second, limits.write_latency_seconds);
}

std::int64_t BandwidthLimit::owe(Bucket* bucket, std::uint64_t num_requests, std::uint64_t bytes_each) {
  if (num_requests == 0) return 0;
  const std::uint64_t granule = limits_.granule_bytes;
  const double bytes =
      static_cast<double>(num_requests) * static_cast<double>((bytes_each + granule - 1) / granule * granule);
  double cost = bucket->latency_nanoseconds;
  if (bucket->bytes_per_second > 0) cost += bytes / bucket->bytes_per_second * kSecond;
  const std::lock_guard lock(bucket->mutex);
  bucket->busy_until = std::max(bucket->busy_until, static_cast<double>(clock_() - kBurstNanoseconds)) + cost;
  return static_cast<std::int64_t>(bucket->busy_until);
}

void BandwidthLimit::wait(Bucket* bucket, std::int64_t until) {
  const std::int64_t now = clock_();
  if (until - now < kMinSleepNanoseconds) return;
  sleep_until_(until);
  bucket->slept += std::max<std::int64_t>(clock_() - now, 0);
}

}  // namespace mtrains
