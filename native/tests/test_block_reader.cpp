#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "mtrains/block_engines.h"
#include "mtrains/block_reader.h"
#include "mtrains/errors.h"

using mtrains::BlockRead;
using mtrains::BlockReader;
using mtrains::IoError;
using mtrains::kBlockBytes;
using mtrains::open_block_reader;
using mtrains::ReadFilter;

namespace {

// A file of blocks whose words say where they are, in the working folder (/tmp may be a file system without
// O_DIRECT).
class PatternFile {
 public:
  explicit PatternFile(std::size_t num_blocks) {
    std::string name = "test_block_reader.XXXXXX";
    fd_ = ::mkstemp(name.data());
    if (fd_ < 0) throw std::runtime_error("mkstemp failed");
    path_ = std::filesystem::absolute(name);
    append(num_blocks);
  }
  PatternFile(const PatternFile&) = delete;
  PatternFile& operator=(const PatternFile&) = delete;
  ~PatternFile() {
    ::close(fd_);
    ::unlink(path_.c_str());
  }

  static std::uint64_t word(std::uint64_t offset) { return (offset + 1) * 0x9e3779b97f4a7c15U; }

  void append(std::size_t num_blocks) {
    std::vector<std::uint64_t> words(num_blocks * kBlockBytes / 8);
    for (std::size_t i = 0; i < words.size(); ++i) words[i] = word(size_ + i * 8);
    append_bytes(words.data(), num_blocks * kBlockBytes);
  }
  void append_bytes(const void* bytes, std::size_t size) {
    if (::pwrite(fd_, bytes, size, static_cast<off_t>(size_)) != static_cast<ssize_t>(size)) {
      throw std::runtime_error("pwrite failed");
    }
    size_ += size;
  }

  const std::string& path() const { return path_; }

 private:
  int fd_;
  std::string path_;
  std::uint64_t size_ = 0;
};

// The engines that this kernel and file system let run, in the order of "auto"; the others are named once on
// stderr.
const std::vector<std::string>& engines() {
  static const std::vector<std::string> working = [] {
    const PatternFile file(1);
    std::vector<std::string> names;
    for (const std::string name : {"uring", "pread", "mmap"}) {
      try {
        BlockReader::open(file.path(), name);
        names.push_back(name);
      } catch (const IoError& error) {
        std::fprintf(stderr, "not tested: %s\n", error.what());
      }
    }
    return names;
  }();
  return working;
}

bool works(const std::string& engine) { return std::ranges::find(engines(), engine) != engines().end(); }

// An aligned buffer and the extents that read into it.
class Extents {
 public:
  explicit Extents(std::size_t num_blocks)
      : bytes_(static_cast<std::byte*>(std::aligned_alloc(kBlockBytes, num_blocks * kBlockBytes)),
               std::free) {
    std::memset(bytes_.get(), 0xee, num_blocks * kBlockBytes);
  }

  void add(std::uint64_t block, std::uint32_t num_blocks = 1) {
    const auto size = static_cast<std::uint32_t>(num_blocks * kBlockBytes);
    reads.push_back({block * kBlockBytes, bytes_.get() + used_, size});
    used_ += size;
  }

  std::size_t num_wrong() const {
    std::size_t wrong = 0;
    for (const BlockRead& read : reads) wrong += is_right(read) ? 0 : 1;
    return wrong;
  }
  static bool is_right(const BlockRead& read) {
    for (std::size_t at = 0; at < read.size; at += 8) {
      std::uint64_t seen;
      std::memcpy(&seen, read.buffer + at, 8);
      if (seen != PatternFile::word(read.offset + at)) return false;
    }
    return true;
  }

  std::vector<BlockRead> reads;

 private:
  std::unique_ptr<std::byte, decltype(&std::free)> bytes_;
  std::size_t used_ = 0;
};

// Random extents of 1 to 4 blocks over a file of num_file_blocks.
Extents random_extents(std::size_t num_reads, std::uint64_t num_file_blocks, std::uint32_t seed) {
  Extents extents(4 * num_reads);
  for (std::size_t i = 0; i < num_reads; ++i) {
    seed = seed * 1664525 + 1013904223;
    extents.add((seed >> 8) % (num_file_blocks - 4), 1 + seed % 4);
  }
  return extents;
}

std::string failure_of(const std::function<void()>& call, int code) {
  try {
    call();
  } catch (const IoError& error) {
    CHECK_EQ(error.code, code);
    return error.what();
  }
  return "";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Runs `call` on a thread whose matching system calls fail with `code`. A mask of 0 matches any argument.
void with_refused_calls(long number, unsigned argument, unsigned mask, unsigned code,
                        const std::function<void()>& call) {
  std::thread([&] {
    sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(number), 0, 4),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
                 static_cast<unsigned>(offsetof(seccomp_data, args) + argument * sizeof(std::uint64_t))),
        BPF_STMT(BPF_ALU | BPF_AND | BPF_K, mask),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, mask, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | code),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const sock_fprog filter = {sizeof program / sizeof *program, program};
    CHECK_EQ(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    CHECK_EQ(::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter), 0);
    call();
  }).join();
}

}  // namespace

