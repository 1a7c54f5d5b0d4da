#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "check.h"
#include "mtrains/errors.h"
#include "mtrains/lmdb_walk.h"

using mtrains::CorruptionError;
using mtrains::IoError;
using mtrains::locate_values;
using mtrains::LocatedValue;

namespace {

constexpr std::size_t kPage = 4096;

// A data file written byte by byte: two meta pages, then what the test puts.
class DataFile {
 public:
  explicit DataFile(std::size_t num_pages) : bytes_(num_pages * kPage) {
    std::string name = "test_lmdb_walk.XXXXXX";
    const int fd = ::mkstemp(name.data());
    if (fd >= 0) ::close(fd);
    path_ = name;
  }
  DataFile(const DataFile&) = delete;
  DataFile& operator=(const DataFile&) = delete;
  ~DataFile() { ::unlink(path_.c_str()); }

  template <typename T>
  void put(std::size_t page, std::size_t at, T value) {
    std::memcpy(bytes_.data() + page * kPage + at, &value, sizeof value);
  }

  void meta(std::size_t page, std::uint64_t transaction, std::uint64_t root, unsigned depth,
            std::uint64_t num_entries) {
    put<std::uint64_t>(page, 0, page);
    put<std::uint16_t>(page, 10, 0x08);
    put<std::uint32_t>(page, 16, 0xbeefc0de);
    put<std::uint32_t>(page, 20, 1);
    put<std::uint32_t>(page, 40, kPage);
    put<std::uint16_t>(page, 88 + 6, static_cast<std::uint16_t>(depth));
    put<std::uint64_t>(page, 88 + 32, num_entries);
    put<std::uint64_t>(page, 88 + 40, root);
    put<std::uint64_t>(page, 136, bytes_.size() / kPage - 1);
    put<std::uint64_t>(page, 144, transaction);
  }

  struct Entry {
    std::uint64_t key;
    std::uint64_t page;  // of the value, or of the child
    std::uint32_t size = 0;
  };

  void leaf(std::size_t page, const std::vector<Entry>& entries) {
    begin_page(page, 0x02, entries.size());
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const std::size_t at = node_at(page, i, entries[i].size & 0xffff, entries[i].size >> 16, 0x01);
      put(page, at + 8, __builtin_bswap64(entries[i].key));
      put(page, at + 16, entries[i].page);
    }
  }

  void branch(std::size_t page, const std::vector<Entry>& children) {
    begin_page(page, 0x01, children.size());
    for (std::size_t i = 0; i < children.size(); ++i) {
      const std::size_t at = node_at(page, i, children[i].page & 0xffff, children[i].page >> 16, 0);
      put(page, at + 8, __builtin_bswap64(children[i].key));
      if (i == 0) put<std::uint16_t>(page, at + 6, 0);  // LMDB leaves the first key out
    }
  }

  static constexpr std::size_t node_offset(std::size_t index) { return 3968 - 32 * index; }

  std::vector<LocatedValue> locate(std::uint64_t min_key = 0) const {
    std::ofstream(path_, std::ios::binary).write(bytes_.data(), static_cast<std::streamsize>(bytes_.size()));
    return locate_values(path_, min_key);
  }
  void truncate(std::size_t size) { bytes_.resize(size); }
  const std::string& path() const { return path_; }

 private:
  void begin_page(std::size_t page, std::uint16_t flags, std::size_t num_nodes) {
    put<std::uint64_t>(page, 0, page);
    put<std::uint16_t>(page, 10, flags);
    put<std::uint16_t>(page, 12, static_cast<std::uint16_t>(16 + 2 * num_nodes));
  }
  std::size_t node_at(std::size_t page, std::size_t index, std::uint64_t low, std::uint64_t high,
                      std::uint16_t flags) {
    const std::size_t at = node_offset(index);
    put<std::uint16_t>(page, 16 + 2 * index, static_cast<std::uint16_t>(at));
    put<std::uint16_t>(page, at, static_cast<std::uint16_t>(low));
    put<std::uint16_t>(page, at + 2, static_cast<std::uint16_t>(high));
    put<std::uint16_t>(page, at + 4, flags);
    put<std::uint16_t>(page, at + 6, 8);
    return at;
  }

