#include "base/digits.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <random>

#include <nlohmann/json.hpp>

namespace ridge {
namespace {

std::string digits(double x) {
  std::string text = "[";
  append_digits(text, x);
  return text.substr(1);
}

TEST(Digits, AreShortAndReadable) {
  for (const auto& [x, text] : {std::pair(0.0, "0"),
                                {1.0, "1"},
                                {-1.0, "-1"},
                                {0.1, "0.1"},
                                {0.5, "0.5"},
                                {10.0, "10"},
                                {2.302585093, "2.30258509"},
                                {0.0006, "0.0006"},
                                {1234567.0, "1234567"},
                                {123456789.0, "123456789"},
                                {1234567891.0, "1234567890"},
                                {999999999.96, "1000000000"},
                                {0.99999999996, "1"},
                                {1e14, "100000000000000"},
                                {1e-9, "0.000000001"},
                                {1e300, "1e+300"},
                                {5e-324, "4.94065646e-324"},
                                {std::numeric_limits<double>::infinity(), "null"},
                                {std::nan(""), "null"}})
    EXPECT_EQ(digits(x), text);
}

TEST(Digits, DistinguishAnyTwoFloats) {
  std::mt19937 random(5);
  for (int i = 0; i < 200'000; ++i) {
    const float x = std::bit_cast<float>(uint32_t(random()));
    if (!std::isfinite(x)) continue;
    ASSERT_EQ(std::strtof(digits(x).c_str(), nullptr), x) << digits(x);
  }
}

TEST(Digits, HaveNineDigitsOfPrecision) {
  std::mt19937_64 random(6);
  std::uniform_real_distribution<double> exponent(-16, 17);
  for (int i = 0; i < 100'000; ++i) {
    const double x = (i % 2 ? -1 : 1) * std::pow(10, exponent(random));
    const nlohmann::json read = nlohmann::json::parse(digits(x));
    ASSERT_NEAR(read.get<double>() / x, 1, 5.1e-9) << digits(x);
  }
  for (int e = -20; e <= 20; ++e)
    for (const double near : {1 - 1e-16, 1 - 1e-10, 1.0, 1 + 1e-15, 1 + 1e-9}) {
      const double x = near * std::pow(10, e);
      EXPECT_NEAR(std::strtod(digits(x).c_str(), nullptr) / x, 1, 5.1e-9) << digits(x);
    }
}

}  // namespace
}  // namespace ridge
