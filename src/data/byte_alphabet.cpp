#include "data/byte_alphabet.h"

#include <array>

#include "base/utf8.h"

namespace ridge {
namespace {

// Bytes that are printable in Latin-1 are spelled as themselves, the others as U+0100 and up, in order.
constexpr auto kAlphabet = [] {
  std::array<char16_t, 256> alphabet{};
  char16_t next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte != 0xad);
    alphabet[size_t(byte)] = printable ? char16_t(byte) : next++;
  }
  return alphabet;
}();

constexpr size_t kCharacters = 256 + 68;

constexpr auto kBytes = [] {
  std::array<int16_t, kCharacters> bytes{};
  bytes.fill(-1);
  for (size_t byte = 0; byte < 256; ++byte) bytes[kAlphabet[byte]] = int16_t(byte);
  return bytes;
}();

}  // namespace

std::string spell_bytes(std::string_view bytes) {
  std::string out;
  for (char byte : bytes) append_utf8(out, kAlphabet[uint8_t(byte)]);
  return out;
}

std::optional<std::string> read_spelling(std::string_view characters) {
  std::string out;
  for (size_t at = 0; at < characters.size();) {
    const CodePoint point = code_point_at(characters, at);
    if (point.value >= kCharacters || kBytes[point.value] < 0) return {};
    out += char(kBytes[point.value]);
    at += point.bytes;
  }
  return out;
}

}  // namespace ridge