  std::vector<char> bytes_;
  std::string path_;
};

// A root leaf (page 2) with two values of 5,000 bytes on pages 3-4 and 5-6.
void one_leaf(DataFile& file) {
  file.meta(0, 1, ~std::uint64_t{0}, 0, 0);
  file.meta(1, 2, 2, 1, 2);
  file.leaf(2, {{7, 3, 5000}, {1000, 5, 5000}});
}

// A root branch (page 2) over leaves 3 and 4; values of one page on 5 to 8.
void one_branch(DataFile& file) {
  file.meta(0, 8, 2, 2, 4);
  file.meta(1, 7, ~std::uint64_t{0}, 0, 0);
  file.branch(2, {{0, 3}, {300, 4}});
  file.leaf(3, {{100, 8, 4000}, {200, 7, 4000}});
  file.leaf(4, {{300, 6, 4080}, {~std::uint64_t{0}, 5, 1}});
}

std::string corruption(DataFile& file) {
  try {
    file.locate();
  } catch (const CorruptionError& error) {
    return error.what();
  }
  return "";
}

// Each damage must be refused in words that contain `text` and the path.
void check_refused(void (*make)(DataFile&), const std::function<void(DataFile&)>& damage,
                   const std::string& text) {
  DataFile file(9);
  make(file);
  damage(file);
  const std::string seen = corruption(file);
  if (seen.find(text) == std::string::npos) CHECK_EQ(seen, text);
  CHECK(seen.find(file.path()) != std::string::npos);
}

}  // namespace

TEST(an_empty_tree_gives_nothing) {
  DataFile file(2);
  file.meta(0, 0, ~std::uint64_t{0}, 0, 0);
  file.meta(1, 1, ~std::uint64_t{0}, 0, 0);
  CHECK(file.locate().empty());
}

TEST(a_leaf_gives_keys_offsets_and_sizes) {
  DataFile file(9);
  one_leaf(file);
  const std::vector<LocatedValue> values = file.locate();
  CHECK_EQ(values.size(), 2U);
  CHECK_EQ(values[0].key, 7U);
  CHECK_EQ(values[0].offset, 3 * kPage + 16);
  CHECK_EQ(values[0].size, 5000U);
  CHECK_EQ(values[1].key, 1000U);
  CHECK_EQ(values[1].offset, 5 * kPage + 16);
}

TEST(the_newest_transaction_wins) {
  DataFile file(9);
  one_leaf(file);
  file.meta(0, 3, ~std::uint64_t{0}, 0, 0);
  CHECK(file.locate().empty());
  file.meta(0, 1, ~std::uint64_t{0}, 0, 0);
  CHECK_EQ(file.locate().size(), 2U);
}

TEST(a_branch_is_walked_in_key_order) {
  DataFile file(9);
  one_branch(file);
  const std::vector<LocatedValue> values = file.locate();
  CHECK_EQ(values.size(), 4U);
  for (std::size_t i = 0; i < values.size(); ++i) CHECK_EQ(values[i].offset, (8 - i) * kPage + 16);
  CHECK_EQ(values[3].key, ~std::uint64_t{0});
}

TEST(keys_below_min_key_are_left_out_and_their_subtrees_not_read) {
  DataFile file(9);
  one_branch(file);
  CHECK_EQ(file.locate(101).size(), 3U);
  CHECK_EQ(file.locate(299).size(), 2U);
  file.put<std::uint16_t>(3, 10, 0xbad);  // nobody looks at the first leaf
  CHECK_EQ(file.locate(300).size(), 2U);
  CHECK_EQ(file.locate(301).size(), 1U);
  CHECK_THROWS(file.locate(299), CorruptionError);
}

