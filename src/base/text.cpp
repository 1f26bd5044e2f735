#include "base/text.h"

#include <algorithm>

#include <fmt/core.h>

namespace ridge {

std::string lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower)
    if (c >= 'A' && c <= 'Z') c = char(c - 'A' + 'a');
  return lower;
}

std::string size_text(int64_t bytes) {
  constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB", "PiB"};
  if (bytes > -1024 && bytes < 1024) return fmt::format("{} B", bytes);
  double value = double(bytes) / 1024;
  size_t unit = 0;
  // 1023.9 would be written as 1024.
  for (; (value >= 1023.5 || value <= -1023.5) && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  const double size = value < 0 ? -value : value;
  std::string number = fmt::format("{:.{}f}", value, size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2);
  if (number.find('.') != std::string::npos) {
    number.erase(number.find_last_not_of('0') + 1);
    if (number.back() == '.') number.pop_back();
  }
  return fmt::format("{} {}", number, kUnits[unit]);
}

int display_width(std::string_view text) {
  return int(std::count_if(text.begin(), text.end(), [](char c) { return (uint8_t(c) & 0xc0) != 0x80; }));
}

std::string wrap(std::string_view text, int width, int indent) {
  std::string out;
  int column = indent;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(word.size() + 1, text.size()));
    const int columns = display_width(word);
    if (column > indent && column + 1 + columns > width) {
      out += '\n' + std::string(size_t(indent), ' ');
      column = indent;
    } else if (column > indent) {
      out += ' ';
      ++column;
    }
    out += word;
    column += columns;
  }
  return out;
}

}  // namespace ridge
