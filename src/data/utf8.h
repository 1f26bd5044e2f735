// UTF-8 one code point at a time. Bytes that are not UTF-8 are passed on as such, one by one, so that no text is refused or changed.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace ridge {

constexpr char32_t kNotUtf8 = 0xffffffff;

struct CodePoint {
  char32_t value = kNotUtf8;
  uint32_t bytes = 1;  // how many it takes in the text
};

// The one at text[at]. Overlong forms, surrogates and what lies beyond U+10FFFF are not UTF-8.
inline CodePoint code_point_at(std::string_view text, size_t at) {
  const uint8_t lead = uint8_t(text[at]);
  if (lead < 0x80) return {lead, 1};
  const uint32_t bytes = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() - at < bytes) return {};
  char32_t value = lead & (0x7f >> bytes);
  for (uint32_t i = 1; i < bytes; ++i) {
    const uint8_t next = uint8_t(text[at + i]);
    if ((next & 0xc0) != 0x80) return {};
    value = value << 6 | (next & 0x3f);
  }
  constexpr char32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  if (value < kSmallest[bytes] || value > 0x10ffff || (value >= 0xd800 && value < 0xe000)) return {};
  return {value, bytes};
}

inline void append_utf8(std::string& out, char32_t value) {
  const int following = value < 0x80 ? 0 : value < 0x800 ? 1 : value < 0x10000 ? 2 : 3;
  constexpr uint8_t kLead[] = {0, 0xc0, 0xe0, 0xf0};
  out += char(kLead[following] | value >> 6 * following);
  for (int i = following - 1; i >= 0; --i) out += char(0x80 | (value >> 6 * i & 0x3f));
}

}  // namespace ridge