TEST(other_files_are_refused) {
  CHECK_THROWS(locate_values("test_lmdb_walk.no_such_file"), IoError);
  const auto put_meta = [](std::size_t at, std::uint32_t value) {
    return [=](DataFile& file) { file.put<std::uint32_t>(0, at, value); };
  };
  check_refused(one_leaf, put_meta(16, 0x12345678), "no meta page");
  check_refused(one_leaf, put_meta(20, 2), "data version 2");
  check_refused(one_leaf, put_meta(40, 4097), "page size 4097");
  check_refused(one_leaf, put_meta(40, 0), "page size 0");
  check_refused(one_leaf, [](DataFile& file) { file.put<std::uint32_t>(1, 16, 0); }, "no meta page");
  check_refused(one_leaf, [](DataFile& file) { file.truncate(0); }, "ends inside");
  check_refused(one_leaf, [](DataFile& file) { file.truncate(2 * kPage); }, "points at");
  check_refused(one_leaf, [](DataFile& file) { file.put<std::uint16_t>(1, 92, 0x04); }, "flags 4");
}

TEST(damaged_trees_are_refused) {
  const std::size_t node = DataFile::node_offset(1);
  check_refused(one_leaf, [](DataFile& file) { file.put<std::uint64_t>(2, 0, 9); }, "page 2 names page 9");
  check_refused(one_leaf, [](DataFile& file) { file.put<std::uint16_t>(2, 10, 0x04); }, "page 2 has flags 4");
  check_refused(
      one_leaf, [](DataFile& file) { file.put<std::uint16_t>(2, 12, 5000); }, "5000 bytes of header");
  check_refused(one_leaf, [](DataFile& file) { file.put<std::uint16_t>(2, 12, 16); }, "16 bytes of header");
  check_refused(one_leaf, [](DataFile& file) { file.put<std::uint16_t>(2, 18, 4090); }, "node 1 outside");
  check_refused(
      one_leaf,
      [](DataFile& file) {
        file.put<std::uint16_t>(2, 18, 4080);  // its header is the last thing in the page
        file.put<std::uint16_t>(2, 4086, 8);
      },
      "node 1 outside");
  check_refused(one_leaf, [=](DataFile& file) { file.put<std::uint16_t>(2, node + 6, 7); }, "key of 7 bytes");
  check_refused(
      one_leaf, [=](DataFile& file) { file.put<std::uint16_t>(2, node + 4, 0); }, "key 1000 itself");
  check_refused(
      one_leaf, [=](DataFile& file) { file.put<std::uint16_t>(2, node + 4, 2); }, "key 1000 itself");
  check_refused(
      one_leaf, [=](DataFile& file) { file.put<std::uint64_t>(2, node + 16, 8); }, "2 pages from 8");
  check_refused(
      one_leaf, [=](DataFile& file) { file.put<std::uint64_t>(2, node + 16, 1); }, "2 pages from 1");
  check_refused(one_leaf, [=](DataFile& file) { file.put<std::uint64_t>(2, node + 16, ~0UL); }, "points at");
  check_refused(
      one_leaf, [=](DataFile& file) { file.put<std::uint64_t>(2, node + 8, 0); }, "key 0 after key 7");
  check_refused(one_leaf, [](DataFile& file) { file.meta(1, 2, 2, 1, 3); }, "2 values of 3");
  check_refused(one_leaf, [](DataFile& file) { file.truncate(6 * kPage); }, "the file has 6");
  check_refused(one_leaf, [](DataFile& file) { file.meta(1, 2, 2, 0, 2); }, "0 pages deep");
}

TEST(a_tree_deeper_than_it_says_or_in_a_circle_is_refused) {
  check_refused(
      one_branch, [](DataFile& file) { file.meta(0, 8, 2, 1, 4); }, "page 2 has flags 1 at depth 1 of 1");
  check_refused(one_branch, [](DataFile& file) { file.meta(0, 8, 2, 33, 4); }, "33 pages deep");
  check_refused(
      one_branch, [](DataFile& file) { file.branch(2, {{0, 2}, {300, 2}}); }, "has flags 1 at depth 2");
  check_refused(
      one_branch, [](DataFile& file) { file.branch(2, {{0, 3}, {300, 3}}); }, "key 100 after key 200");
}

TEST_MAIN()
