#include "mtrains/lmdb_walk.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <system_error>
#include <utility>

#include "mtrains/errors.h"

namespace mtrains {
namespace {

// The layout of a data file of LMDB 0.9 on a 64-bit machine, in its own byte order. Source: mdb.c of 0.9.36,
// struct MDB_page, MDB_meta, MDB_db and MDB_node. Sizes and positions in bytes.
static_assert(std::endian::native == std::endian::little, "only files of little-endian machines are read");
constexpr std::size_t kPageHeader = 16;  // number (8), padding (2), flags (2), lower (2), upper (2)
constexpr std::size_t kPageFlags = 10;
constexpr std::size_t kPageLower = 12;
constexpr std::size_t kNodeHeader = 8;  // size or page number (4), flags or its high part (2), key size (2)
constexpr std::size_t kMetaMagic = 16;
constexpr std::size_t kMetaVersion = 20;
constexpr std::size_t kMetaPageSize = 40;  // the otherwise unused field of the free list's record
constexpr std::size_t kMetaMain = 88;      // the main database's record
constexpr std::size_t kMetaLastPage = 136;
constexpr std::size_t kMetaTransaction = 144;
constexpr std::size_t kMetaBytes = 152;

constexpr std::uint32_t kMagic = 0xbeefc0de;
constexpr std::uint32_t kVersion = 1;
constexpr std::uint16_t kBranchPage = 0x01;
constexpr std::uint16_t kLeafPage = 0x02;
constexpr std::uint16_t kMetaPage = 0x08;
constexpr std::uint16_t kDirtyPage = 0x10;  // left set on disk by some writes, without meaning there
constexpr std::uint16_t kBigValue = 0x01;
constexpr std::uint64_t kNoRoot = ~std::uint64_t{0};
constexpr std::size_t kKeyBytes = 8;
constexpr unsigned kMaxDepth = 32;  // of a cursor's stack in LMDB

using Page = std::vector<unsigned char>;

template <typename T>
T field(const Page& page, std::size_t at) {
  T value;
  std::memcpy(&value, page.data() + at, sizeof value);
  return value;
}

class DataFile {
 public:
  explicit DataFile(const std::string& path) : path_(path), fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (fd_ < 0) fail_io("open", errno);
  }
  DataFile(const DataFile&) = delete;
  DataFile& operator=(const DataFile&) = delete;
  ~DataFile() {
    if (fd_ >= 0) ::close(fd_);
  }

  std::uint64_t size() const {
    struct stat status{};
    if (::fstat(fd_, &status) != 0) fail_io("fstat", errno);
    return static_cast<std::uint64_t>(status.st_size);
  }

  void read(std::uint64_t offset, std::size_t size, Page* page) const {
    page->resize(size);
    std::size_t done = 0;
    while (done < size) {
      const ssize_t result =
          ::pread(fd_, page->data() + done, size - done, static_cast<off_t>(offset + done));
      if (result < 0 && errno == EINTR) continue;
      if (result < 0) fail_io("pread", errno);
      if (result == 0) fail("it ends inside the page at offset " + std::to_string(offset));
      done += static_cast<std::size_t>(result);
    }
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw CorruptionError(path_ + " is not a sound LMDB 0.9 file: " + what);
  }

 private:
  [[noreturn]] void fail_io(const char* call, int code) const {
    throw IoError(code, std::string(call) + " of " + path_ + " failed: " +
                            std::generic_category().message(code) + " (errno " + std::to_string(code) + ")");
  }

  std::string path_;
  int fd_;
};

// What a committed transaction says of the file.
struct Snapshot {
  std::uint64_t transaction = 0;
  std::uint64_t root = kNoRoot;
  std::uint64_t num_entries = 0;
  std::uint64_t last_page = 0;
  std::uint16_t depth = 0;
  std::uint16_t flags = 0;  // of the main database

  bool operator==(const Snapshot&) const = default;
};

class TreeWalk {
 public:
  TreeWalk(const std::string& path, std::uint64_t min_key, std::uint64_t max_key)
      : file_(path),
        file_bytes_(file_.size()),
        min_key_(min_key),
        max_key_(max_key),
        page_size_(read_page_size()) {}

