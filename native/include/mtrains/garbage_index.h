// Which segments to empty next, kept up as their rows come and go: no call looks at all segments.
//
// Two kinds. A segment born after the newest checkpoint (young) can be deleted as soon as it is empty. What
// an older one loses is held by that checkpoint: emptying it frees nothing before the checkpoint is dropped,
// and costs the less the longer it is put off; but if it is put off beyond the next checkpoint, that one
// holds it too.
#pragma once

#include <cstdint>
#include <vector>

namespace mtrains {

// Numbers of segments in the order of a share that each has, to 1/64 of a segment. Not thread-safe.
class ShareOrder {
 public:
  static constexpr std::uint32_t kWhole = 1u << 16;  // a full segment, the unit of shares

  void set(std::uint32_t number, std::uint32_t share);  // adds it if it is not there
  void erase(std::uint32_t number);                     // does nothing if it is not there

  std::uint64_t size() const { return size_; }
  double sum() const { return static_cast<double>(sum_) / kWhole; }
  double share(std::uint32_t number) const { return static_cast<double>(entries_.at(number).share) / kWhole; }
  // Calls visit(number) in ascending order of shares until it returns false.
  template <typename Visit>
  void scan(const Visit& visit) const {
    for (const std::vector<std::uint32_t>& bucket : buckets_) {
      for (const std::uint32_t number : bucket) {
        if (!visit(number)) return;
      }
    }
  }

 private:
  static constexpr std::uint32_t kBuckets = 64;

  struct Entry {
    std::uint32_t share = 0;
    std::uint32_t position = 0;  // in its bucket
    bool present = false;
  };

  static std::uint32_t bucket_of(std::uint32_t share) { return share / (kWhole / kBuckets); }
  void enter_bucket(std::uint32_t number, Entry& entry);
  void leave_bucket(const Entry& entry);

  std::vector<Entry> entries_;  // by segment number
  std::vector<std::vector<std::uint32_t>> buckets_ = std::vector<std::vector<std::uint32_t>>(kBuckets + 1);
  std::uint64_t sum_ = 0;
  std::uint64_t size_ = 0;
};

// Shares are of a full segment, in [0, 1].
struct GarbagePolicy {
  double target = 0.7;  // of their segments that needed rows (live, or of a checkpoint) should take;
                        // where they do not, old segments with less than least_needed go
  double least_needed = 0.6;
  double young_target = 0.8;  // ... that live rows of young segments should take
  double old_share = 0.2;     // an old segment with less of it live is worth its copy
  std::uint32_t slack = 32;   // segments' worth of other bytes that are left alone: of young ones a half, of
                              // nearly empty ones a quarter
  double full = 0.9;          // emptying fuller young segments gains too little
  bool only_young = false;    // what can be deleted at once
};

// The segments that have live rows. Not thread-safe.
class GarbageIndex {
 public:
  // live <= needed; both of ShareOrder::kWhole.
  void set_young(std::uint32_t number, std::uint32_t live);
  void set_old(std::uint32_t number, std::uint32_t live, std::uint32_t needed);
  void erase(std::uint32_t number);
  void clear() { *this = {}; }

  // At most `limit`, the most worthwhile first; none while enough is live.
  std::vector<std::uint32_t> choose(std::size_t limit, const GarbagePolicy& policy) const;
  double live_share(std::uint32_t number, bool young) const {
    return young ? young_.share(number) : old_by_live_.share(number);
  }

 private:
  using Numbers = std::vector<std::uint32_t>;
  void choose_nearly_empty(std::size_t limit, const GarbagePolicy& policy, Numbers& chosen) const;
  void choose_young(std::size_t limit, const GarbagePolicy& policy, Numbers& chosen) const;
  void choose_least_needed(std::size_t limit, const GarbagePolicy& policy, Numbers& chosen) const;

  ShareOrder young_, old_by_live_, old_by_needed_;
};

}  // namespace mtrains
