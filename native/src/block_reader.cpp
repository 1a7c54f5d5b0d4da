// Choice of the engine, and the arguments and errors that all engines share.
#include "mtrains/block_reader.h"

#include <array>
#include <cerrno>
#include <limits>
#include <stdexcept>
#include <utility>

#include "mtrains/block_engines.h"
#include "mtrains/errors.h"

namespace mtrains {
namespace {

using OpenEngine = std::unique_ptr<BlockEngine> (*)(const std::string&, int, const ReadFilter&);

struct NamedEngine {
  const char* name;
  OpenEngine open;
};

constexpr std::array<NamedEngine, 3> kEngines = {
    {{"uring", open_uring_engine}, {"pread", open_pread_engine}, {"mmap", open_mmap_engine}}};

constexpr int kMaxQueueDepth = 4096;

// Codes by which a kernel or file system says that it does not do this kind of read at all. Anything else
// (EIO) is a failure of the device, which another engine would only hide.
bool is_refusal(int code) {
  return code == EINVAL || code == EOPNOTSUPP || code == ENOSYS || code == EPERM || code == EACCES;
}

std::unique_ptr<BlockEngine> open_probed(const NamedEngine& named, const std::string& path, int queue_depth,
                                         const ReadFilter& filter) {
  std::unique_ptr<BlockEngine> engine = named.open(path, queue_depth, filter);
  engine->probe();
  return engine;
}

std::unique_ptr<BlockReader> open_first_working(const std::string& path, int queue_depth,
                                                const ReadFilter& filter) {
  std::string refused;
  int code = 0;
  for (const NamedEngine& named : kEngines) {
    try {
      std::unique_ptr<BlockEngine> engine = open_probed(named, path, queue_depth, filter);
      engine->set_refused(std::move(refused));
      return engine;
    } catch (const EngineRefused& refusal) {
      code = refusal.code;
      refused += std::string(refused.empty() ? "" : "; ") + named.name + ": " + refusal.why;
    }
  }
  throw IoError(
      code, "no io engine can read " + path + " (" + refused + "). Move the store to a local file system");
}

void check_extents(const std::vector<BlockRead>& reads) {
  for (std::size_t i = 0; i < reads.size(); ++i) {
    const BlockRead& read = reads[i];
    const bool aligned = read.offset % kBlockBytes == 0 && read.size % kBlockBytes == 0 &&
                         reinterpret_cast<std::uintptr_t>(read.buffer) % kBlockBytes == 0;
    const std::uint64_t last_offset = std::numeric_limits<std::int64_t>::max() - std::uint64_t{read.size};
    if (aligned && read.size != 0 && read.buffer != nullptr && read.offset <= last_offset) continue;
    throw std::invalid_argument(
        "extent " + std::to_string(i) + " (offset " + std::to_string(read.offset) + ", size " +
        std::to_string(read.size) +
        "): offset, size and buffer address must be multiples of 4096, size and buffer not 0, "
        "the end below 2^63");
  }
}

[[noreturn]] void raise(const FirstFailure& failure, const BlockFile& file, const char* engine,
                        const BlockRead& read) {
  const char* remedy = failure.code() == ENODATA
                           ? "the file was truncated, or the location is older than the file"
                           : "see the kernel log for the state of the device";
  throw IoError(failure.code(), "read of " + std::to_string(read.size) + " bytes at offset " +
                                    std::to_string(read.offset) + " of " + file.path() + " (io engine " +
                                    engine + ") failed: " + failure.why() + "; " + remedy);
}

}  // namespace

std::unique_ptr<BlockReader> open_block_reader(const std::string& path, const std::string& engine,
                                               int queue_depth, const ReadFilter& filter) {
  if (queue_depth < 1 || queue_depth > kMaxQueueDepth) {
    throw std::invalid_argument("queue_depth is " + std::to_string(queue_depth) + ", must be in [1, " +
                                std::to_string(kMaxQueueDepth) + "]");
  }
  if (engine == "auto") return open_first_working(path, queue_depth, filter);
  for (const NamedEngine& named : kEngines) {
    if (engine != named.name) continue;
    try {
      return open_probed(named, path, queue_depth, filter);
    } catch (const EngineRefused& refusal) {
      throw IoError(refusal.code,
                    "io engine " + engine + " cannot read " + path + ": " + refusal.why +
                        "; use io engine \"auto\", which takes the fastest one that works here");
    }
  }
  throw std::invalid_argument("unknown io engine \"" + engine + "\": must be auto, uring, pread or mmap");
}

std::unique_ptr<BlockReader> BlockReader::open(const std::string& path, const std::string& engine,
                                               int queue_depth) {
  return open_block_reader(path, engine, queue_depth, {});
}

void BlockEngine::read(const std::vector<BlockRead>& reads) {
  check_extents(reads);
  if (reads.empty()) return;
  const FirstFailure failure = read_all(reads);
  if (failure.any()) raise(failure, file_, engine_, reads[failure.index()]);
}

void BlockEngine::probe() {
  std::uint64_t size = 0;
  const int failed = file_.stat_size(&size);
  if (failed != 0) throw IoError(failed, "cannot read " + file_.path() + ": " + errno_text("fstat", failed));
  if (size < kBlockBytes) return;
  alignas(kBlockBytes) std::array<std::byte, kBlockBytes> block;
  try {
    read({{.offset = 0, .buffer = block.data()}});
  } catch (const IoError& error) {
    if (is_refusal(error.code))
      throw EngineRefused{error.code, errno_text("read of the first block", error.code)};
    throw;
  }
}

}  // namespace mtrains
