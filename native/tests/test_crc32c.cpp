#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "check.h"
#include "mtrains/crc32c.h"

using mtrains::crc32c;
using mtrains::crc32c_portable;

namespace {

// One bit at a time, as the definition says: the oracle of both paths.
std::uint32_t bitwise(const unsigned char* data, std::size_t size) {
  std::uint32_t crc = 0xffffffff;
  for (std::size_t i = 0; i < size; ++i) {
    crc ^= data[i];
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) != 0 ? (crc >> 1) ^ 0x82f63b78 : crc >> 1;
  }
  return ~crc;
}

std::vector<unsigned char> noise(std::size_t size) {
  std::vector<unsigned char> bytes(size);
  std::uint32_t state = 12345;
  for (unsigned char& byte : bytes) {
    state = state * 1664525 + 1013904223;
    byte = static_cast<unsigned char>(state >> 24);
  }
  return bytes;
}

}  // namespace

// Source of the expected values: RFC 3720, appendix B.4, and the check value of CRC-32C.
TEST(known_answers) {
  const std::string_view digits = "123456789";
  const std::vector<unsigned char> zeros(32, 0x00);
  const std::vector<unsigned char> ones(32, 0xff);
  std::vector<unsigned char> rising(32);
  for (std::size_t i = 0; i < rising.size(); ++i) rising[i] = static_cast<unsigned char>(i);
  for (const auto path : {crc32c, crc32c_portable}) {
    CHECK_EQ(path(digits.data(), digits.size(), 0), 0xe3069283U);
    CHECK_EQ(path(zeros.data(), zeros.size(), 0), 0x8a9136aaU);
    CHECK_EQ(path(ones.data(), ones.size(), 0), 0x62a8ab43U);
    CHECK_EQ(path(rising.data(), rising.size(), 0), 0x46dd794eU);
    CHECK_EQ(path(nullptr, 0, 0), 0U);
    CHECK_EQ(path(nullptr, 0, 77), 77U);
  }
}

TEST(every_length_and_alignment_agrees_with_the_definition) {
  const std::vector<unsigned char> bytes = noise(9000);
  std::vector<std::size_t> sizes;
  for (std::size_t size = 0; size < 800; ++size) sizes.push_back(size);
  for (const std::size_t size :
       {1151U, 1152U, 4079U, 4080U, 4081U, 4092U, 4095U, 4096U, 4097U, 8160U, 8191U, 8980U}) {
    sizes.push_back(size);
  }
  for (const std::size_t size : sizes) {
    const std::size_t shift = size % 17;
    const std::uint32_t expected = bitwise(bytes.data() + shift, size);
    CHECK_EQ(crc32c(bytes.data() + shift, size), expected);
    CHECK_EQ(crc32c_portable(bytes.data() + shift, size), expected);
  }
}

TEST(a_result_continues_over_any_split) {
  const std::vector<unsigned char> bytes = noise(4096);
  const std::uint32_t whole = crc32c(bytes.data(), bytes.size());
  for (std::size_t split = 0; split <= bytes.size(); split += 13) {
    const std::uint32_t first = crc32c(bytes.data(), split);
    CHECK_EQ(crc32c(bytes.data() + split, bytes.size() - split, first), whole);
    CHECK_EQ(crc32c_portable(bytes.data() + split, bytes.size() - split, first), whole);
  }
}

TEST_MAIN()
