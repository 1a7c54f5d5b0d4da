// Every engine under every fault that a device, a kernel or a container can make: the same blocks are
// accepted, the same are refused, the same errors come up.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "mtrains/block_engines.h"
#include "mtrains/errors.h"
#include "mtrains/segment_format.h"

using namespace mtrains;

namespace {

constexpr std::uint32_t kSegments = 3;
constexpr std::uint32_t kBlocks = 40;  // of each
constexpr std::uint32_t kStride = 256;

std::vector<std::byte> sealed(std::uint64_t segment_id) {
  SegmentHeader header;
  header.segment_id = segment_id;
  header.epoch = 1;
  header.number = static_cast<std::uint32_t>(segment_id);
  std::vector<std::byte> image(kSegmentImageBytes);
  for (std::uint32_t b = 0; b < kBlocks; ++b) {
    BlockContents block;
    block.stride = kStride;
    for (std::uint32_t i = 0; i < rows_per_block(kStride); ++i) block.rows.push_back(b * 100 + i);
    header.blocks.push_back(block);
    std::byte* data = block_in_image(image.data(), b);
    for (std::size_t i = 0; i < kBlockDataBytes; ++i)
      data[i] = static_cast<std::byte>((segment_id * 131 + b * 31 + i * 7) >> 2);
  }
  seal_image(header, image.data());
  return image;
}

// Segments 1 to kSegments, one after another.
class SegmentFile {
 public:
  SegmentFile() {
    std::string name = "test_read_faults.XXXXXX";
    fd_ = ::mkstemp(name.data());
    if (fd_ < 0) throw std::runtime_error("mkstemp failed");
    path_ = std::filesystem::absolute(name);
    for (std::uint32_t s = 1; s <= kSegments; ++s) write(s, sealed(s), kSegmentImageBytes);
  }
  SegmentFile(const SegmentFile&) = delete;
  SegmentFile& operator=(const SegmentFile&) = delete;
  ~SegmentFile() {
    ::close(fd_);
    ::unlink(path_.c_str());
  }

  void write(std::uint32_t place, const std::vector<std::byte>& image, std::size_t size) {
    const auto at = static_cast<off_t>((place - 1) * kSegmentImageBytes);
    if (::pwrite(fd_, image.data(), size, at) != static_cast<ssize_t>(size))
      throw std::runtime_error("pwrite failed");
  }
  const std::string& path() const { return path_; }

 private:
  int fd_;
  std::string path_;
};

std::uint64_t offset_of(std::uint32_t segment, std::uint32_t block) {
  return (segment - 1) * kSegmentImageBytes + (kSegmentPages - 1 - block) * kPageBytes;
}
std::uint64_t page_of(const BlockRead& asked) { return asked.offset / kPageBytes; }

// Counts how often each place was asked for, so that a fault can spare the attempts after it.
class Attempts {
 public:
  int next(std::uint64_t offset) {
    const std::lock_guard lock(mutex_);
    return ++count_[offset];
  }

 private:
  std::mutex mutex_;
  std::map<std::uint64_t, int> count_;  // GUARDED_BY(mutex_)
};

struct Outcome {
  std::string error;                                           // without the engine's name
  std::set<std::pair<std::uint32_t, std::uint32_t>> accepted;  // (segment, block) with the right trailer
  std::size_t wrong = 0;                                       // accepted, but not what was written
  bool operator==(const Outcome&) const = default;
};

std::string without(std::string text, const std::string& part) {
  const std::size_t at = text.find(part);
  return at == std::string::npos ? text : text.replace(at, part.size(), "");
}

// Reads every block of every segment, several at once and in extents of 1 to 3 blocks.
Outcome read_everything(const std::string& path, const std::string& engine, const ReadFilter& filter) {
  // The engine is probed by a read of block 0 of the file, which no fault is meant for.
  const auto reader = open_block_reader(path, engine, 16, [&](const BlockRead& asked, int result) {
    return asked.offset == 0 || !filter ? result : filter(asked, result);
  });
  const std::size_t num_pages = kSegments * kBlocks;
  const std::unique_ptr<std::byte, decltype(&std::free)> buffer(
      static_cast<std::byte*>(std::aligned_alloc(kPageBytes, num_pages * kPageBytes)), std::free);
  std::memset(buffer.get(), 0xee, num_pages * kPageBytes);
  std::vector<BlockRead> reads;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> blocks;  // in the order of the buffer
  for (std::uint32_t s = 1; s <= kSegments; ++s) {
    for (std::uint32_t first = 0; first < kBlocks;) {
      const std::uint32_t count = std::min(1 + first % 3, kBlocks - first);
      const std::uint32_t last = first + count - 1;  // of the lowest offset
      reads.push_back({offset_of(s, last), buffer.get() + blocks.size() * kPageBytes,
                       count * static_cast<std::uint32_t>(kPageBytes)});
      for (std::uint32_t i = 0; i < count; ++i) blocks.emplace_back(s, last - i);
      first += count;
    }
  }
  std::reverse(reads.begin(), reads.end());
  Outcome outcome;
  try {
    reader->read(reads);
  } catch (const IoError& error) {
    CHECK(std::string(error.what()).find("(errno " + std::to_string(error.code) + ")") != std::string::npos ||
          error.code == ENODATA);
    outcome.error = without(error.what(), " (io engine " + engine + ")");
    CHECK(outcome.error.find(path) != std::string::npos);
    CHECK(outcome.error.find("at offset ") != std::string::npos);
    CHECK(outcome.error.find("; ") != std::string::npos);  // what to do
  }
  std::map<std::uint32_t, std::vector<std::byte>> written;
  for (std::uint32_t s = 1; s <= kSegments; ++s) written[s] = sealed(s);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const auto [segment, block] = blocks[i];
    const std::byte* data = buffer.get() + i * kPageBytes;
    if (!check_block(data, segment, block)) continue;
    outcome.accepted.insert(blocks[i]);
    outcome.wrong += std::memcmp(data, block_in_image(written.at(segment).data(), block), kPageBytes) != 0;
  }
  return outcome;
}

