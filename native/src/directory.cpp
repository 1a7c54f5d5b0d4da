#include "mtrains/directory.h"

#include <algorithm>

namespace mtrains {

Directory::Directory(std::uint64_t num_rows)
    : num_rows_(num_rows),
      entries_(num_rows * 8, /*huge=*/false),
      touched_((num_rows / kChunkRows / 64 + 1) * 8, /*huge=*/false) {}

void Directory::scan(std::uint64_t begin, std::uint64_t end,
                     const std::function<bool(std::uint64_t, Entry)>& visit) const {
  end = std::min(end, num_rows_);
  const std::uint64_t* words = touched_.as<std::uint64_t>();
  for (std::uint64_t row = begin; row < end;) {
    const std::uint64_t chunk = row / kChunkRows;
    const std::uint64_t word = words[chunk / 64] >> (chunk % 64);
    if (word == 0) {
      row = (chunk / 64 + 1) * 64 * kChunkRows;
      continue;
    }
    const std::uint64_t skipped = static_cast<std::uint64_t>(__builtin_ctzll(word));
    if (skipped > 0) {
      row = (chunk + skipped) * kChunkRows;
      continue;
    }
    const std::uint64_t chunk_end = std::min(end, (chunk + 1) * kChunkRows);
    for (; row < chunk_end; ++row) {
      const Entry entry = get(row);
      if (entry != 0 && !visit(row, entry)) return;
    }
  }
}

void Directory::set_base(const std::uint64_t* pages, const std::uint64_t* offsets, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    if (!base_known_) {
      unread_[pages[i]] = offsets[i];
    } else if (const auto it = unread_.find(pages[i]); it != unread_.end()) {
      it->second = offsets[i];
    }
  }
  base_known_ = true;
}

bool Directory::next_unread(std::uint64_t page, std::uint64_t* found) const {
  const auto it = unread_.lower_bound(page);
  if (it == unread_.end()) return false;
  *found = it->first;
  return true;
}

void Directory::fill_page(std::uint64_t page, const std::uint64_t* locations) {
  const std::uint64_t first = page * kBasePageRows;
  const std::uint64_t count = std::min(kBasePageRows, num_rows_ - std::min(first, num_rows_));
  for (std::uint64_t i = 0; i < count; ++i) {
    if (locations[i] != 0 && get(first + i) == 0) insert(first + i, locations[i]);
  }
  unread_.erase(page);
}

}  // namespace mtrains
