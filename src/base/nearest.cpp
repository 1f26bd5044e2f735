#include "base/nearest.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <fmt/core.h>

namespace ridge {

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1), above(b.size() + 1), two_above(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t(0));
  for (size_t i = 1; i <= a.size(); ++i) {
    std::swap(two_above, above);
    std::swap(above, row);
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], two_above[j - 2] + 1);
    }
  }
  return row[b.size()];
}

namespace {

// Capitals do not count, and of a word without its end only that it is incomplete: "Batch" and "valid" are close to "batch" and "validation_interval".
size_t difference(std::string_view word, std::string_view name) {
  constexpr size_t kLongestWord = 64, kStem = 4;
  const auto lower = [](std::string_view text) {
    std::string out(text);
    std::transform(out.begin(), out.end(), out.begin(), [](unsigned char c) { return char(std::tolower(c)); });
    return out;
  };
  const std::string a = lower(word.substr(0, kLongestWord)), b = lower(name);
  return a.size() >= kStem && a.size() < b.size() && b.starts_with(a) ? 1 : edit_distance(a, b);
}

}  // namespace

std::string_view nearest(std::string_view word, std::span<const std::string_view> names) {
  std::string_view best;
  std::pair least(SIZE_MAX, SIZE_MAX);
  for (std::string_view name : names)
    if (const size_t d = difference(word, name); d <= least.first) {
      const std::pair both(d, edit_distance(word.substr(0, name.size() + d), name));  // of two names that begin alike, the shorter one
      if (both < least) least = both, best = name;
    }
  return best;
}

std::string close_hint(std::string_view word, std::span<const std::string_view> names) {
  const std::string_view name = nearest(word, names);
  // One letter in three may be wrong; beyond that the words are unrelated.
  const bool close = !name.empty() && !word.empty() && difference(word, name) * 3 <= std::max(word.size(), name.size());
  return close ? fmt::format("did you mean '{}'?", name) : std::string();
}

std::string nearest_hint(std::string_view word, std::span<const std::string_view> names, std::string_view otherwise) {
  if (names.empty()) return "there are none";
  std::string hint = close_hint(word, names);
  if (!hint.empty()) return hint;
  if (!otherwise.empty()) return std::string(otherwise);
  constexpr size_t kMax = 12;
  for (size_t i = 0; i < std::min(names.size(), kMax); ++i) hint += fmt::format("{}{}", i ? ", " : "valid: ", names[i]);
  return names.size() > kMax ? hint + ", …" : hint;
}

}  // namespace ridge
