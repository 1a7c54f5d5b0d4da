#include <cstring>
#include <random>
#include <vector>

#include "check.h"
#include "mtrains/errors.h"
#include "mtrains/segment_format.h"

using namespace mtrains;

namespace {

SegmentHeader sample() {
  SegmentHeader header;
  header.segment_id = (std::uint64_t{7} << 32) | 3;
  header.epoch = 12;
  header.number = 4;
  header.closes = true;
  header.meta = "{\"table\": 1}";
  header.blocks.push_back({0, 1, 260, 0, {1, 5, 9}});
  header.blocks.push_back({3, 0, 5000, 1, {}});
  header.blocks.push_back({3, 0, 5000, 0, {std::uint64_t{1} << 40}});
  header.blocks.push_back({2, 0, 4, 0, {}});
  return header;
}

std::vector<std::byte> sealed(const SegmentHeader& header) {
  std::vector<std::byte> image(kSegmentImageBytes, std::byte{0xee});
  std::mt19937 random(1);
  for (std::uint32_t b = 0; b < header.blocks.size(); ++b) {
    for (std::size_t i = 0; i < kBlockDataBytes; ++i)
      block_in_image(image.data(), b)[i] = static_cast<std::byte>(random());
  }
  seal_image(header, image.data());
  return image;
}

}  // namespace

TEST(a_header_reads_back_as_written) {
  const SegmentHeader header = sample();
  const auto image = sealed(header);
  const SegmentHeader read = parse_header(image.data() + kValueOffset, kSegmentBytes);
  CHECK_EQ(read.segment_id, header.segment_id);
  CHECK_EQ(read.epoch, header.epoch);
  CHECK_EQ(read.number, header.number);
  CHECK(read.closes);
  CHECK(read.meta == header.meta);
  CHECK_EQ(read.blocks.size(), header.blocks.size());
  for (std::size_t b = 0; b < read.blocks.size(); ++b) {
    CHECK_EQ(read.blocks[b].table, header.blocks[b].table);
    CHECK_EQ(read.blocks[b].layout, header.blocks[b].layout);
    CHECK_EQ(read.blocks[b].stride, header.blocks[b].stride);
    CHECK_EQ(read.blocks[b].chunk, header.blocks[b].chunk);
    CHECK(read.blocks[b].rows == header.blocks[b].rows);
  }
}

TEST(every_flipped_bit_of_header_and_blocks_is_seen) {
  const SegmentHeader header = sample();
  const auto image = sealed(header);
  const std::size_t size = header_bytes(header, header.meta.size());
  for (std::size_t at = 0; at < size; ++at) {
    auto flipped = image;
    flipped[kValueOffset + at] ^= std::byte{1};
    CHECK_THROWS(parse_header(flipped.data() + kValueOffset, kSegmentBytes), CorruptionError);
  }
  for (std::size_t at = 0; at < kPageBytes; at += 7) {
    auto flipped = image;
    block_in_image(flipped.data(), 0)[at] ^= std::byte{0x10};
    CHECK(!check_block(block_in_image(flipped.data(), 0), header.segment_id, 0));
  }
}

TEST(a_block_of_another_place_or_segment_is_refused) {
  const SegmentHeader header = sample();
  auto image = sealed(header);
  CHECK(check_block(block_in_image(image.data(), 1), header.segment_id, 1));
  CHECK(!check_block(block_in_image(image.data(), 1), header.segment_id, 2));
  CHECK(!check_block(block_in_image(image.data(), 1), header.segment_id + 1, 1));
}

TEST(what_is_not_used_is_zero) {
  const SegmentHeader header = sample();
  auto image = sealed(header);
  const std::byte* block = block_in_image(image.data(), 0);
  for (std::size_t at = 3 * 260; at < kBlockDataBytes; ++at) CHECK(block[at] == std::byte{0});
}

TEST(a_meta_that_does_not_fit_is_refused) {
  SegmentHeader header = sample();
  header.meta.assign(kSegmentImageBytes, 'x');
  std::vector<std::byte> image(kSegmentImageBytes);
  CHECK_THROWS(seal_image(header, image.data()), std::invalid_argument);
}

TEST_MAIN()