struct Fault {
  std::string name;
  // A new one for each engine.
  std::function<ReadFilter()> filter;
  std::size_t refused = 0;  // blocks
  std::string error = "";   // part of it
};

bool every(std::uint64_t n, const BlockRead& asked) { return page_of(asked) % n == 1; }

// Fails the first attempts at every third place with a result.
Fault transient(const std::string& name, const std::function<int(const BlockRead&)>& result) {
  return {name, [result] {
            const auto attempts = std::make_shared<Attempts>();
            return [attempts, result](const BlockRead& asked, int done) {
              if (page_of(asked) % 3 == 0 || attempts->next(asked.offset) > 3) return done;
              const int faulty = std::min(result(asked), done);
              const auto kept = static_cast<std::uint32_t>(std::max(faulty, 0)) / kPageBytes * kPageBytes;
              std::memset(asked.buffer + kept, 0xdd, asked.size - kept);
              return faulty;
            };
          }};
}

// Lasts, and changes what arrived.
Fault damage(const std::string& name, std::size_t refused,
             const std::function<void(const BlockRead&)>& change) {
  return {name,
          [change] {
            return [change](const BlockRead& asked, int done) {
              if (done > 0) change(asked);
              return done;
            };
          },
          refused};
}

Fault lasting(const std::string& name, int result, std::size_t refused, const std::string& error) {
  return {name,
          [result] {
            return [result](const BlockRead& asked, int done) {
              if (asked.offset != offset_of(2, 8)) return done;
              std::memset(asked.buffer, 0xdd, asked.size);
              return result;
            };
          },
          refused, error};
}

// This block of segment 2 in the buffer of a read, if it is part of it.
std::byte* found(const BlockRead& asked, std::uint32_t block) {
  const std::uint64_t at = offset_of(2, block);
  return asked.offset <= at && at < asked.offset + asked.size ? asked.buffer + (at - asked.offset) : nullptr;
}

std::vector<Fault> faults() {
  std::vector<Fault> all = {
      {"none", [] { return ReadFilter(); }},
      transient("short by half a block",
                [](const BlockRead& asked) { return static_cast<int>(asked.size) - 2048; }),
      transient("short to a few bytes", [](const BlockRead&) { return 100; }),
      transient("nothing", [](const BlockRead&) { return 0; }),
      transient("EINTR", [](const BlockRead&) { return -EINTR; }),
      transient("EAGAIN", [](const BlockRead&) { return -EAGAIN; }),
      lasting("EIO", -EIO, 0, "Input/output error (errno 5)"),
      lasting("ENXIO", -ENXIO, 0, "(errno 6)"),
      lasting("EAGAIN without end", -EAGAIN, 0, "times in a row"),
      lasting("nothing without end", 0, 0, "times in a row"),
      damage("a flipped byte", kBlocks,
             [](const BlockRead& asked) {
               for (std::uint32_t b = 0; b < kBlocks; ++b) {
                 if (std::byte* block = found(asked, b)) block[(b * 911) % kPageBytes] ^= std::byte{0x10};
               }
             }),
      damage("another block of the segment", 2,
             [](const BlockRead& asked) {
               std::vector<std::byte> image = sealed(2);
               if (std::byte* block = found(asked, 4))
                 std::memcpy(block, block_in_image(image.data(), 5), kPageBytes);
               if (std::byte* block = found(asked, 5))
                 std::memcpy(block, block_in_image(image.data(), 4), kPageBytes);
             }),
      damage("the same block of another segment", 1,
             [](const BlockRead& asked) {
               std::vector<std::byte> image = sealed(1);
               if (std::byte* block = found(asked, 11))
                 std::memcpy(block, block_in_image(image.data(), 11), kPageBytes);
             }),
      damage("a torn block", 1,
             [](const BlockRead& asked) {
               std::vector<std::byte> image = sealed(77);  // what was there before
               if (std::byte* block = found(asked, 20))
                 std::memcpy(block + 1024, block_in_image(image.data(), 20) + 1024, 3072);
             }),
      damage("zeros", 1,
             [](const BlockRead& asked) {
               if (std::byte* block = found(asked, 0)) std::memset(block, 0, kPageBytes);
             }),
      damage("late completions", 0,
             [](const BlockRead& asked) {
               if (every(5, asked)) std::this_thread::sleep_for(std::chrono::milliseconds(2));
             }),
  };
  return all;
}

