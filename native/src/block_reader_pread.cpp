// Engine "pread": O_DIRECT by a pool of threads.
#include <unistd.h>

#include <cerrno>

#include "mtrains/block_engines.h"

namespace mtrains {

std::unique_ptr<BlockEngine> open_pread_engine(const std::string& path, int queue_depth,
                                               const ReadFilter& filter) {
  const auto raw_read = [](const BlockFile& file, const BlockRead& asked) {
    const ssize_t result = ::pread(file.fd(), asked.buffer, asked.size, static_cast<off_t>(asked.offset));
    return result < 0 ? -errno : static_cast<int>(result);  // Linux returns at most 2^31 - 4096 bytes
  };
  return make_pooled_engine(BlockFile::open_direct(path, filter), "pread", queue_depth, raw_read);
}

}  // namespace mtrains