  std::vector<LocatedValue> run() {
    snapshot_ = read_newest_snapshot();
    if (snapshot_.root == kNoRoot) return {};
    if (snapshot_.flags != 0) {
      file_.fail("its main database has flags " + std::to_string(snapshot_.flags) + ", must be plain");
    }
    if (snapshot_.depth == 0 || snapshot_.depth > kMaxDepth) {
      file_.fail("its tree is said to be " + std::to_string(snapshot_.depth) + " pages deep");
    }
    walk(snapshot_.root, 1);
    if (min_key_ == 0 && max_key_ == ~std::uint64_t{0} && located_.size() != snapshot_.num_entries) {
      file_.fail("its tree holds " + std::to_string(located_.size()) + " values of " +
                 std::to_string(snapshot_.num_entries));
    }
    return std::move(located_);
  }

 private:
  struct Node {
    std::uint32_t low;    // value bytes; of a branch: the low half of the page number
    std::uint16_t flags;  // of a branch: the high part of the page number
    std::uint16_t key_bytes;
    std::size_t key_at;  // in the page
  };

  std::size_t read_page_size() const {
    Page meta;
    file_.read(0, kMetaBytes, &meta);
    check_meta(meta);
    const auto size = field<std::uint32_t>(meta, kMetaPageSize);
    if (!std::has_single_bit(size) || size < 512 || size > 65536)
      file_.fail("page size " + std::to_string(size));
    return size;
  }

  void check_meta(const Page& meta) const {
    const auto magic = field<std::uint32_t>(meta, kMetaMagic);
    const auto version = field<std::uint32_t>(meta, kMetaVersion);
    if (magic != kMagic || (field<std::uint16_t>(meta, kPageFlags) & kMetaPage) == 0)
      file_.fail("no meta page of that version");
    if (version != kVersion) {
      file_.fail("data version " + std::to_string(version) + ", must be 1 (open it with lib_version=0)");
    }
  }

  Snapshot read_snapshot(std::uint64_t number) const {
    Page meta;
    file_.read(number * page_size_, kMetaBytes, &meta);
    check_meta(meta);
    return {.transaction = field<std::uint64_t>(meta, kMetaTransaction),
            .root = field<std::uint64_t>(meta, kMetaMain + 40),
            .num_entries = field<std::uint64_t>(meta, kMetaMain + 32),
            .last_page = field<std::uint64_t>(meta, kMetaLastPage),
            .depth = field<std::uint16_t>(meta, kMetaMain + 6),
            .flags = field<std::uint16_t>(meta, kMetaMain + 4)};
  }

  // Another process may commit meanwhile, which rewrites the older of the two meta pages: a mixture of before
  // and after does not read the same twice.
  Snapshot read_newest_snapshot() const {
    const auto read_both = [this] { return std::pair(read_snapshot(0), read_snapshot(1)); };
    auto before = read_both(), now = read_both();
    while (now != before) {
      before = now;
      now = read_both();
    }
    return now.second.transaction > now.first.transaction ? now.second : now.first;
  }

  // Visits the subtree of page `number`, which is at `depth` (1: the root).
  void walk(std::uint64_t number, unsigned depth) {
    check_page_range(number, 1);
    Page page;
    file_.read(number * page_size_, page_size_, &page);
    if (field<std::uint64_t>(page, 0) != number)
      fail(number, "names page " + std::to_string(field<std::uint64_t>(page, 0)));
    const auto kind = static_cast<std::uint16_t>(field<std::uint16_t>(page, kPageFlags) & ~kDirtyPage);
    const bool is_leaf = depth == snapshot_.depth;
    if (kind != (is_leaf ? kLeafPage : kBranchPage)) {
      fail(number, "has flags " + std::to_string(kind) + " at depth " + std::to_string(depth) + " of " +
                       std::to_string(snapshot_.depth));
    }
    const std::size_t num_nodes = count_nodes(page, number);
    if (is_leaf) {
      for (std::size_t i = 0; i < num_nodes; ++i) locate(page, number, i);
    } else {
      for (std::size_t i = 0; i < num_nodes; ++i) descend(page, number, i, num_nodes, depth);
    }
  }

