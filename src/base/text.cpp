#include "base/text.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <vector>

#include <fmt/core.h>

#include "base/utf8.h"

namespace ridge {

std::string expand_home(const std::string& path) {
  const char* const home = std::getenv("HOME");
  if (!home || !*home || (path != "~" && !path.starts_with("~/"))) return path;
  return home + path.substr(1);
}

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
  // 1023.9 would print as 1024.
  for (; (value >= 1023.5 || value <= -1023.5) && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  const double size = value < 0 ? -value : value;
  std::string number = fmt::format("{:.{}f}", value, size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2);
  if (number.find('.') != std::string::npos) {
    number.erase(number.find_last_not_of('0') + 1);
    if (number.back() == '.') number.pop_back();
  }
  return fmt::format("{} {}", number, kUnits[unit]);
}

std::string grouped(int64_t count) {
  std::string text = fmt::format("{}", count);
  for (int at = int(text.size()) - 3; at > (count < 0 ? 1 : 0); at -= 3) text.insert(size_t(at), ",");
  return text;
}

std::string counted(int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", grouped(count), noun, count == 1 ? "" : noun.ends_with('s') ? "es" : "s");
}

double without_nan_sign(double value) { return std::isnan(value) ? std::numeric_limits<double>::quiet_NaN() : value; }

std::string figure_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  const double size = std::abs(value);
  if (size > 0 && size < 0.01) return fmt::format("{:#.3g}", value);
  return size < 1e4 ? fmt::format("{:.4f}", value) : fmt::format("{:.4g}", value);
}

namespace {

int columns(const CodePoint& c) { return c.value == kNotUtf8 ? 1 : is_mark(c.value) ? 0 : is_wide(c.value) ? 2 : 1; }

}  // namespace

std::string listed(std::span<const std::string> names, int width) {
  std::string all, shown;
  size_t fit = 0;
  for (size_t i = 0; i < names.size(); ++i) {
    all += (i ? ", " : "") + names[i];
    if (i == 0 || display_width(all) <= width) shown = all, fit = i + 1;
  }
  return fit < names.size() && display_width(all) > width ? fmt::format("{} and {} more", cut(shown, width), names.size() - fit) : all;
}

int display_width(std::string_view text) {
  int width = 0;
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = code_point_at(text, at);
    width += columns(c), at += c.bytes;
  }
  return width;
}

size_t fitting(std::string_view text, int width) {
  size_t at = 0;
  for (int used = 0; at < text.size();) {
    const CodePoint c = code_point_at(text, at);
    if ((used += columns(c)) > width) break;
    at += c.bytes;
  }
  return at;
}

std::string cut(std::string_view text, int width) {
  if (fitting(text, width) == text.size()) return std::string(text);
  return width > 0 ? std::string(text.substr(0, fitting(text, width - 1))) + "…" : std::string();
}

std::string shell_word(const std::string& text) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./=:,+@%";
  if (!text.empty() && text.find_first_not_of(kPlain) == text.npos) return text;
  std::string out = "'";
  for (char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string printable(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = code_point_at(text, at);
    // Characters that change the writing direction act as commands too.
    const bool command = (c.value < 0x20 && c.value != '\n') || (c.value >= 0x7f && c.value < 0xa0) || (c.value >= 0x202a && c.value < 0x202f) ||
                         (c.value >= 0x2066 && c.value < 0x206a);
    if (c.value == kNotUtf8)
      out += "�";
    else if (c.value == '\t')
      out += "  ";
    else if (command)
      out += "·";
    else
      out += text.substr(at, c.bytes);
    at += c.bytes;
  }
  return out;
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

std::string_view level_bar(double share) {
  constexpr std::string_view kBars[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  return kBars[share > 0 ? std::min(size_t(share * 7.99), size_t(7)) : 0];
}

std::string sparkline(std::span<const double> values, int most) {
  const size_t bars = std::min(values.size(), size_t(std::max(most, 0)));
  std::vector<double> means;
  double low = INFINITY, high = -INFINITY;
  for (size_t i = 0; i < bars; ++i) {
    const size_t first = values.size() * i / bars, end = values.size() * (i + 1) / bars;
    double sum = 0;
    for (double v : values.subspan(first, end - first)) sum += v;
    means.push_back(sum / double(end - first));
    if (std::isfinite(means.back())) low = std::min(low, means.back()), high = std::max(high, means.back());
  }
  std::string text;
  for (double v : means) text += !std::isfinite(v) ? " " : level_bar(high > low ? (v - low) / (high - low) : 0);
  return text;
}

}  // namespace ridge
