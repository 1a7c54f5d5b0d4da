// What the engines of BlockReader share: the open file, the account of one extent, the first failure, and the
// seam at which tests put faults under any engine. For block_reader*.cpp and their tests only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "mtrains/block_reader.h"

namespace mtrains {

// Sees every raw read when it returns: what was asked and its result (bytes, possibly fewer than asked; 0 at
// the end of the file; or a negative errno). What it returns is taken as the result. It may sleep (a late
// completion) and may overwrite the buffer. Called by any thread that reads, by several at once; must not
// throw. Empty in production.
using ReadFilter = std::function<int(const BlockRead& asked, int result)>;

// BlockReader::open with a filter under the engine.
std::unique_ptr<BlockReader> open_block_reader(const std::string& path, const std::string& engine,
                                               int queue_depth, const ReadFilter& filter);

// Thrown by an engine that cannot work here; "auto" goes on to the next one.
struct EngineRefused {
  int code;  // errno
  std::string why;
};

// "io_uring_setup: Operation not permitted (errno 1)".
std::string errno_text(const char* call, int code);

// The descriptor of one engine, closed with it.
class BlockFile {
 public:
  // Throws EngineRefused where the file cannot be read with O_DIRECT in blocks of kBlockBytes, IoError where
  // it cannot be opened at all.
  static BlockFile open_direct(const std::string& path, const ReadFilter& filter);
  // Reads go through the page cache. Throws IoError.
  static BlockFile open_buffered(const std::string& path, const ReadFilter& filter);

  BlockFile(BlockFile&& other) noexcept;
  BlockFile(const BlockFile&) = delete;
  BlockFile& operator=(const BlockFile&) = delete;
  ~BlockFile();

  int fd() const { return fd_; }
  const std::string& path() const { return path_; }
  // Sets `bytes` to the size of the file now. Returns 0 or an errno.
  int stat_size(std::uint64_t* bytes) const;
  int filtered(const BlockRead& asked, int result) const { return filter_ ? filter_(asked, result) : result; }

 private:
  BlockFile(int fd, const std::string& path, const ReadFilter& filter)
      : fd_(fd), path_(path), filter_(filter) {}

  int fd_;
  std::string path_;
  ReadFilter filter_;
};

// What is still to be read of one extent of the caller's list.
class PendingRead {
 public:
  enum class Next { kDone, kResume, kFailed };

  PendingRead() = default;
  PendingRead(std::size_t index, const BlockRead& extent) : index_(index), rest_(extent) {}

  std::size_t index() const { return index_; }
  const BlockRead& rest() const { return rest_; }

  // Takes the result of a raw read of rest(). After kResume rest() starts at the first block that was not
  // read in full; after kFailed code() and why() say what happened.
  Next advance(const BlockFile& file, int result);
  int code() const { return code_; }
  const std::string& why() const { return why_; }

 private:
  Next fail(int code, std::string why);
  Next retry(int code);

  std::size_t index_ = 0;
  BlockRead rest_;
  int num_fruitless_ = 0;  // raw reads in a row that brought no block
  int code_ = 0;
  std::string why_;
};

// Of the extents that failed, the one that comes first in the caller's list: so the error does not depend on
// the order of completion. Not thread-safe.
class FirstFailure {
 public:
  void note(const PendingRead& read) { note(read.index(), read.code(), read.why()); }
  void note(std::size_t index, int code, const std::string& why);

  bool any() const { return code_ != 0; }
  std::size_t index() const { return index_; }
  int code() const { return code_; }
  const std::string& why() const { return why_; }

 private:
  std::size_t index_ = std::numeric_limits<std::size_t>::max();
  int code_ = 0;
  std::string why_;
};

// Checks arguments and reports failures for every engine.
class BlockEngine : public BlockReader {
 public:
  void read(const std::vector<BlockRead>& reads) final;
  const char* engine() const final { return engine_; }
  const std::string& refused() const final { return refused_; }
  void set_refused(std::string refused) { refused_ = std::move(refused); }

  // Reads the first block, if there is one: some kernels and sandboxes accept the set-up calls and refuse the
  // read. Throws EngineRefused, or IoError where the device failed.
  void probe();

 protected:
  BlockEngine(BlockFile file, const char* engine) : file_(std::move(file)), engine_(engine) {}

  const BlockFile& file() const { return file_; }
  // Returns when no extent is in flight any more. REQUIRES: reads is not empty and its extents are aligned.
  virtual FirstFailure read_all(const std::vector<BlockRead>& reads) = 0;

 private:
  BlockFile file_;
  const char* engine_;
  std::string refused_;
};

// One positional read, which may be short: bytes, 0 at the end of the file, or a negative errno. Called by
// many threads.
using RawRead = std::function<int(const BlockFile& file, const BlockRead& asked)>;

// Reads by the caller and up to 63 further threads; calls from several threads run side by side.
std::unique_ptr<BlockEngine> make_pooled_engine(BlockFile file, const char* engine, int queue_depth,
                                                RawRead raw_read);

// Each throws EngineRefused where it cannot work.
std::unique_ptr<BlockEngine> open_uring_engine(const std::string& path, int queue_depth,
                                               const ReadFilter& filter);
std::unique_ptr<BlockEngine> open_pread_engine(const std::string& path, int queue_depth,
                                               const ReadFilter& filter);
std::unique_ptr<BlockEngine> open_mmap_engine(const std::string& path, int queue_depth,
                                              const ReadFilter& filter);

}  // namespace mtrains
