// The open file and the account of one extent, for every engine of BlockReader.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cassert>
#include <cerrno>
#include <chrono>
#include <system_error>
#include <thread>
#include <utility>

#include "mtrains/block_engines.h"
#include "mtrains/errors.h"

namespace mtrains {
namespace {

// A raw read that brings nothing is asked again: at once a few times, then every millisecond, about a second
// in all.
constexpr int kMaxFruitless = 1000;
constexpr int kFruitlessAtOnce = 16;

[[noreturn]] void throw_open_error(const std::string& path, const char* call, int code) {
  throw IoError(code, "cannot read " + path + ": " + errno_text(call, code));
}

int open_regular_file(const std::string& path, int flags) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | flags);
  if (fd < 0) return -errno;
  struct stat status{};
  const int failed = ::fstat(fd, &status) != 0 ? errno : 0;
  if (failed == 0 && S_ISREG(status.st_mode)) return fd;
  ::close(fd);
  if (failed != 0) throw_open_error(path, "fstat", failed);
  throw IoError(EINVAL, "cannot read " + path + ": not a regular file");
}

// Kernels before 6.1 and some file systems leave the mask unset: there the probe read decides.
void check_direct_alignment(int fd) {
#ifdef STATX_DIOALIGN
  struct statx status{};
  if (::statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &status) != 0) return;
  if ((status.stx_mask & STATX_DIOALIGN) == 0) return;
  if (status.stx_dio_offset_align == 0) throw EngineRefused{EOPNOTSUPP, "statx: no O_DIRECT on this file"};
  if (status.stx_dio_offset_align > kBlockBytes || status.stx_dio_mem_align > kBlockBytes) {
    throw EngineRefused{EOPNOTSUPP, "statx: O_DIRECT needs an alignment of " +
                                        std::to_string(status.stx_dio_offset_align) +
                                        " bytes in the file and " + std::to_string(status.stx_dio_mem_align) +
                                        " in memory, blocks have 4096"};
  }
#else
  static_cast<void>(fd);
#endif
}

}  // namespace

std::string errno_text(const char* call, int code) {
  return std::string(call) + ": " + std::generic_category().message(code) + " (errno " +
         std::to_string(code) + ")";
}

BlockFile BlockFile::open_direct(const std::string& path, const ReadFilter& filter) {
  const int fd = open_regular_file(path, O_DIRECT);
  if (fd == -EINVAL || fd == -EOPNOTSUPP) throw EngineRefused{-fd, errno_text("open with O_DIRECT", -fd)};
  if (fd < 0) throw_open_error(path, "open with O_DIRECT", -fd);
  BlockFile file(fd, path, filter);
  check_direct_alignment(fd);
  return file;
}

BlockFile BlockFile::open_buffered(const std::string& path, const ReadFilter& filter) {
  const int fd = open_regular_file(path, 0);
  if (fd < 0) throw_open_error(path, "open", -fd);
  return BlockFile(fd, path, filter);
}

BlockFile::BlockFile(BlockFile&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), path_(std::move(other.path_)), filter_(std::move(other.filter_)) {}

BlockFile::~BlockFile() {
  if (fd_ >= 0) ::close(fd_);
}

int BlockFile::stat_size(std::uint64_t* bytes) const {
  struct stat status{};
  if (::fstat(fd_, &status) != 0) return errno;
  *bytes = static_cast<std::uint64_t>(status.st_size);
  return 0;
}

PendingRead::Next PendingRead::advance(const BlockFile& file, int result) {
  result = file.filtered(rest_, result);
  if (result == -EINTR || result == -EAGAIN) return retry(-result);
  if (result < 0) return fail(-result, errno_text("read", -result));
  assert(static_cast<std::uint32_t>(result) <= rest_.size);
  // O_DIRECT can go on only at a block: the bytes of a torn one are read again.
  const std::uint32_t whole = static_cast<std::uint32_t>(result) / kBlockBytes * kBlockBytes;
  if (whole > 0) {
    num_fruitless_ = 0;
    rest_.offset += whole;
    rest_.buffer += whole;
    rest_.size -= whole;
    return rest_.size == 0 ? Next::kDone : Next::kResume;
  }
  std::uint64_t end = 0;
  const int failed = file.stat_size(&end);
  if (failed != 0) return fail(failed, errno_text("fstat", failed));
  if (rest_.offset + rest_.size > end) return fail(ENODATA, "the file ends at byte " + std::to_string(end));
  return retry(EIO);
}

PendingRead::Next PendingRead::fail(int code, std::string why) {
  code_ = code;
  why_ = std::move(why);
  return Next::kFailed;
}

PendingRead::Next PendingRead::retry(int code) {
  if (++num_fruitless_ > kMaxFruitless) {
    return fail(code, errno_text("read", code) + ", " + std::to_string(kMaxFruitless) + " times in a row");
  }
  if (num_fruitless_ > kFruitlessAtOnce) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return Next::kResume;
}

void FirstFailure::note(std::size_t index, int code, const std::string& why) {
  if (index >= index_) return;
  index_ = index;
  code_ = code;
  why_ = why;
}

}  // namespace mtrains
