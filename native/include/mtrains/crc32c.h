// CRC32C (Castagnoli), SSE4.2 where the CPU has it, a table otherwise.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mtrains {

// crc32c("123456789") == 0xe3069283. `crc` continues an earlier result (0 to begin).
std::uint32_t crc32c(const void* data, std::size_t size, std::uint32_t crc = 0);

// The table path, whatever the CPU; the same result.
std::uint32_t crc32c_portable(const void* data, std::size_t size, std::uint32_t crc = 0);

}  // namespace mtrains
