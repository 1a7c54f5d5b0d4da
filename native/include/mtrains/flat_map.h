// An open-addressed hash table of small entries.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace mtrains {

// Linear probing in one array that is at most half full; a removal closes the gap, so probes stay short.
// Pointers to entries hold until the next insert or erase.
//
// Entry: default is an empty place; bool empty() const, std::uint64_t hash() const, bool same(const Entry&).
template <typename Entry>
class FlatMap {
 public:
  std::size_t size() const { return size_; }

  Entry* find(const Entry& wanted) {
    if (places_.empty()) return nullptr;
    Entry& place = places_[probe(wanted)];
    return place.empty() ? nullptr : &place;
  }
  const Entry* find(const Entry& wanted) const { return const_cast<FlatMap*>(this)->find(wanted); }

  // The entry that is the same, or a copy of `entry` put in; and whether it was put in.
  std::pair<Entry*, bool> insert(const Entry& entry) {
    if (2 * (size_ + 1) > places_.size()) grow();
    Entry& place = places_[probe(entry)];
    if (!place.empty()) return {&place, false};
    place = entry;
    ++size_;
    return {&place, true};
  }

  void erase(Entry* entry) {
    std::size_t gap = static_cast<std::size_t>(entry - places_.data());
    for (std::size_t i = next(gap); !places_[i].empty(); i = next(i)) {
      // An entry may fill the gap unless its home lies behind the gap, on the way to where it is.
      const std::size_t home = home_of(places_[i]);
      if (((i - home) & mask()) < ((i - gap) & mask())) continue;
      places_[gap] = places_[i];
      gap = i;
    }
    places_[gap] = Entry{};
    --size_;
  }

  template <typename Visit>
  void each(const Visit& visit) const {
    for (const Entry& place : places_) {
      if (!place.empty()) visit(place);
    }
  }

  void clear() { places_.clear(), size_ = 0; }

 private:
  static constexpr std::size_t kFirstPlaces = 64;

  std::size_t mask() const { return places_.size() - 1; }
  std::size_t next(std::size_t i) const { return (i + 1) & mask(); }
  // The high bits of a product are the well-mixed ones.
  std::size_t home_of(const Entry& entry) const {
    const std::uint64_t product = entry.hash() * 0x9e3779b97f4a7c15u;
    return static_cast<std::size_t>(product ^ (product >> 32)) & mask();
  }
  std::size_t probe(const Entry& wanted) const {
    std::size_t i = home_of(wanted);
    while (!places_[i].empty() && !places_[i].same(wanted)) i = next(i);
    return i;
  }
  void grow() {
    std::vector<Entry> old(places_.empty() ? kFirstPlaces : 2 * places_.size());
    old.swap(places_);
    for (const Entry& entry : old) {
      if (!entry.empty()) places_[probe(entry)] = entry;
    }
  }

  std::vector<Entry> places_;  // a power of two
  std::size_t size_ = 0;
};

}  // namespace mtrains
