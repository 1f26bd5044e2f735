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

size_t contraction_length(std::string_view text) {  // length of "'s" and the like at the front, else 0
  for (std::string_view ending : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"})
    if (text.starts_with(ending)) return ending.size();
  return 0;
}

bool is_continuation(char byte) { return (uint8_t(byte) & 0xc0) == 0x80; }  // a continuation byte

CharKind kind_before(std::string_view text, size_t at) {
  size_t lead = at - 1;
  while (lead > 0 && at - lead < 4 && is_continuation(text[lead])) --lead;
  const Sign sign = sign_at(text, lead);
  return lead + sign.bytes == at ? sign.kind : CharKind::sign;
}

// Whether a word ends at `at`, whatever surrounds these two characters: the first is not a space, and the second is of another class. An apostrophe may belong
// to the letters after it ('s), and runs of spaces are split depending on what follows.
bool word_ends_at(std::string_view text, size_t at) {
  if (is_continuation(text[at])) return false;
  const CharKind before = kind_before(text, at), after = sign_at(text, at).kind;
  return before != CharKind::blank && before != after && !(text[at - 1] == '\'' && after == CharKind::letter);
}

}  // namespace

size_t word_end(std::string_view text, size_t begin) {
  if (text[begin] == '\'')
    if (const size_t length = contraction_length(text.substr(begin, 3))) return begin + length;
  size_t at = begin;
  Sign first = sign_at(text, at);
  if (text[at] == ' ' && at + 1 < text.size())
    if (const Sign next = sign_at(text, at + 1); next.kind != CharKind::blank) first = next, ++at;

  size_t last = at;  // start of the run's last character
  for (at += first.bytes; at < text.size();) {
    const Sign next = sign_at(text, at);
    if (next.kind != first.kind) break;
    last = at;
    at += next.bytes;
  }
  const bool leaves_one = first.kind == CharKind::blank && at < text.size() && last > begin;
  return leaves_one ? last : at;
}

std::vector<std::string_view> cut_between_words(std::string_view text, size_t size, const SpecialTokens& special) {
  size = std::max<size_t>(size, 1);
  std::vector<std::string_view> parts;
  size_t begin = 0;  // start of the next part
  const auto cut_at = [&](size_t at) {
    parts.push_back(text.substr(begin, at - begin));
    begin = at;
  };
  for (std::string_view rest = text; !rest.empty();) {
    const size_t first = text.size() - rest.size();
    if (first >= begin + size) cut_at(first);  // after a special token
    const SpecialToken* found = nullptr;
    const std::string_view ordinary = special.take_ordinary(rest, found);
    for (size_t at = std::max(first + 1, begin + size); at < first + ordinary.size(); at = std::max(at + 1, begin + size))
      if (word_ends_at(ordinary, at - first)) cut_at(at);
  }
  if (begin < text.size()) cut_at(text.size());
  return parts;
}

size_t first_ascii_word_end(std::string_view text, size_t from) {
  for (size_t at = std::max<size_t>(from, 1); at < text.size(); ++at) {
    const uint8_t before = uint8_t(text[at - 1]);
    if ((text[at] == ' ' || text[at] == '\n') && before < 128 && kAsciiKinds[before] != CharKind::blank) return at;
  }
  return text.size();
}

}  // namespace ridge
