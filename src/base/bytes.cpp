#include "base/bytes.h"

#include <charconv>
#include <cmath>

#include <fmt/core.h>

namespace ridge {
namespace {

struct Unit {
  std::string_view name;  // lower case
  int64_t bytes;
};

constexpr Unit kUnits[] = {
    {"", 1},          {"b", 1},         {"k", 1LL << 10},   {"kib", 1LL << 10},   {"kb", 1000},     {"m", 1LL << 20},   {"mib", 1LL << 20},
    {"mb", 1000'000}, {"g", 1LL << 30}, {"gib", 1LL << 30}, {"gb", 1000'000'000}, {"t", 1LL << 40}, {"tib", 1LL << 40}, {"tb", 1000'000'000'000}};

}  // namespace

std::optional<int64_t> bytes_of(std::string_view text) {
  if (!text.empty() && text.find_first_not_of("0123456789") == text.npos) {  // exact, even beyond a double's precision
    int64_t whole = 0;
    return std::from_chars(text.data(), text.data() + text.size(), whole).ec == std::errc() ? std::optional(whole) : std::nullopt;
  }
  double number = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || !std::isfinite(number) || number < 0) return {};
  std::string unit;
  for (char c : text.substr(size_t(end - text.data()))) {
    if (c == ' ' && unit.empty()) continue;
    unit += c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c;
  }
  for (const Unit& u : kUnits)
    if (unit == u.name) {
      const double bytes = number * double(u.bytes);
      if (bytes >= 0x1p63) return {};
      return int64_t(bytes);
    }
  return {};
}

std::string exact_bytes(int64_t bytes) {
  constexpr Unit kWritten[] = {{"TiB", 1LL << 40}, {"TB", 1000'000'000'000}, {"GiB", 1LL << 30}, {"GB", 1000'000'000},
                               {"MiB", 1LL << 20}, {"MB", 1000'000},         {"KiB", 1LL << 10}, {"KB", 1000}};
  for (const Unit& u : kWritten)
    if (bytes != 0 && bytes % u.bytes == 0) return fmt::format("{}{}", bytes / u.bytes, u.name);
  return fmt::format("{}", bytes);
}

}  // namespace ridge
