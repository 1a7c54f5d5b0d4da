#include "mtrains/crc32c.h"

#include <array>
#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace mtrains {
namespace {

static_assert(std::endian::native == std::endian::little,
              "the log's words and both CRC paths are little-endian");

// Bits are reflected throughout: bit 31 of a register is the coefficient of x^0. Source: RFC 3720, 12.1.
constexpr std::uint32_t kPolynomial = 0x82f63b78;
constexpr std::uint32_t kOne = 0x80000000;
constexpr std::uint32_t kXToThe8 = 0x00800000;

constexpr std::uint32_t times_x(std::uint32_t a) { return (a & 1) != 0 ? (a >> 1) ^ kPolynomial : a >> 1; }

constexpr std::uint32_t multiply(std::uint32_t a, std::uint32_t b) {
  std::uint32_t product = 0;
  for (std::uint32_t term = kOne; term != 0; term >>= 1, b = times_x(b)) {
    if ((a & term) != 0) product ^= b;
  }
  return product;
}

using ByteTable = std::array<std::uint32_t, 256>;

// tables[k][b]: the register after byte b and k further zero bytes.
constexpr std::array<ByteTable, 8> make_slices() {
  std::array<ByteTable, 8> tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = times_x(value);
    tables[0][byte] = value;
  }
  for (std::size_t k = 1; k < 8; ++k) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t before = tables[k - 1][byte];
      tables[k][byte] = (before >> 8) ^ tables[0][before & 0xff];
    }
  }
  return tables;
}

constexpr std::array<ByteTable, 8> kSlices = make_slices();

std::uint64_t load_word(const unsigned char* at) {
  std::uint64_t word;
  std::memcpy(&word, at, sizeof word);
  return word;
}

#if defined(__x86_64__)

// Moves a register over num_bytes zero bytes: multiplication by x^(8 num_bytes), as one table per register
// byte.
class ZeroShift {
 public:
  explicit constexpr ZeroShift(std::size_t num_bytes) : tables_{} {
    std::uint32_t factor = kOne;
    std::uint32_t square = kXToThe8;
    for (std::size_t n = num_bytes; n != 0; n >>= 1, square = multiply(square, square)) {
      if ((n & 1) != 0) factor = multiply(factor, square);
    }
    for (std::size_t position = 0; position < 4; ++position) {
      for (std::size_t bit = 0; bit < 8; ++bit) {
        const std::size_t first = std::size_t{1} << bit;
        const std::uint32_t image = multiply(factor, std::uint32_t{1} << (8 * position + bit));
        for (std::size_t rest = 0; rest < first; ++rest) {
          tables_[position][first + rest] = tables_[position][rest] ^ image;
        }
      }
    }
  }

  std::uint32_t operator()(std::uint32_t crc) const {
    return tables_[0][crc & 0xff] ^ tables_[1][(crc >> 8) & 0xff] ^ tables_[2][(crc >> 16) & 0xff] ^
           tables_[3][crc >> 24];
  }

 private:
  std::array<ByteTable, 4> tables_;
};

// The crc32 instruction takes 3 cycles but one may start each cycle, so three streams run side by side.
// A 4,096-byte block is one round of long streams and 16 bytes.
constexpr std::size_t kLongStream = 1360;
constexpr std::size_t kShortStream = 128;
constexpr ZeroShift kOverLong{kLongStream};
constexpr ZeroShift kOverShort{kShortStream};

__attribute__((target("sse4.2"))) std::uint32_t three_streams(const unsigned char* at, std::size_t stream,
                                                              const ZeroShift& over, std::uint32_t crc) {
  std::uint64_t a = crc;
  std::uint64_t b = 0;
  std::uint64_t c = 0;
  for (const unsigned char* end = at + stream; at != end; at += 8) {
    a = _mm_crc32_u64(a, load_word(at));
    b = _mm_crc32_u64(b, load_word(at + stream));
    c = _mm_crc32_u64(c, load_word(at + 2 * stream));
  }
  const std::uint32_t ab = over(static_cast<std::uint32_t>(a)) ^ static_cast<std::uint32_t>(b);
  return over(ab) ^ static_cast<std::uint32_t>(c);
}

__attribute__((target("sse4.2"))) std::uint32_t crc32c_sse42(const void* data, std::size_t size,
                                                             std::uint32_t crc) {
  const auto* at = static_cast<const unsigned char*>(data);
  crc = ~crc;
  for (; size >= 3 * kLongStream; at += 3 * kLongStream, size -= 3 * kLongStream) {
    crc = three_streams(at, kLongStream, kOverLong, crc);
  }
  for (; size >= 3 * kShortStream; at += 3 * kShortStream, size -= 3 * kShortStream) {
    crc = three_streams(at, kShortStream, kOverShort, crc);
  }
  for (; size >= 8; at += 8, size -= 8) crc = static_cast<std::uint32_t>(_mm_crc32_u64(crc, load_word(at)));
  for (; size != 0; ++at, --size) crc = _mm_crc32_u8(crc, *at);
  return ~crc;
}

#endif

using Crc32c = std::uint32_t (*)(const void*, std::size_t, std::uint32_t);

Crc32c fastest_path() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2")) return crc32c_sse42;
#endif
  return crc32c_portable;
}

}  // namespace

std::uint32_t crc32c_portable(const void* data, std::size_t size, std::uint32_t crc) {
  const auto* at = static_cast<const unsigned char*>(data);
  crc = ~crc;
  for (; size >= 8; at += 8, size -= 8) {
    const std::uint64_t word = load_word(at) ^ crc;
    crc = 0;
    for (std::size_t k = 0; k < 8; ++k) crc ^= kSlices[7 - k][(word >> (8 * k)) & 0xff];
  }
  for (; size != 0; ++at, --size) crc = (crc >> 8) ^ kSlices[0][(crc ^ *at) & 0xff];
  return ~crc;
}

std::uint32_t crc32c(const void* data, std::size_t size, std::uint32_t crc) {
  static const Crc32c path = fastest_path();
  return path(data, size, crc);
}

}  // namespace mtrains