TEST(every_engine_reads_what_was_written) {
  const PatternFile file(300);
  for (const std::string& engine : engines()) {
    for (const int queue_depth : {1, 3, 128}) {
      const auto reader = BlockReader::open(file.path(), engine, queue_depth);
      CHECK_EQ(reader->engine(), engine);
      CHECK_EQ(reader->refused(), "");
      reader->read({});
      for (const std::size_t num_reads : {1U, 2U, 500U}) {
        const Extents extents = random_extents(num_reads, 300, 7);
        reader->read(extents.reads);
        CHECK_EQ(extents.num_wrong(), 0U);
      }
    }
  }
}

TEST(auto_takes_the_first_engine_that_works) {
  const PatternFile file(4);
  const auto reader = BlockReader::open(file.path(), "auto");
  CHECK_EQ(std::string(reader->engine()), engines().front());
  CHECK_EQ(reader->refused().empty(), works("uring"));
}

TEST(a_refused_io_uring_goes_on_to_pread) {
  if (!works("pread")) return;
  const PatternFile file(300);
  for (const unsigned code : {EPERM, ENOSYS}) {
    with_refused_calls(__NR_io_uring_setup, 0, 0, code, [&] {
      const auto reader = BlockReader::open(file.path(), "auto");
      CHECK_EQ(std::string(reader->engine()), "pread");
      CHECK(contains(reader->refused(), "uring: io_uring_setup: "));
      CHECK(contains(reader->refused(), "(errno " + std::to_string(code) + ")"));
      const Extents extents = random_extents(100, 300, 7);
      reader->read(extents.reads);
      CHECK_EQ(extents.num_wrong(), 0U);
      const std::string text =
          failure_of([&] { BlockReader::open(file.path(), "uring"); }, static_cast<int>(code));
      CHECK(contains(text, file.path()));
      CHECK(contains(text, "io engine uring"));
      CHECK(contains(text, "\"auto\""));
    });
  }
}

TEST(a_file_system_without_o_direct_goes_on_to_mmap) {
  const PatternFile file(300);
  with_refused_calls(__NR_openat, 2, O_DIRECT, EINVAL, [&] {
    const auto reader = BlockReader::open(file.path(), "auto");
    CHECK_EQ(std::string(reader->engine()), "mmap");
    CHECK(contains(reader->refused(), "uring: open with O_DIRECT: "));
    CHECK(contains(reader->refused(), "; pread: open with O_DIRECT: "));
    const Extents extents = random_extents(100, 300, 7);
    reader->read(extents.reads);
    CHECK_EQ(extents.num_wrong(), 0U);
    CHECK(contains(failure_of([&] { BlockReader::open(file.path(), "pread"); }, EINVAL), "io engine pread"));
  });
}

TEST(the_probe_refuses_an_engine_that_cannot_read_and_not_a_broken_device) {
  const PatternFile file(4);
  std::atomic<std::size_t> num_calls{0};
  const std::size_t num_direct = engines().size() - 1;
  const ReadFilter direct_refused = [&](const BlockRead&, int result) {
    return ++num_calls <= num_direct ? -EINVAL : result;
  };
  const auto reader = open_block_reader(file.path(), "auto", 8, direct_refused);
  CHECK_EQ(std::string(reader->engine()), "mmap");
  CHECK_EQ(contains(reader->refused(), "pread: read of the first block: Invalid argument"), works("pread"));
  const ReadFilter broken = [](const BlockRead&, int) { return -EIO; };
  CHECK(contains(failure_of([&] { open_block_reader(file.path(), "auto", 8, broken); }, EIO),
                 engines().front()));
}

