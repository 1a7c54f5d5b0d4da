// Which reads may still look at a segment: a location may be read only inside a read generation, and a
// condemned segment may be deleted only when every generation that began before its condemnation has ended.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>

namespace mtrains {

// Thread-safe.
class ReadGenerations {
 public:
  // Begins a read; keep the returned token until the bytes have been copied and checked.
  std::uint64_t begin();
  void end(std::uint64_t token);

  // A mark for "now": drained(mark) turns true once every read begun before the mark has ended.
  std::uint64_t mark();
  bool drained(std::uint64_t mark) const;

 private:
  mutable std::mutex mutex_;
  std::uint64_t now_ = 1;                        // GUARDED_BY(mutex_)
  std::map<std::uint64_t, std::uint64_t> open_;  // generation -> reads in progress. GUARDED_BY(mutex_)
};

// Scope guard.
class ReadGeneration {
 public:
  explicit ReadGeneration(ReadGenerations& generations)
      : generations_(generations), token_(generations.begin()) {}
  ~ReadGeneration() { generations_.end(token_); }
  ReadGeneration(const ReadGeneration&) = delete;
  ReadGeneration& operator=(const ReadGeneration&) = delete;

 private:
  ReadGenerations& generations_;
  std::uint64_t token_;
};

}  // namespace mtrains
