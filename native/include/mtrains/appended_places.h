// Where the rows of committed segments lie, by the epoch that appended them, until a checkpoint has noted it.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <vector>

#include "mtrains/delta_run.h"
#include "mtrains/eviction_policy.h"
#include "mtrains/location.h"

namespace mtrains {

// The rows of one segment in the order of their appends, in eight bytes each: a row may come twice, and the
// order of places is not that of appends where layouts alternate.
class SegmentPlaces {
 public:
  // `location` lies in one and the same segment at each call.
  void add(RowKey key, Location location) { rows_.push_back((key << kPlaceBits) | (location & kPlaceMask)); }
  std::size_t size() const { return rows_.size(); }
  template <typename Visit>
  void for_each(std::uint32_t segment, const Visit& visit) const {
    for (const std::uint64_t row : rows_)
      visit(row >> kPlaceBits, make_location(segment, 0, 0) | (row & kPlaceMask));
  }

 private:
  static constexpr int kPlaceBits = kBlockBits + kPositionBits;
  static constexpr std::uint64_t kPlaceMask = (std::uint64_t{1} << kPlaceBits) - 1;

  std::vector<std::uint64_t> rows_;
};

// Thread-safe. Sorting rows takes longer than a pass or a commit may wait, so they wait until some thread
// has time for settle().
class AppendedPlaces {
 public:
  // REQUIRES: the segments of one epoch are added in the order of their ids, which is that of appends.
  void add(std::uint64_t epoch, std::uint32_t segment, SegmentPlaces places);
  // Whether more rows wait than memory should be spent on.
  bool overdue();
  void settle();

  // Calls visit(key, location) for the newest version of each row of epochs <= epoch, ascending by key.
  // The runs of these epochs are one from here on: no checkpoint will be taken of them alone.
  template <typename Visit>
  void for_each(std::uint64_t epoch, const Visit& visit) {
    const std::lock_guard<std::mutex> lock(mutex_);
    settle_waiting();
    if (DeltaRun* run = join(epoch)) run->for_each(visit);
  }
  void forget(std::uint64_t epoch);

 private:
  struct Waiting {
    std::uint64_t epoch;
    std::uint32_t segment;
    SegmentPlaces places;
  };

  void settle_waiting();                // REQUIRES: mutex_
  DeltaRun* join(std::uint64_t epoch);  // REQUIRES: mutex_; null if nothing was appended

  std::mutex mutex_;                        // of runs_; taken before the other
  std::map<std::uint64_t, DeltaRun> runs_;  // by epoch
  std::mutex waiting_mutex_;
  std::deque<Waiting> waiting_;  // oldest first
  std::size_t num_waiting_ = 0;  // rows
};

}  // namespace mtrains
