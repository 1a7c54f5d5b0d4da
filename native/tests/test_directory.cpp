#include <map>
#include <random>
#include <vector>

#include "check.h"
#include "mtrains/directory.h"

using namespace mtrains;

TEST(untouched_rows_cost_nothing_and_touched_ones_are_found) {
#ifdef __SANITIZE_THREAD__
  const std::uint64_t rows = 10000000000u;  // ThreadSanitizer leaves less of the address space
#else
  const std::uint64_t rows = 1000000000000u;  // 8 TB of entries, all virtual
#endif
  Directory directory(rows);
  CHECK_EQ(directory.allocated_bytes(), std::uint64_t{0});
  std::map<std::uint64_t, Entry> expected;
  std::mt19937_64 random(3);
  for (int i = 0; i < 200; ++i) {
    const std::uint64_t row = i == 0 ? 0 : i == 1 ? rows - 1 : random() % rows;
    expected[row] = 1 + random() % kLocationMask;
    directory.insert(row, expected[row]);
  }
  CHECK(directory.allocated_bytes() <= expected.size() * 4096);
  std::map<std::uint64_t, Entry> found;
  directory.scan(0, rows, [&](std::uint64_t row, Entry entry) {
    found[row] = entry;
    return true;
  });
  CHECK(found == expected);
}

TEST(a_scan_stays_in_its_range_and_stops_when_told) {
  Directory directory(5000);
  for (std::uint64_t row = 0; row < 5000; ++row) directory.insert(row, row + 1);
  std::vector<std::uint64_t> seen;
  directory.scan(511, 1030, [&](std::uint64_t row, Entry) {
    seen.push_back(row);
    return row != 1027;
  });
  CHECK_EQ(seen.size(), std::size_t{1027 - 511 + 1});
  CHECK_EQ(seen.front(), std::uint64_t{511});
}

TEST(an_empty_directory_works) {
  Directory directory(0);
  directory.scan(0, 0, [](std::uint64_t, Entry) { return true; });
  CHECK(!directory.has_unread());
}

TEST(base_pages_fill_only_what_nothing_else_has_set) {
  Directory directory(kBasePageRows + 10);
  const std::uint64_t pages[] = {0, 1}, offsets[] = {4096, 8192};
  directory.set_base(pages, offsets, 2);
  CHECK(directory.has_unread());
  CHECK_EQ(*directory.unread(kBasePageRows + 3), std::uint64_t{8192});
  const std::uint64_t moved[] = {12288};
  directory.set_base(pages + 1, moved, 1);
  CHECK_EQ(*directory.unread(kBasePageRows), std::uint64_t{12288});
  directory.insert(5, 77);
  std::vector<std::uint64_t> locations(kBasePageRows, 9);
  locations[6] = 0;
  directory.fill_page(0, locations.data());
  CHECK_EQ(directory.get(5), Entry{77});
  CHECK_EQ(directory.get(6), Entry{0});
  CHECK_EQ(directory.get(7), Entry{9});
  CHECK(directory.unread(5) == nullptr);
  std::uint64_t page;
  CHECK(directory.next_unread(0, &page));
  CHECK_EQ(page, std::uint64_t{1});
  directory.fill_page(1, locations.data());  // its tail lies beyond the table
  CHECK(!directory.has_unread());
  // A page that is known already and moves is not read again.
  directory.set_base(pages, offsets, 2);
  CHECK(!directory.has_unread());
}

TEST_MAIN()
