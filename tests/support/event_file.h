// An independent reader of TensorBoard event files, written from the format's description; it shares no code with the writer.
#pragma once
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ridge::test {

inline uint32_t crc_by_bits(std::string_view bytes) {
  uint32_t crc = 0xffffffff;
  for (const char byte : bytes)
    for (int bit = 0; bit < 8; ++bit) {
      const bool low = (crc ^ uint32_t(uint8_t(byte)) >> bit) & 1;
      crc = crc >> 1 ^ (low ? 0x82f63b78u : 0);
    }
  return ~crc;
}

inline uint64_t little(std::string_view bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < bytes.size(); ++i) value |= uint64_t(uint8_t(bytes[i])) << 8 * i;
  return value;
}

inline bool crc_holds(std::string_view data, std::string_view stored) {
  const uint32_t masked = uint32_t(little(stored)) - 0xa282ead8u;
  return (masked << 15 | masked >> 17) == crc_by_bits(data);
}

struct Field {
  uint64_t number = 0, wire = 0, value = 0;
  std::string bytes;
};

inline uint64_t varint(std::string_view& text) {
  uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    const uint8_t byte = uint8_t(text.at(0));
    text.remove_prefix(1);
    value |= uint64_t(byte & 0x7f) << shift;
    if (byte < 0x80) return value;
  }
}

inline std::vector<Field> fields(std::string_view text) {
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

inline std::optional<Field> field(std::string_view message, uint64_t number) {
  for (const Field& f : fields(message))
    if (f.number == number) return f;
  return {};
}

inline std::vector<std::string> records(const std::filesystem::path& path) {
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

}  // namespace ridge::test
