#include "mtrains/simulator.h"

#include <algorithm>
#include <cassert>
#include <stdexcept>
#include <string>

namespace mtrains {
namespace {

const SimulationSpec& check(const SimulationSpec& spec, const AccessTrace& trace) {
  if (spec.capacity == 0 || spec.capacity + trace.largest_batch() > 0x7ffffff0u)
    throw std::invalid_argument("a simulation has 1 to 2^31 - 17 slots, got " +
                                std::to_string(spec.capacity));
  if (spec.depth > kMaxDepth)
    throw std::invalid_argument("a simulation has a depth of at most " + std::to_string(kMaxDepth) +
                                ", got " + std::to_string(spec.depth));
  if (spec.evict_after && spec.depth > 0)
    throw std::invalid_argument("evicting after each batch is for depth 0, got depth " +
                                std::to_string(spec.depth));
  if (!(spec.max_pinned_ratio > 0 && spec.max_pinned_ratio <= 1))
    throw std::invalid_argument("the share of pinned slots is in (0, 1], got " +
                                std::to_string(spec.max_pinned_ratio));
  if (!spec.weights.empty() && spec.weights.size() < trace.num_tables())
    throw std::invalid_argument("a trace of " + std::to_string(trace.num_tables()) +
                                " tables and weights of " + std::to_string(spec.weights.size()));
  if (std::find(spec.weights.begin(), spec.weights.end(), 0u) != spec.weights.end())
    throw std::invalid_argument("a row takes one slot at least");
  return spec;
}

// Of the index: no more than there are rows.
std::uint32_t num_slots(const SimulationSpec& spec, const AccessTrace& trace) {
  const std::uint64_t most = spec.capacity + (spec.evict_after ? trace.largest_batch() : 0);
  return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(trace.num_rows(), 1, most));
}

}  // namespace

Simulator::Simulator(const AccessTrace& trace, const SimulationSpec& spec)
    : trace_(trace),
      spec_(check(spec, trace)),
      index_(num_slots(spec, trace), memory_),
      slot_of_row_(trace.num_rows(), kNowhere),
      seen_(trace.num_rows()) {
  std::unique_ptr<EvictionPolicy> policy = make_policy(spec_.policy, spec_.lfu);
  if (spec_.lookahead > 0) {
    auto next_use = std::make_unique<NextUsePolicy>(window_, std::move(policy));
    next_use_ = next_use.get();
    policy = std::move(next_use);
  }
  index_.set_policy(std::move(policy));
  index_.grow(num_slots(spec_, trace_));
  counts_.hits.resize(trace_.num_tables());
  counts_.new_rows.resize(trace_.num_tables());
  counts_.fetches.resize(trace_.num_tables());
  counts_.batches.resize(trace_.num_batches());
  if (spec_.rows_per_block > 0) block_of_row_.resize(trace_.num_rows());
}

SimulationCounts Simulator::run() {
  for (std::uint32_t batch = 0; batch < trace_.num_batches(); ++batch) {
    enter_batches(static_cast<std::uint32_t>(
        std::min<std::uint64_t>(trace_.num_batches(), std::uint64_t{batch} + spec_.lookahead + 1)));
    if (spec_.evict_after) {
      step_after(batch);
    } else {
      step_before(batch);
    }
  }
  return std::move(counts_);
}

void Simulator::next_clock() {
  if (clock_ == kLastClock) {
    index_.rebase(kClockRebase);
    clock_ -= kClockRebase;
  }
  ++clock_;
}

void Simulator::enter_batches(std::uint32_t end) {
  if (next_use_ == nullptr) return;
  while (window_.end() < end) {
    const std::uint32_t batch = window_.enter();
    for (const RowKey row : trace_.batch(batch)) {
      window_.add(&row, 1, [this](RowKey key, std::uint32_t next_use) { changed(key, next_use); });
    }
  }
}

void Simulator::changed(RowKey key, std::uint32_t next_use) {
  const std::uint32_t slot = slot_of_row_[key];
  if (slot != kNowhere) next_use_->next_use_changed(index_, slot, next_use);
}

void Simulator::count(std::uint32_t batch, std::uint32_t row, bool hit) {
  const std::uint32_t table = trace_.table_of(row);
  AccessCounts& of_batch = counts_.batches[batch];
  const std::uint32_t weight = weight_of(row);
  if (hit) {
    ++counts_.hits[table];
    of_batch.hits += weight;
    index_.policy().accessed(index_, slot_of_row_[row]);
  } else if (seen_[row]) {
    ++counts_.fetches[table];
    of_batch.fetches += weight;
    if (spec_.rows_per_block > 0) note_block(row);
  } else {
    ++counts_.new_rows[table];
    of_batch.new_rows += weight;
    seen_[row] = true;
  }
}

// A read of the row's block, unless this batch has read it.
void Simulator::note_block(std::uint32_t row) {
  std::uint32_t& read = read_of_block_[block_of_row_[row]];
  if (read == num_stages_) return;
  read = num_stages_;
  ++counts_.block_reads;
}

