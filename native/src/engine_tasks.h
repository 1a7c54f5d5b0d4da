// How the engine cuts its work into tasks, and times it.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <stdexcept>

#include "mtrains/device.h"

namespace mtrains {

// Work is cut into a few tasks a thread, by positions, so that threads finish together.
inline std::uint64_t positions_per_task(std::uint64_t total, int num_threads) {
  constexpr std::uint64_t kMinimum = 2048;
  return std::max(kMinimum, total / (4 * static_cast<std::uint64_t>(num_threads)) + 1);
}

// Tasks for `count` equal items.
inline std::size_t num_tasks(std::size_t count, int num_threads) {
  return std::min(4 * static_cast<std::size_t>(num_threads), count);
}

// The caller's device, without which a pass over a tier on a device cannot compute.
inline DeviceCompute& required(DeviceCompute* device) {
  if (device == nullptr) throw std::logic_error("the compute tier is on a device, and the caller gave none");
  return *device;
}

// Adds the time of its scope to a total.
class Stopwatch {
 public:
  explicit Stopwatch(double& total) : total_(total), begin_(Clock::now()) {}
  ~Stopwatch() { total_ += std::chrono::duration<double>(Clock::now() - begin_).count(); }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  double& total_;
  Clock::time_point begin_;
};

}  // namespace mtrains
