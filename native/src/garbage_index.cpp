#include "mtrains/garbage_index.h"

#include <algorithm>

namespace mtrains {

void ShareOrder::set(std::uint32_t number, std::uint32_t share) {
  if (number >= entries_.size()) entries_.resize(number + std::size_t{1});
  Entry& entry = entries_[number];
  sum_ += share;
  if (!entry.present) {
    entry = {.share = share, .position = 0, .present = true};
    ++size_;
    enter_bucket(number, entry);
    return;
  }
  sum_ -= entry.share;
  const bool moves = bucket_of(share) != bucket_of(entry.share);
  if (moves) leave_bucket(entry);
  entry.share = share;
  if (moves) enter_bucket(number, entry);
}

void ShareOrder::erase(std::uint32_t number) {
  if (number >= entries_.size() || !entries_[number].present) return;
  Entry& entry = entries_[number];
  sum_ -= entry.share;
  --size_;
  leave_bucket(entry);
  entry = {};
}

void ShareOrder::enter_bucket(std::uint32_t number, Entry& entry) {
  std::vector<std::uint32_t>& bucket = buckets_[bucket_of(entry.share)];
  entry.position = static_cast<std::uint32_t>(bucket.size());
  bucket.push_back(number);
}

void ShareOrder::leave_bucket(const Entry& entry) {
  std::vector<std::uint32_t>& bucket = buckets_[bucket_of(entry.share)];
  entries_[bucket.back()].position = entry.position;
  bucket[entry.position] = bucket.back();
  bucket.pop_back();
}

void GarbageIndex::set_young(std::uint32_t number, std::uint32_t live) { young_.set(number, live); }

void GarbageIndex::set_old(std::uint32_t number, std::uint32_t live, std::uint32_t needed) {
  old_by_live_.set(number, live);
  old_by_needed_.set(number, needed);
}

void GarbageIndex::erase(std::uint32_t number) {
  young_.erase(number);
  old_by_live_.erase(number);
  old_by_needed_.erase(number);
}

std::vector<std::uint32_t> GarbageIndex::choose(std::size_t limit, const GarbagePolicy& policy) const {
  Numbers chosen;
  // The cheapest first: each takes of a bounded share of IO.
  if (!policy.only_young) choose_nearly_empty(limit, policy, chosen);
  choose_young(limit, policy, chosen);
  if (!policy.only_young && chosen.empty()) choose_least_needed(limit, policy, chosen);
  return chosen;
}

void GarbageIndex::choose_nearly_empty(std::size_t limit, const GarbagePolicy& policy,
                                       Numbers& chosen) const {
  double not_live = static_cast<double>(old_by_live_.size()) - old_by_live_.sum();
  old_by_live_.scan([&](std::uint32_t number) {
    const double share = old_by_live_.share(number);
    if (chosen.size() >= limit || share >= policy.old_share || not_live <= policy.slack / 4.0) return false;
    chosen.push_back(number);
    not_live -= 1.0 - share;
    return true;
  });
}

void GarbageIndex::choose_young(std::size_t limit, const GarbagePolicy& policy, Numbers& chosen) const {
  const double live = young_.sum();
  double count = static_cast<double>(young_.size());
  young_.scan([&](std::uint32_t number) {
    const double share = young_.share(number);
    if (chosen.size() >= limit || share >= policy.full || live >= policy.young_target * count ||
        count - live <= policy.slack / 2.0) {
      return false;
    }
    chosen.push_back(number);
    // Its rows go to a new segment, packed; so many segments hold the same live rows.
    count += share - 1.0;
    return true;
  });
}

void GarbageIndex::choose_least_needed(std::size_t limit, const GarbagePolicy& policy,
                                       Numbers& chosen) const {
  const double needed = young_.sum() + old_by_needed_.sum();
  double count = static_cast<double>(young_.size() + old_by_needed_.size());
  old_by_needed_.scan([&](std::uint32_t number) {
    const double share = old_by_needed_.share(number);
    if (chosen.size() >= limit || share >= policy.least_needed || needed >= policy.target * count ||
        count - needed <= policy.slack) {
      return false;
    }
    chosen.push_back(number);
    count += share - 1.0;
    return true;
  });
}

}  // namespace mtrains
