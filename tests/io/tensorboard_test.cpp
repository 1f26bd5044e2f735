#include "io/tensorboard.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>
#include <optional>
#include <vector>

#include "base/error.h"
#include "support/temp_folder.h"

namespace ridge {
namespace {

namespace fs = std::filesystem;

// A reader that knows the format from its description and shares nothing with the writer: bits instead of a table for the checksum.
uint32_t crc_by_bits(std::string_view bytes) {
  uint32_t crc = 0xffffffff;
  for (const char byte : bytes)
    for (int bit = 0; bit < 8; ++bit) {
      const bool low = (crc ^ uint32_t(uint8_t(byte)) >> bit) & 1;
      crc = crc >> 1 ^ (low ? 0x82f63b78u : 0);
    }
  return ~crc;
}

uint64_t little(std::string_view bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < bytes.size(); ++i) value |= uint64_t(uint8_t(bytes[i])) << 8 * i;
  return value;
}

bool crc_holds(std::string_view data, std::string_view stored) {
  const uint32_t masked = uint32_t(little(stored)) - 0xa282ead8u;
  return (masked << 15 | masked >> 17) == crc_by_bits(data);
}

struct Field {
  uint64_t number = 0, wire = 0, value = 0;
  std::string bytes;
};

uint64_t varint(std::string_view& text) {
  uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    const uint8_t byte = uint8_t(text.at(0));
    text.remove_prefix(1);
    value |= uint64_t(byte & 0x7f) << shift;
    if (byte < 0x80) return value;
  }
}

std::vector<Field> fields(std::string_view text) {
  std::vector<Field> out;
  while (!text.empty()) {
    const uint64_t key = varint(text);
    Field field{key >> 3, key & 7, 0, {}};
    size_t size = 0;
    if (field.wire == 0) field.value = varint(text);
    if (field.wire == 1) size = 8;
    if (field.wire == 5) size = 4;
    if (field.wire == 2) size = varint(text);
    field.bytes = text.substr(0, size);
    EXPECT_EQ(field.bytes.size(), size);
    if (field.wire == 1 || field.wire == 5) field.value = little(field.bytes);
    text.remove_prefix(size);
    out.push_back(field);
  }
  return out;
}

std::optional<Field> field(std::string_view message, uint64_t number) {
  for (const Field& f : fields(message))
    if (f.number == number) return f;
  return {};
}

std::vector<std::string> records(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string all{std::istreambuf_iterator<char>(file), {}};
  std::vector<std::string> out;
  for (std::string_view rest = all; !rest.empty();) {
    const std::string_view length = rest.substr(0, 8);
    const uint64_t size = little(length);
    EXPECT_TRUE(crc_holds(length, rest.substr(8, 4)));
    out.emplace_back(rest.substr(12, size));
    EXPECT_TRUE(crc_holds(out.back(), rest.substr(12 + size, 4)));
    rest.remove_prefix(16 + size);
  }
  return out;
}

TEST(Tensorboard, ChecksumsAreThoseOfTheStandard) {
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  EXPECT_EQ(crc32c(""), 0u);
}

TEST(Tensorboard, ScalarsAreReadBack) {
  const test::TempFolder folder;
  const fs::path root = folder.path();
  std::filesystem::path path;
  {
    TensorboardFile file(root / "a" / "b");
    path = file.path();
    file.scalar("loss/train", 1, 2.5);
    file.scalar("loss/train", 300, 1e-30);
    file.scalar("lr", int64_t(1) << 40, -0.0);
    file.scalar("lr", 5, NAN);
    file.scalar("lr", 6, std::numeric_limits<double>::infinity());
  }
  EXPECT_TRUE(path.filename().string().starts_with("events.out.tfevents."));
  const std::vector<std::string> all = records(path);
  ASSERT_EQ(all.size(), 4u) << "what is not finite is left out";
  EXPECT_EQ(field(all[0], 3)->bytes, "brain.Event:2");
  const struct {
    const char* tag;
    int64_t step;
    float value;
  } wanted[] = {{"loss/train", 1, 2.5f}, {"loss/train", 300, 1e-30f}, {"lr", int64_t(1) << 40, -0.0f}};
  for (size_t i = 0; i < 3; ++i) {
    const std::string& event = all[i + 1];
    const double when = std::bit_cast<double>(field(event, 1)->value);
    EXPECT_GT(when, 1.6e9);
    EXPECT_LT(when, 1e11);
    EXPECT_EQ(int64_t(field(event, 2)->value), wanted[i].step);
    const std::string value = field(field(event, 5)->bytes, 1)->bytes;
    EXPECT_EQ(field(value, 1)->bytes, wanted[i].tag);
    EXPECT_EQ(uint32_t(field(value, 2)->value), std::bit_cast<uint32_t>(wanted[i].value));
  }
}

TEST(Tensorboard, TextsAreTensorsOfOneString) {
  const test::TempFolder folder;
  const fs::path root = folder.path();
  TensorboardFile file(root);
  const std::string words = "once upon a time\n\"ä\"" + std::string(100000, 'x');
  file.text("sample", 7, words);
  file.flush();
  const std::vector<std::string> all = records(file.path());
  ASSERT_EQ(all.size(), 2u);
  const std::string value = field(field(all[1], 5)->bytes, 1)->bytes;
  EXPECT_EQ(field(value, 1)->bytes, "sample");
  const std::string tensor = field(value, 8)->bytes;
  EXPECT_EQ(field(tensor, 1)->value, 7u);
  EXPECT_EQ(field(field(field(tensor, 2)->bytes, 2)->bytes, 1)->value, 1u);
  EXPECT_EQ(field(tensor, 8)->bytes, words);
  EXPECT_EQ(field(field(field(value, 9)->bytes, 1)->bytes, 1)->bytes, "text");
}

TEST(Tensorboard, AResumedRunSaysWhereItGoesOn) {
  const test::TempFolder folder;
  const fs::path root = folder.path();
  TensorboardFile first(root), second(root, 120);
  EXPECT_NE(first.path(), second.path());
  const std::vector<std::string> all = records(second.path());
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(field(all[1], 2)->value, 120u);
  EXPECT_EQ(field(field(all[1], 7)->bytes, 1)->value, 1u);
}

TEST(Tensorboard, AFolderThatCannotBeMadeIsAnError) {
  const test::TempFolder folder;
  const fs::path root = folder.path();
  std::ofstream(root / "file") << "x";
  EXPECT_THROW(TensorboardFile(root / "file" / "events"), Error);
}

}  // namespace
}  // namespace ridge
