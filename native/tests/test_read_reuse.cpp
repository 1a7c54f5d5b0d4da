// Reads with random delays while segments are moved and deleted and their space is written again at once:
// none ever takes a block of another segment for its own. --reads=N: reads of each engine; the full form has
// 1000000.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <memory>
#include <mutex>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "mtrains/block_engines.h"
#include "mtrains/errors.h"
#include "mtrains/read_generations.h"
#include "mtrains/segment_format.h"

using namespace mtrains;

namespace {

std::uint64_t num_reads = 20000;  // set by main alone

constexpr std::uint32_t kBlocks = 255;
constexpr std::size_t kPlaces = 24;
constexpr std::size_t kLive = 16;  // segments that reads may ask for
constexpr int kBatch = 32;

// The rows of a block say whose they are, apart from its trailer.
std::uint64_t word(std::uint64_t segment_id, std::uint32_t block, std::size_t i) {
  return (segment_id * 1000003 + block) * 0x9e3779b97f4a7c15U + i;
}

struct Placed {
  std::uint64_t id = 0;
  std::size_t place = 0;
  std::uint64_t condemned_at = 0;
};

// A log of kLive segments whose oldest one is moved, condemned, deleted, and its place written again at once.
class ReusingLog {
 public:
  // by_generation: whether a place waits for the reads that may still look at it.
  explicit ReusingLog(bool by_generation) : by_generation_(by_generation) {
    std::string name = "test_read_reuse.XXXXXX";
    fd_ = ::mkstemp(name.data());
    if (fd_ < 0) throw std::runtime_error("mkstemp failed");
    path_ = std::filesystem::absolute(name);
    for (std::size_t place = 0; place < kPlaces; ++place) free_.push_back(place);
    for (std::size_t i = 0; i < kLive; ++i) append();
  }
  ReusingLog(const ReusingLog&) = delete;
  ReusingLog& operator=(const ReusingLog&) = delete;
  ~ReusingLog() {
    ::close(fd_);
    ::unlink(path_.c_str());
  }

  const std::string& path() const { return path_; }
  ReadGenerations& generations() { return generations_; }
  std::uint64_t segments_written() const { return next_id_ - 1; }

  // Called within a read generation.
  Placed find(std::uint64_t random) {
    const std::lock_guard lock(mutex_);
    return live_[random % live_.size()];
  }

  // One turn of the thread that writes.
  void turn() {
    if (!free_.empty()) {
      append();
      const std::lock_guard lock(mutex_);
      Placed oldest = live_.front();
      live_.pop_front();
      oldest.condemned_at = generations_.mark();  // after no find() returns it any more
      condemned_.push_back(oldest);
    }
    while (!condemned_.empty() &&
           (!by_generation_ || generations_.drained(condemned_.front().condemned_at))) {
      // The place that was left last is written first: at once.
      free_.push_back(condemned_.front().place);
      condemned_.pop_front();
    }
  }

 private:
  void append() {
    SegmentHeader header;
    header.segment_id = next_id_++;
    header.epoch = 1;
    header.number = static_cast<std::uint32_t>(header.segment_id);
    for (std::uint32_t b = 0; b < kBlocks; ++b) {
      header.blocks.push_back({0, 0, 4080, 0, {b}});
      std::byte* data = block_in_image(image_.data(), b);
      for (std::size_t i = 0; i < kBlockDataBytes / 8; ++i) {
        const std::uint64_t value = word(header.segment_id, b, i);
        std::memcpy(data + i * 8, &value, 8);
      }
    }
    header.blocks.resize(kBlocks - 2);  // the header takes three pages
    seal_image(header, image_.data());
    const std::size_t place = free_.back();
    free_.pop_back();
    const auto at = static_cast<off_t>(place * kSegmentImageBytes);
    if (::pwrite(fd_, image_.data(), image_.size(), at) != static_cast<ssize_t>(image_.size()))
      throw std::runtime_error("pwrite failed");
    const std::lock_guard lock(mutex_);
    live_.push_back({header.segment_id, place, 0});
  }

