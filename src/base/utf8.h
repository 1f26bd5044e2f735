// Decodes UTF-8 one code point at a time. Invalid bytes are passed through one by one, so that no text is rejected or changed.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace ridge {

constexpr char32_t kNotUtf8 = 0xffffffff;

struct CodePoint {
  char32_t value = kNotUtf8;
  uint32_t bytes = 1;  // length of its encoding
};

// The code point at text[at]. Overlong forms, surrogates and code points above U+10FFFF are invalid.
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

// Two columns wide in a terminal: East Asian letters and emoji.
inline bool is_wide(char32_t c) {
  return (c >= 0x1100 && c < 0x1160) || (c >= 0x2e80 && c < 0xa4d0 && c != 0x303f) || (c >= 0xac00 && c < 0xd7a4) || (c >= 0xf900 && c < 0xfb00) ||
         (c >= 0xfe30 && c < 0xfe70) || (c >= 0xff00 && c < 0xff61) || (c >= 0xffe0 && c < 0xffe7) || (c >= 0x1f000 && c < 0xe0000);
}

// Zero columns wide: combining marks, joiners and other invisible characters.
inline bool is_mark(char32_t c) {
  return (c >= 0x300 && c < 0x370) || (c >= 0x483 && c < 0x48a) || (c >= 0x591 && c < 0x5be) || (c >= 0x64b && c < 0x660) || (c >= 0x1ab0 && c < 0x1b00) ||
         (c >= 0x1dc0 && c < 0x1e00) || (c >= 0x200b && c < 0x2010) || (c >= 0x202a && c < 0x202f) || (c >= 0x2060 && c < 0x2070) ||
         (c >= 0x20d0 && c < 0x2100) || (c >= 0xfe00 && c < 0xfe10) || (c >= 0xfe20 && c < 0xfe30) || c == 0xfeff || c >= 0xe0000;
}

}  // namespace ridge
