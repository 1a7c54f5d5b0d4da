// The log's segments over their lives: which are worth emptying, which may go, what checkpoints need of them.
#include <algorithm>
#include <cassert>
#include <stdexcept>

#include "mtrains/segment_log.h"

namespace mtrains {
namespace {

// How many of the segment's rows some checkpoint consists of. A version born in epoch b and superseded in d
// is needed by checkpoint c if b <= c < d; the oldest checkpoint since b needs the most.
std::uint32_t checkpoint_rows(const Segment& segment, const Epochs& checkpoints) {
  std::uint64_t oldest = 0;
  for (const std::uint64_t c : checkpoints) {
    if (c >= segment.epoch && (oldest == 0 || c < oldest)) oldest = c;
  }
  if (oldest == 0) return 0;
  std::uint32_t rows = segment.rows;
  for (const auto& [newer, count] : segment.superseded) rows -= newer <= oldest ? count : 0;
  return rows;
}

// A segment without rows marks the end of its epoch and is needed by that checkpoint.
bool is_held(const Segment& segment, const Epochs& checkpoints) {
  if (segment.rows > 0) return checkpoint_rows(segment, checkpoints) > 0;
  return std::find(checkpoints.begin(), checkpoints.end(), segment.epoch) != checkpoints.end();
}

}  // namespace

// --- what is worth emptying

void SegmentLog::index(std::uint32_t number) {
  const Segment& segment = segments_[number];
  if (segment.live == 0) {
    garbage_.erase(number);
    empty_.insert(number);
    return;
  }
  if (segment.spared) return;
  // What a checkpoint left empty of its last segment is not live.
  const std::uint64_t full = std::uint64_t{segment.rows} * (max_blocks_ + 1);
  const auto share = [&](std::uint32_t rows) {
    const std::uint64_t part = std::uint64_t{rows} * segment.used_pages * ShareOrder::kWhole / full;
    return static_cast<std::uint32_t>(std::min<std::uint64_t>(part, ShareOrder::kWhole));
  };
  if (segment.epoch > newest_checkpoint_) {
    garbage_.set_young(number, share(segment.live));
  } else {
    const std::uint32_t needed = std::max(segment.live, checkpoint_rows(segment, judged_by_));
    garbage_.set_old(number, share(segment.live), share(needed));
  }
}

void SegmentLog::judge(const Epochs& checkpoints) {
  if (checkpoints == judged_by_) return;
  judged_by_ = checkpoints;
  newest_checkpoint_ = checkpoints.empty() ? 0 : *std::max_element(checkpoints.begin(), checkpoints.end());
  empty_.merge(held_);
  garbage_.clear();
  for (std::uint32_t number = 1; number < segments_.size(); ++number) {
    if (segments_[number].state == SegmentState::kPublished && segments_[number].live > 0) index(number);
  }
}

std::vector<GarbageVictim> SegmentLog::choose_victims(const Epochs& checkpoints, std::size_t limit,
                                                      const GarbagePolicy& policy) {
  judge(checkpoints);
  std::vector<GarbageVictim> victims;
  for (const std::uint32_t number : garbage_.choose(limit, policy)) {
    const Segment& segment = segments_[number];
    victims.push_back({number, segment.id, garbage_.live_share(number, segment.epoch > newest_checkpoint_)});
  }
  return victims;
}

std::optional<Evacuation> SegmentLog::begin_evacuation(std::uint32_t number) const {
  const Segment& segment = segments_.at(number);
  if (segment.state != SegmentState::kPublished) return std::nullopt;
  return Evacuation(reader_, number, segment.id, segment.offset);
}

void SegmentLog::spare(std::uint32_t number) {
  segments_.at(number).spared = true;
  garbage_.erase(number);
}

// --- what may go

std::vector<std::pair<std::uint32_t, std::uint64_t>> SegmentLog::take_deletable(const Epochs& checkpoints,
                                                                                std::size_t limit) {
  judge(checkpoints);
  std::vector<std::pair<std::uint32_t, std::uint64_t>> taken;
  for (auto it = empty_.begin(); it != empty_.end() && taken.size() < limit;) {
    const std::uint32_t number = *it;
    Segment& segment = segments_[number];
    if (is_held(segment, checkpoints)) {
      held_.insert(number);
    } else if (reads_.drained(segment.emptied_at)) {
      segment.state = SegmentState::kDeleting;
      taken.emplace_back(number, segment.id);
    } else {
      ++it;
      continue;
    }
    it = empty_.erase(it);
  }
  return taken;
}

void SegmentLog::deleted(std::uint32_t number) {
  assert(segments_.at(number).state == SegmentState::kDeleting);
  segments_[number] = Segment{};
  changed_.erase(number);
  free_numbers_.push_back(number);
  removed_.push_back(number);
}

void SegmentLog::undelete(std::uint32_t number) {
  if (segments_.at(number).state != SegmentState::kDeleting) return;
  segments_[number].state = SegmentState::kPublished;
  empty_.insert(number);
}

LogUse SegmentLog::use(const Epochs& checkpoints) const {
  LogUse use;
  double total = 0;
  for (const Segment& segment : segments_) {
    if (segment.state != SegmentState::kPublished && segment.state != SegmentState::kDeleting) continue;
    total += kSegmentBytes;
    if (segment.rows == 0) {
      use.held += is_held(segment, checkpoints) ? kSegmentBytes : 0;
      continue;
    }
    const double row_bytes = static_cast<double>(segment.used_pages) / kSegmentPages * kSegmentBytes /
                             static_cast<double>(segment.rows);
    const std::uint32_t needed = std::max(segment.live, checkpoint_rows(segment, checkpoints));
    use.live += segment.live * row_bytes;
    use.held += (needed - segment.live) * row_bytes;
  }
  use.dead = total - use.live - use.held;
  return use;
}

// --- over checkpoints and openings

void SegmentLog::mark_changed(std::uint32_t number) {
  if (segments_[number].changed) return;
  segments_[number].changed = true;
  changed_.insert(number);
}

void SegmentLog::load(std::uint32_t number, const Segment& segment) {
  if (number == 0 || number >= kMaxSegments) throw std::invalid_argument("segment number out of range");
  if (number >= segments_.size()) segments_.resize(number + 1);
  segments_[number] = segment;
}

void SegmentLog::finish_load() {
  free_numbers_.clear();
  for (auto number = static_cast<std::uint32_t>(segments_.size()); number-- > 1;) {
    if (segments_[number].state == SegmentState::kUnused) {
      free_numbers_.push_back(number);
    } else {
      index(number);
    }
  }
}

void SegmentLog::forget(std::uint64_t epoch, std::uint64_t oldest_retained) {
  places_->forget(epoch);
  removed_.clear();
  for (auto it = changed_.begin(); it != changed_.end();) {
    Segment& segment = segments_[*it];
    segment.changed = segment.epoch > epoch;
    // What no retained or later checkpoint can need is counted as superseded at birth.
    std::uint32_t dead = 0;
    std::vector<std::pair<std::uint64_t, std::uint32_t>> kept;
    for (const auto& entry : segment.superseded) {
      if (entry.first > epoch) segment.changed = true;
      if (entry.first <= oldest_retained || entry.first <= segment.epoch) {
        dead += entry.second;
      } else {
        kept.push_back(entry);
      }
    }
    if (dead > 0) kept.emplace_back(segment.epoch, dead);
    segment.superseded = std::move(kept);
    it = segment.changed ? std::next(it) : changed_.erase(it);
  }
}

}  // namespace mtrains
