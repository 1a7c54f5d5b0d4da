#include "mtrains/read_generations.h"

#include <stdexcept>
#include <string>

namespace mtrains {

std::uint64_t ReadGenerations::begin() {
  const std::lock_guard lock(mutex_);
  ++open_[now_];
  return now_;
}

void ReadGenerations::end(std::uint64_t token) {
  const std::lock_guard lock(mutex_);
  const auto found = open_.find(token);
  if (found == open_.end()) {
    throw std::invalid_argument("no read of generation " + std::to_string(token) +
                                " is open: end() takes each token of begin() once");
  }
  if (--found->second == 0) open_.erase(found);
}

std::uint64_t ReadGenerations::mark() {
  const std::lock_guard lock(mutex_);
  return ++now_;
}

bool ReadGenerations::drained(std::uint64_t mark) const {
  const std::lock_guard lock(mutex_);
  return open_.empty() || open_.begin()->first >= mark;
}

}  // namespace mtrains