  const bool by_generation_;
  int fd_;
  std::string path_;
  ReadGenerations generations_;
  std::vector<std::byte> image_ = std::vector<std::byte>(kSegmentImageBytes);
  std::atomic<std::uint64_t> next_id_{1};
  std::vector<std::size_t> free_;
  std::deque<Placed> condemned_;
  std::mutex mutex_;
  std::deque<Placed> live_;  // GUARDED_BY(mutex_)
};

struct Seen {
  std::uint64_t reads = 0;
  std::uint64_t refused = 0;            // by the trailer: another segment's, or torn
  std::uint64_t wrong = 0;              // accepted, with the bytes of another segment
  std::uint64_t intact_of_another = 0;  // of those refused: a whole block, right but for whose it is
};

void look_at(const std::byte* data, const Placed& segment, std::uint32_t block, Seen& seen) {
  ++seen.reads;
  if (!check_block(data, segment.id, block)) {
    ++seen.refused;
    const BlockTrailer trailer = trailer_of(data);
    if (trailer.segment_id != segment.id && check_block(data, trailer.segment_id, trailer.block))
      ++seen.intact_of_another;
    return;
  }
  for (std::size_t i = 0; i < kBlockDataBytes / 8; i += 101) {
    std::uint64_t value;
    std::memcpy(&value, data + i * 8, 8);
    if (value != word(segment.id, block, i)) {
      ++seen.wrong;
      return;
    }
  }
}

// Batches of reads by several threads: find, wait a little, read, check.
Seen read_while_places_are_reused(const std::string& engine, bool by_generation, std::uint64_t count) {
  ReusingLog log(by_generation);
  const ReadFilter late = [](const BlockRead& asked, int result) {
    if (asked.offset / kPageBytes % 61 == 0) std::this_thread::sleep_for(std::chrono::microseconds(100));
    return result;
  };
  const auto reader = open_block_reader(log.path(), engine, 64, late);
  std::atomic<std::int64_t> left{static_cast<std::int64_t>(count)};
  std::atomic<int> num_reading{3};
  std::array<Seen, 3> seen;
  std::vector<std::thread> readers;
  for (std::size_t t = 0; t < seen.size(); ++t) {
    readers.emplace_back([&, t] {
      std::mt19937_64 random(t);
      const std::unique_ptr<std::byte, decltype(&std::free)> buffer(
          static_cast<std::byte*>(std::aligned_alloc(kPageBytes, kBatch * kPageBytes)), std::free);
      // However slow the writer is here, every place is written again.
      while (left.fetch_sub(kBatch) > 0 || log.segments_written() <= 4 * kPlaces) {
        const ReadGeneration generation(log.generations());
        std::vector<Placed> segments;
        std::vector<std::uint32_t> blocks;
        std::vector<BlockRead> reads;
        for (std::size_t i = 0; i < std::size_t{kBatch}; ++i) {
          segments.push_back(log.find(random()));
          blocks.push_back(static_cast<std::uint32_t>(random() % (kBlocks - 2)));
          reads.push_back(
              {segments[i].place * kSegmentImageBytes + (kSegmentPages - 1 - blocks[i]) * kPageBytes,
               buffer.get() + i * kPageBytes, static_cast<std::uint32_t>(kPageBytes)});
        }
        if (!by_generation && seen[t].reads == 0) {  // until all that was found has been written over
          const std::uint64_t over = log.segments_written() + 2 * kPlaces;
          while (log.segments_written() < over) std::this_thread::yield();
        }
        if (random() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
        reader->read(reads);
        for (std::size_t i = 0; i < std::size_t{kBatch}; ++i)
          look_at(reads[i].buffer, segments[i], blocks[i], seen[t]);
      }
      --num_reading;
    });
  }
  while (num_reading > 0) {
    log.turn();
    std::this_thread::yield();
  }
  for (std::thread& thread : readers) thread.join();
  Seen all;
  for (const Seen& one : seen) {
    all.reads += one.reads;
    all.refused += one.refused;
    all.wrong += one.wrong;
    all.intact_of_another += one.intact_of_another;
  }
  std::printf(
      "       %s, %s: %llu reads, %llu segments written, %llu blocks refused (%llu whole ones of another "
      "segment), %llu wrong ones accepted\n",
      engine.c_str(), by_generation ? "in read generations" : "without",
      static_cast<unsigned long long>(all.reads), static_cast<unsigned long long>(log.segments_written()),
      static_cast<unsigned long long>(all.refused), static_cast<unsigned long long>(all.intact_of_another),
      static_cast<unsigned long long>(all.wrong));
  CHECK(log.segments_written() > 4 * kPlaces);
  return all;
}

std::vector<std::string> engines() {
  std::vector<std::string> working;
  const ReusingLog log(true);
  for (const std::string name : {"uring", "pread", "mmap"}) {
    try {
      BlockReader::open(log.path(), name);
      working.push_back(name);
    } catch (const IoError& error) {
      std::fprintf(stderr, "not tested: %s\n", error.what());
    }
  }
  return working;
}

}  // namespace

TEST(within_read_generations_every_block_is_the_one_asked_for) {
  for (const std::string& engine : engines()) {
    const Seen seen = read_while_places_are_reused(engine, true, num_reads);
    CHECK(seen.reads >= num_reads);
    CHECK_EQ(seen.refused, 0U);
    CHECK_EQ(seen.wrong, 0U);
  }
}

// The rule left out: places are written again under the reads. The segment id in the trailer is what tells.
TEST(without_them_the_trailer_refuses_what_another_segment_has_written) {
  for (const std::string& engine : engines()) {
    const Seen seen = read_while_places_are_reused(engine, false, num_reads);
    CHECK(seen.refused > 0);
    CHECK(seen.intact_of_another > 0);  // a checksum alone would have taken these
    CHECK_EQ(seen.wrong, 0U);
  }
}

int main(int argc, char** argv) {
  constexpr const char* kOption = "--reads=";
  if (argc > 1 && std::strncmp(argv[1], kOption, std::strlen(kOption)) == 0) {
    num_reads = std::strtoull(argv[1] + std::strlen(kOption), nullptr, 10);
    --argc;
    ++argv;
  }
  return mtrains::check::run(argc, argv);
}
