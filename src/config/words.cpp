#include "config/words.h"

#include <cstdint>

#include <fmt/core.h>

namespace ridge::config {

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  if (text.empty()) return parts;
  for (size_t begin = 0;;) {
    const size_t end = text.find(separator, begin);
    parts.push_back(text.substr(begin, end - begin));
    if (end == text.npos) return parts;
    begin = end + 1;
  }
}

std::string_view trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t"), end = text.find_last_not_of(" \t");
  return begin == text.npos ? std::string_view() : text.substr(begin, end - begin + 1);
}

std::string shown(std::string_view text) {
  constexpr size_t kMax = 60;
  std::string_view part = text.substr(0, kMax);
  part = part.substr(0, first_non_utf8(part));  // drops a truncated character, and bytes that no terminal should see
  std::string out;
  for (char c : part) out += uint8_t(c) < 32 || c == 127 ? '?' : c;
  return part.size() < text.size() ? fmt::format("'{}…' ({} bytes)", out, text.size()) : fmt::format("'{}'", out);
}

size_t first_non_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const uint8_t lead = uint8_t(text[i]);
    const size_t length = lead < 0x80 ? 1 : lead >= 0xc2 && lead < 0xe0 ? 2 : (lead & 0xf0) == 0xe0 ? 3 : lead >= 0xf0 && lead < 0xf5 ? 4 : 0;
    if (length == 0 || i + length > text.size()) return i;
    for (size_t k = 1; k < length; ++k)
      if ((uint8_t(text[i + k]) & 0xc0) != 0x80) return i;
    const uint8_t second = length > 1 ? uint8_t(text[i + 1]) : 0;
    // Overlong forms, surrogates, and code points beyond the last one.
    if ((lead == 0xe0 && second < 0xa0) || (lead == 0xed && second >= 0xa0) || (lead == 0xf0 && second < 0x90) || (lead == 0xf4 && second >= 0x90)) return i;
    i += length;
  }
  return kAllUtf8;
}

}  // namespace ridge::config