std::vector<std::string> engines(const std::string& path) {
  std::vector<std::string> working;
  for (const std::string name : {"uring", "pread", "mmap"}) {
    try {
      BlockReader::open(path, name);
      working.push_back(name);
    } catch (const IoError& error) {
      std::fprintf(stderr, "not tested: %s\n", error.what());
    }
  }
  return working;
}

// Fails with the fault's and the engine's name.
void expect(bool condition, const std::string& fault, const std::string& engine, const std::string& what) {
  if (!condition) mtrains::check::fail(__FILE__, __LINE__, fault + ", " + engine + ": " + what);
}

}  // namespace

TEST(every_fault_is_resumed_or_detected_by_every_engine_alike) {
  const SegmentFile file;
  const std::vector<std::string> names = engines(file.path());
  for (const Fault& fault : faults()) {
    std::vector<Outcome> outcomes;
    for (const std::string& engine : names) {
      outcomes.push_back(read_everything(file.path(), engine, fault.filter()));
      const Outcome& outcome = outcomes.back();
      expect(outcome.wrong == 0, fault.name, engine, "a wrong block was accepted");
      expect(outcome == outcomes.front(), fault.name, engine,
             "other blocks or another error: " + outcome.error);
      if (fault.error.empty()) {
        expect(outcome.error.empty(), fault.name, engine, outcome.error);
        expect(outcome.accepted.size() == kSegments * kBlocks - fault.refused, fault.name, engine,
               std::to_string(outcome.accepted.size()) + " blocks accepted");
      } else {
        expect(outcome.error.find(fault.error) != std::string::npos, fault.name, engine, outcome.error);
        expect(outcome.error.find("at offset " + std::to_string(offset_of(2, 8))) != std::string::npos,
               fault.name, engine, outcome.error);
        // All other reads have finished.
        expect(outcome.accepted.size() >= kSegments * kBlocks - 3, fault.name, engine,
               std::to_string(outcome.accepted.size()) + " blocks accepted");
      }
    }
  }
}

// A device that was writing when the power went: the first pages are new, the rest is what was there before.
TEST(of_a_torn_segment_the_new_blocks_are_read_and_the_old_ones_refused) {
  SegmentFile file;
  file.write(2, sealed(9), (kSegmentPages - kBlocks / 2) * kPageBytes);  // blocks kBlocks - 1 to kBlocks / 2
  std::vector<Outcome> outcomes;
  for (const std::string& engine : engines(file.path())) {
    outcomes.push_back(read_everything(file.path(), engine, {}));
    const Outcome& outcome = outcomes.back();
    CHECK(outcome == outcomes.front());
    CHECK_EQ(outcome.error, "");
    CHECK_EQ(outcome.wrong, 0U);
    for (std::uint32_t b = 0; b < kBlocks; ++b)
      CHECK_EQ(outcome.accepted.contains({2, b}), b < kBlocks / 2);  // of the old segment 2
    CHECK_EQ(outcome.accepted.size(), kSegments * kBlocks - kBlocks / 2);
  }
}

TEST(a_file_that_was_truncated_is_named_with_its_end) {
  SegmentFile file;
  const std::uint64_t end = offset_of(3, 10) + 100;
  CHECK_EQ(::truncate(file.path().c_str(), static_cast<off_t>(end)), 0);
  std::vector<Outcome> outcomes;
  for (const std::string& engine : engines(file.path())) {
    outcomes.push_back(read_everything(file.path(), engine, {}));
    const Outcome& outcome = outcomes.back();
    CHECK(outcome == outcomes.front());
    CHECK(outcome.error.find("the file ends at byte " + std::to_string(end)) != std::string::npos);
    CHECK(outcome.error.find("truncated") != std::string::npos);
    CHECK_EQ(outcome.wrong, 0U);
  }
}

TEST_MAIN()