  std::size_t count_nodes(const Page& page, std::uint64_t number) const {
    const std::size_t lower = field<std::uint16_t>(page, kPageLower);
    if (lower <= kPageHeader || lower > page_size_ || lower % 2 != 0) {
      fail(number, "has " + std::to_string(lower) + " bytes of header");
    }
    return (lower - kPageHeader) / 2;
  }

  // `tail_bytes`: what follows the key inside the page.
  Node node(const Page& page, std::uint64_t number, std::size_t index, std::size_t tail_bytes) const {
    const std::size_t at = field<std::uint16_t>(page, kPageHeader + 2 * index);
    if (at + kNodeHeader > page_size_) fail(number, "has node " + std::to_string(index) + " outside of it");
    const Node node = {.low = field<std::uint32_t>(page, at),
                       .flags = field<std::uint16_t>(page, at + 4),
                       .key_bytes = field<std::uint16_t>(page, at + 6),
                       .key_at = at + kNodeHeader};
    if (node.key_at + node.key_bytes + tail_bytes > page_size_) {
      fail(number, "has node " + std::to_string(index) + " outside of it");
    }
    return node;
  }

  std::uint64_t key(const Page& page, std::uint64_t number, const Node& node) const {
    if (node.key_bytes != kKeyBytes)
      fail(number, "has a key of " + std::to_string(node.key_bytes) + " bytes, must be 8");
    return __builtin_bswap64(field<std::uint64_t>(page, node.key_at));
  }

  // Child i holds the keys from key i up to key i + 1; key 0 of a branch is not used.
  void descend(const Page& page, std::uint64_t number, std::size_t index, std::size_t num_nodes,
               unsigned depth) {
    if (index + 1 < num_nodes && key(page, number, node(page, number, index + 1, 0)) <= min_key_) return;
    const Node child = node(page, number, index, 0);
    if (index > 0 && key(page, number, child) > max_key_) return;
    walk(child.low | std::uint64_t{child.flags} << 32, depth + 1);
  }

  void locate(const Page& page, std::uint64_t number, std::size_t index) {
    Node entry = node(page, number, index, 0);
    const std::uint64_t entry_key = key(page, number, entry);
    if (entry_key < min_key_ || entry_key > max_key_) return;
    entry = node(page, number, index, sizeof(std::uint64_t));
    if (entry.flags != kBigValue) {
      fail(number,
           "holds the value of key " + std::to_string(entry_key) + " itself, must be an overflow chain");
    }
    if (num_seen_ != 0 && entry_key <= last_key_) {
      fail(number, "has key " + std::to_string(entry_key) + " after key " + std::to_string(last_key_));
    }
    ++num_seen_;
    last_key_ = entry_key;
    const auto first = field<std::uint64_t>(page, entry.key_at + kKeyBytes);
    check_page_range(first, (kPageHeader + entry.low + page_size_ - 1) / page_size_);
    located_.push_back({.key = entry_key, .offset = first * page_size_ + kPageHeader, .size = entry.low});
  }

  void check_page_range(std::uint64_t first, std::uint64_t num_pages) const {
    const bool committed =
        first >= 2 && first <= snapshot_.last_page && num_pages <= snapshot_.last_page - first + 1;
    if (committed && first + num_pages <= file_bytes_ / page_size_) return;
    file_.fail("a node points at " + std::to_string(num_pages) + " pages from " + std::to_string(first) +
               ", the last is " + std::to_string(snapshot_.last_page) + ", the file has " +
               std::to_string(file_bytes_ / page_size_));
  }

  [[noreturn]] void fail(std::uint64_t number, const std::string& what) const {
    file_.fail("page " + std::to_string(number) + " " + what);
  }

  DataFile file_;
  std::uint64_t file_bytes_;
  std::uint64_t min_key_;
  std::uint64_t max_key_;
  std::size_t page_size_;
  Snapshot snapshot_;
  std::uint64_t num_seen_ = 0;
  std::uint64_t last_key_ = 0;
  std::vector<LocatedValue> located_;
};

}  // namespace

std::vector<LocatedValue> locate_values(const std::string& path, std::uint64_t min_key,
                                        std::uint64_t max_key) {
  return TreeWalk(path, min_key, max_key).run();
}

}  // namespace mtrains
