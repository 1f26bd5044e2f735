#include "data/pre_tokenize.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <span>

#include "base/utf8.h"
#include "data/unicode_ranges.h"

namespace ridge {
namespace {

enum class CharKind : uint8_t { sign, letter, number, blank };

constexpr CodeRange kBlanks[] = {{0x09, 0x0d},     {0x20, 0x20},     {0x85, 0x85},     {0xa0, 0xa0},     {0x1680, 0x1680},
                                 {0x2000, 0x200a}, {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000}};

constexpr bool within(std::span<const CodeRange> ranges, char32_t value) {
  const auto after = std::upper_bound(ranges.begin(), ranges.end(), value, [](char32_t v, const CodeRange& r) { return v < r.first; });
  return after != ranges.begin() && value <= std::prev(after)->last;
}

constexpr CharKind kind_of(char32_t value) {
  return within(kLetters, value) ? CharKind::letter : within(kBlanks, value) ? CharKind::blank : within(kNumbers, value) ? CharKind::number : CharKind::sign;
}

constexpr auto kAsciiKinds = [] {
  std::array<CharKind, 128> kinds{};
  for (char32_t c = 0; c < 128; ++c) kinds[c] = kind_of(c);
  return kinds;
}();

struct Sign {
  CharKind kind;
  uint32_t bytes;
};

Sign sign_at(std::string_view text, size_t at) {
  if (const uint8_t c = uint8_t(text[at]); c < 128) return {kAsciiKinds[c], 1};
  const CodePoint point = code_point_at(text, at);
  return {point.value == kNotUtf8 ? CharKind::sign : kind_of(point.value), point.bytes};
}

size_t contraction_length(std::string_view text) {  // of "'s" and the like at the front, else 0
  for (std::string_view ending : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"})
    if (text.starts_with(ending)) return ending.size();
  return 0;
}

}  // namespace

size_t word_end(std::string_view text, size_t begin) {
  if (text[begin] == '\'')
    if (const size_t length = contraction_length(text.substr(begin, 3))) return begin + length;
  size_t at = begin;
  Sign first = sign_at(text, at);
  if (text[at] == ' ' && at + 1 < text.size())
    if (const Sign next = sign_at(text, at + 1); next.kind != CharKind::blank) first = next, ++at;

  size_t last = at;  // where the last sign of the run begins
  for (at += first.bytes; at < text.size();) {
    const Sign next = sign_at(text, at);
    if (next.kind != first.kind) break;
    last = at;
    at += next.bytes;
  }
  const bool leaves_one = first.kind == CharKind::blank && at < text.size() && last > begin;
  return leaves_one ? last : at;
}

std::vector<std::string_view> cut_between_words(std::string_view text, size_t size) {
  std::vector<std::string_view> parts;
  // A word always ends where a blank follows something else, whatever lies before. Both are looked for in ASCII, where one byte tells.
  const auto ends_at = [&](size_t at) {
    const uint8_t before = uint8_t(text[at - 1]);
    return (text[at] == ' ' || text[at] == '\n') && before < 128 && kAsciiKinds[before] != CharKind::blank;
  };
  for (size_t begin = 0; begin < text.size();) {
    size_t end = text.size() - begin > size ? begin + std::max<size_t>(size, 1) : text.size();
    while (end < text.size() && !ends_at(end)) ++end;
    parts.push_back(text.substr(begin, end - begin));
    begin = end;
  }
  return parts;
}

}  // namespace ridge