void Simulator::insert(std::uint32_t row) {
  slot_of_row_[row] = index_.insert(row, 0, clock_);
  slots_used_ += weight_of(row);
}

bool Simulator::evict_one() {
  const std::int64_t victim = index_.policy().victim(index_, clock_);
  if (victim < 0) return false;
  const auto slot = static_cast<std::uint32_t>(victim);
  const auto row = static_cast<std::uint32_t>(index_.key(slot));
  slot_of_row_[row] = kNowhere;
  slots_used_ -= weight_of(row);
  index_.evict(slot);
  ++counts_.evictions;
  if (spec_.rows_per_block > 0) {
    block_of_row_[row] = static_cast<std::uint32_t>(num_logged_++ / spec_.rows_per_block);
    if (block_of_row_[row] == read_of_block_.size()) read_of_block_.push_back(0);
  }
  return true;
}

void Simulator::make_room(std::uint64_t slots) {
  while (slots_used_ + slots > spec_.capacity && evict_one()) {
  }
}

// --- room made before a batch, as the engine does

// Brings and pins the rows of a batch, if their pins leave the tier with at most pin_limit pinned slots.
bool Simulator::stage(std::uint32_t batch, double pin_limit) {
  const auto rows = trace_.batch(batch);
  std::uint64_t absent = 0;  // slots
  std::uint64_t newly_pinned = 0;
  for (const std::uint32_t row : rows) {
    const std::uint32_t slot = slot_of_row_[row];
    if (slot == kNowhere) {
      absent += weight_of(row);
    } else if (index_.hot(slot).pins() == 0) {
      newly_pinned += weight_of(row);
    }
  }
  if (static_cast<double>(slots_pinned_ + newly_pinned + absent) > pin_limit) return false;
  next_clock();
  ++num_stages_;
  for (const std::uint32_t row : rows) {
    const std::uint32_t slot = slot_of_row_[row];
    if (slot == kNowhere) continue;
    index_.touch(slot, clock_);
    index_.pin(slot);
    count(batch, row, /*hit=*/true);
  }
  make_room(absent);
  assert(slots_used_ + absent <= spec_.capacity);
  for (const std::uint32_t row : rows) {
    if (slot_of_row_[row] != kNowhere) continue;
    count(batch, row, /*hit=*/false);
    insert(row);
    index_.pin(slot_of_row_[row]);
  }
  slots_pinned_ += newly_pinned + absent;
  return true;
}

// A batch with more rows than slots: each piece may displace the one before.
void Simulator::bring_in_pieces(std::uint32_t batch) {
  ++counts_.split_batches;
  const auto rows = trace_.batch(batch);
  for (std::size_t begin = 0, end = 0; begin < rows.size(); begin = end) {
    next_clock();
    ++num_stages_;
    std::uint64_t slots = 0;
    while (end < rows.size() && (end == begin || slots + weight_of(rows[end]) <= spec_.capacity)) {
      slots += weight_of(rows[end++]);
    }
    const auto piece = rows.subspan(begin, end - begin);
    std::uint64_t absent = 0;
    for (const std::uint32_t row : piece) {
      const bool hit = slot_of_row_[row] != kNowhere;
      absent += hit ? 0 : weight_of(row);
      count(batch, row, hit);
      if (hit) index_.touch(slot_of_row_[row], clock_);
    }
    make_room(absent);
    for (const std::uint32_t row : piece) {
      if (slot_of_row_[row] == kNowhere) insert(row);
    }
  }
}

void Simulator::step_before(std::uint32_t batch) {
  const std::uint32_t end = static_cast<std::uint32_t>(
      std::min<std::uint64_t>(trace_.num_batches(), std::uint64_t{batch} + spec_.depth + 1));
  bool pinned = true;
  if (staged_end_ == batch) {
    pinned = stage(batch, spec_.capacity);
    if (!pinned) bring_in_pieces(batch);
    ++staged_end_;
  }
  while (staged_end_ < end && stage(staged_end_, spec_.max_pinned_ratio * spec_.capacity)) ++staged_end_;
  counts_.batches_ahead += staged_end_ - batch - 1;

  next_clock();
  if (pinned) {
    for (const std::uint32_t row : trace_.batch(batch)) {
      const std::uint32_t slot = slot_of_row_[row];
      index_.touch(slot, clock_);
      index_.unpin(slot);
      if (index_.hot(slot).pins() == 0) slots_pinned_ -= weight_of(row);
    }
  }
  if (next_use_ != nullptr)
    window_.leave([this](RowKey key, std::uint32_t next_use) { changed(key, next_use); });
}

// --- rows leave after a batch

void Simulator::step_after(std::uint32_t batch) {
  next_clock();
  ++num_stages_;
  for (const std::uint32_t row : trace_.batch(batch)) {
    const bool hit = slot_of_row_[row] != kNowhere;
    count(batch, row, hit);
    if (hit) {
      index_.touch(slot_of_row_[row], clock_);
    } else {
      insert(row);
    }
  }
  if (next_use_ != nullptr)
    window_.leave([this](RowKey key, std::uint32_t next_use) { changed(key, next_use); });
  next_clock();
  make_room(0);
}

}  // namespace mtrains
