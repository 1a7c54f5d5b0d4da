#include "mtrains/appended_places.h"

#include <iterator>
#include <utility>

namespace mtrains {
namespace {

constexpr std::size_t kMaxWaiting = 1 << 19;  // rows, 4 MiB

}  // namespace

void AppendedPlaces::add(std::uint64_t epoch, std::uint32_t segment, SegmentPlaces places) {
  const std::lock_guard<std::mutex> lock(waiting_mutex_);
  num_waiting_ += places.size();
  waiting_.push_back({epoch, segment, std::move(places)});
}

bool AppendedPlaces::overdue() {
  const std::lock_guard<std::mutex> lock(waiting_mutex_);
  return num_waiting_ > kMaxWaiting;
}

void AppendedPlaces::settle() {
  const std::lock_guard<std::mutex> lock(mutex_);
  settle_waiting();
}

void AppendedPlaces::settle_waiting() {
  while (true) {
    std::unique_lock<std::mutex> lock(waiting_mutex_);
    if (waiting_.empty()) return;
    const Waiting next = std::move(waiting_.front());
    waiting_.pop_front();
    num_waiting_ -= next.places.size();
    lock.unlock();
    DeltaRun& run = runs_[next.epoch];
    next.places.for_each(next.segment, [&run](RowKey key, Location location) { run.add(key, location); });
  }
}

DeltaRun* AppendedPlaces::join(std::uint64_t epoch) {
  const auto end = runs_.upper_bound(epoch);
  if (runs_.begin() == end) return nullptr;
  DeltaRun& first = runs_.begin()->second;
  for (auto later = std::next(runs_.begin()); later != end; later = runs_.erase(later))
    first.append(later->second);
  return &first;
}

void AppendedPlaces::forget(std::uint64_t epoch) {
  const std::lock_guard<std::mutex> lock(mutex_);
  settle_waiting();
  runs_.erase(runs_.begin(), runs_.upper_bound(epoch));
}

}  // namespace mtrains