TEST(a_growing_file_is_read_beyond_its_size_at_open) {
  for (const std::string& engine : engines()) {
    PatternFile file(0);
    const auto reader = BlockReader::open(file.path(), engine);
    for (std::uint64_t num_blocks = 0; num_blocks < 200; num_blocks += 50) {
      Extents beyond(1);
      beyond.add(num_blocks);
      CHECK(contains(failure_of([&] { reader->read(beyond.reads); }, ENODATA), "the file ends at byte"));
      file.append(50);
      Extents grown(50);
      for (std::uint64_t i = 0; i < 50; ++i) grown.add(num_blocks + i);
      reader->read(grown.reads);
      CHECK_EQ(grown.num_wrong(), 0U);
    }
  }
}

TEST(a_map_grows_over_a_hole_of_gigabytes) {
  const PatternFile file(10);
  const auto reader = BlockReader::open(file.path(), "mmap");
  CHECK_EQ(::truncate(file.path().c_str(), off_t{5} << 30), 0);
  Extents extents(11);
  for (std::uint64_t i = 0; i < 10; ++i) extents.add(i);
  extents.add((std::uint64_t{5} << 30) / kBlockBytes - 1);
  reader->read(extents.reads);
  CHECK_EQ(extents.num_wrong(), 1U);  // the hole holds zeros, the rest the pattern
}

TEST(a_read_past_the_end_names_path_offset_and_size_after_the_others_finished) {
  PatternFile file(10);
  file.append_bytes("torn", 4);
  for (const std::string& engine : engines()) {
    const auto reader = BlockReader::open(file.path(), engine);
    Extents extents(9);
    extents.add(1);
    extents.add(8, 4);  // 2 blocks, 4 bytes, then nothing
    extents.add(10);    // 4 bytes
    extents.add(77);
    extents.add(5);
    const std::string text = failure_of([&] { reader->read(extents.reads); }, ENODATA);
    CHECK(contains(text, file.path()));
    CHECK(contains(text, "read of 16384 bytes at offset 32768"));
    CHECK(contains(text, "io engine " + engine));
    CHECK(contains(text, "ends at byte 40964"));
    CHECK(Extents::is_right(extents.reads[0]));
    CHECK(Extents::is_right(extents.reads[4]));
  }
}

TEST(bad_arguments_are_refused) {
  const PatternFile file(4);
  CHECK_THROWS(BlockReader::open(file.path(), "aio"), std::invalid_argument);
  CHECK_THROWS(BlockReader::open(file.path(), "uring", 0), std::invalid_argument);
  CHECK_THROWS(BlockReader::open(file.path(), "uring", 5000), std::invalid_argument);
  CHECK(contains(failure_of([&] { BlockReader::open(file.path() + ".no", "auto"); }, ENOENT),
                 file.path() + ".no"));
  CHECK_THROWS(BlockReader::open("/", "auto"), IoError);
  for (const std::string& engine : engines()) {
    const auto reader = BlockReader::open(file.path(), engine);
    Extents good(2);
    good.add(0);
    std::byte* buffer = good.reads[0].buffer;
    for (const BlockRead& bad : std::vector<BlockRead>{{512, buffer, 4096},
                                                       {0, buffer + 8, 4096},
                                                       {0, buffer, 100},
                                                       {0, buffer, 0},
                                                       {0, nullptr, 4096},
                                                       {std::uint64_t{1} << 63, buffer, 4096}}) {
      CHECK_THROWS(reader->read({bad}), std::invalid_argument);
    }
    reader->read(good.reads);
    CHECK_EQ(good.num_wrong(), 0U);
  }
}

