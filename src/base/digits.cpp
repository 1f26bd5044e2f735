#include "base/digits.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <iterator>

#include <fmt/core.h>

namespace ridge {
namespace {

constexpr int kDigits = 9;
constexpr double kPowers[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                              1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};  // all exact powers

}  // namespace

void append_digits(std::string& out, double x) {
  constexpr double kMin = 1e-13, kMax = 1e15;  // outside this range the powers are inexact or there are many zeros
  const double size = std::abs(x);
  if (!std::isfinite(x)) {
    out += "null";
    return;
  }
  if (!(size >= kMin && size < kMax)) {
    fmt::format_to(std::back_inserter(out), "{:.9g}", x);
    return;
  }
  // From the binary exponent alone: 10^exponent <= size, possibly one too small.
  const int binary = int(std::bit_cast<uint64_t>(size) >> 52) - 1023;
  int exponent = (binary * 78913) >> 18;  // times log10(2), rounded down
  if (exponent >= 0 ? size >= kPowers[exponent + 1] : size * kPowers[-exponent - 1] >= 1) ++exponent;
  const int shift = kDigits - 1 - exponent;
  const double scaled = shift >= 0 ? size * kPowers[shift] : size / kPowers[-shift];
  uint32_t whole = uint32_t(scaled + 0.5);  // NOLINT(bugprone-incorrect-roundings): below 2^30, where the sum is exact enough
  if (whole >= 1'000'000'000) whole /= 10, ++exponent;

  char digits[kDigits];
  for (int i = kDigits; i-- > 0; whole /= 10) digits[i] = char('0' + whole % 10);
  int count = kDigits;
  while (count > 1 && digits[count - 1] == '0') --count;

  char text[40];
  char* end = text;
  auto put = [&](const char* from, int n) { end = std::copy_n(from, n, end); };
  auto zeros = [&](int n) { end = std::fill_n(end, n, '0'); };
  if (x < 0) *end++ = '-';
  if (exponent < 0) {
    *end++ = '0', *end++ = '.';
    zeros(-exponent - 1), put(digits, count);
  } else if (exponent >= count - 1) {
    put(digits, count), zeros(exponent + 1 - count);
  } else {
    put(digits, exponent + 1);
    *end++ = '.';
    put(digits + exponent + 1, count - exponent - 1);
  }
  out.append(text, size_t(end - text));
}

}  // namespace ridge