TEST(two_threads_read_at_once) {
  const PatternFile file(300);
  for (const std::string& engine : engines()) {
    const auto reader = BlockReader::open(file.path(), engine, 16);
    std::atomic<std::size_t> num_wrong{0};
    std::vector<std::thread> threads;
    for (std::uint32_t seed = 0; seed < 3; ++seed) {
      threads.emplace_back([&, seed] {
        for (std::uint32_t round = 0; round < 20; ++round) {
          const Extents extents = random_extents(1 + round * 5, 300, seed * 1000 + round);
          reader->read(extents.reads);
          num_wrong += extents.num_wrong();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK_EQ(num_wrong.load(), 0U);
  }
}

TEST(readers_see_blocks_as_another_descriptor_appends_them) {
  for (const std::string& engine : engines()) {
    PatternFile file(8);
    const auto reader = BlockReader::open(file.path(), engine, 16);
    std::atomic<std::uint64_t> num_blocks{8};
    std::atomic<std::size_t> num_wrong{0};
    std::thread other([&] {
      for (std::uint32_t round = 0; num_blocks.load() < 400; ++round) {
        const Extents extents = random_extents(20, num_blocks.load(), round);
        reader->read(extents.reads);
        num_wrong += extents.num_wrong();
      }
    });
    while (num_blocks.load() < 400) {
      file.append(4);
      num_blocks += 4;
    }
    other.join();
    CHECK_EQ(num_wrong.load(), 0U);
  }
}

// Each raw read first meets one fault: nothing, one block of many, a torn block, EINTR or EAGAIN.
TEST(short_and_interrupted_reads_are_resumed) {
  const PatternFile file(300);
  for (const std::string& engine : engines()) {
    std::atomic<std::uint32_t> num_calls{0};
    std::atomic<std::uint32_t> num_faults{0};
    const ReadFilter faults = [&](const BlockRead& asked, int result) {
      const std::uint32_t call = ++num_calls;
      if (call == 1 || call % 3 != 0 || result <= 0) return result;  // the first is the probe
      ++num_faults;
      const int kept[] = {0, 4096, 5000, 100, -EINTR, -EAGAIN};
      const int faulty = std::min(kept[call / 3 % 6], result);
      const int whole = std::max(faulty, 0) / 4096 * 4096;
      std::memset(asked.buffer + whole, 0xdd, asked.size - static_cast<std::uint32_t>(whole));
      return faulty;
    };
    const auto reader = open_block_reader(file.path(), engine, 16, faults);
    const Extents extents = random_extents(400, 300, 3);
    reader->read(extents.reads);
    CHECK_EQ(extents.num_wrong(), 0U);
    CHECK(num_faults.load() > 100);
  }
}

TEST(a_device_error_is_reported_once_all_other_reads_finished) {
  const PatternFile file(300);
  for (const std::string& engine : engines()) {
    const ReadFilter broken = [](const BlockRead& asked, int result) {
      return asked.offset == 70 * kBlockBytes || asked.offset == 90 * kBlockBytes ? -EIO : result;
    };
    const auto reader = open_block_reader(file.path(), engine, 16, broken);
    Extents extents(100);
    for (std::uint64_t i = 0; i < 100; ++i)
      extents.add(i * 37 % 100);  // block 90 comes at 70, block 70 at 10
    const std::string text = failure_of([&] { reader->read(extents.reads); }, EIO);
    CHECK(contains(text, "at offset " + std::to_string(70 * kBlockBytes)));
    CHECK(contains(text, "Input/output error (errno 5)"));
    CHECK(contains(text, file.path()));
    CHECK_EQ(extents.num_wrong(), 0U);  // the filter fails reads that had brought their bytes
    Extents after(1);
    after.add(3);
    reader->read(after.reads);
    CHECK_EQ(after.num_wrong(), 0U);
  }
}

TEST(a_read_that_never_brings_anything_fails) {
  const PatternFile file(10);
  for (const std::string& engine : engines()) {
    const ReadFilter stuck = [](const BlockRead& asked, int result) {
      return asked.offset == 5 * kBlockBytes ? -EAGAIN : result;
    };
    const auto reader = open_block_reader(file.path(), engine, 4, stuck);
    Extents extents(2);
    extents.add(5);
    extents.add(6);
    CHECK(contains(failure_of([&] { reader->read(extents.reads); }, EAGAIN), "times in a row"));
    CHECK(Extents::is_right(extents.reads[1]));
  }
}

TEST(late_completions_keep_their_own_buffers) {
  const PatternFile file(300);
  for (const std::string& engine : engines()) {
    std::atomic<std::uint32_t> num_calls{0};
    const ReadFilter late = [&](const BlockRead&, int result) {
      if (++num_calls % 7 == 0) std::this_thread::sleep_for(std::chrono::microseconds(500));
      return result;
    };
    const auto reader = open_block_reader(file.path(), engine, 8, late);
    const Extents extents = random_extents(100, 300, 5);
    reader->read(extents.reads);
    CHECK_EQ(extents.num_wrong(), 0U);
  }
}

TEST(descriptors_close_on_exec_and_with_the_reader) {
  const PatternFile file(4);
  const auto num_open = [] {
    std::size_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      ++count;
      const int fd = std::stoi(entry.path().filename());
      const int flags = ::fcntl(fd, F_GETFD);
      const std::string target = std::filesystem::read_symlink(entry.path());
      if (contains(target, "io_uring")) CHECK((flags & FD_CLOEXEC) != 0);
    }
    return count;
  };
  const std::size_t before = num_open();
  for (const std::string& engine : engines()) {
    const auto reader = BlockReader::open(file.path(), engine);
    CHECK_EQ(num_open(), before + (engine == "uring" ? 2U : 1U));
  }
  CHECK_EQ(num_open(), before);
}

TEST_MAIN()
