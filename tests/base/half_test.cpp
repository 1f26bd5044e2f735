// bf16 and f16: every 16-bit pattern, and every tie and neighbour between two of them.
#include "base/half.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace ridge {
namespace {

uint32_t bits(float f) { return std::bit_cast<uint32_t>(f); }

// The value in a format with 1 sign bit, `exponent` and `mantissa` bits, from the definition in IEEE 754.
double value_by_definition(uint16_t h, int exponent, int mantissa) {
  int e = (h >> mantissa) & ((1 << exponent) - 1), m = h & ((1 << mantissa) - 1), bias = (1 << (exponent - 1)) - 1;
  double sign = h & 0x8000 ? -1 : 1;
  if (e == (1 << exponent) - 1) return m ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  return e ? sign * std::ldexp(1 + std::ldexp(m, -mantissa), e - bias) : sign * std::ldexp(m, 1 - bias - mantissa);
}

TEST(Half, EveryF16MatchesItsDefinition) {
  for (uint32_t h = 0; h < 0x10000; ++h) {
    double expected = value_by_definition(uint16_t(h), 5, 10);
    float got = f16_to_f32(uint16_t(h));
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(got)) << h;
    } else {
      ASSERT_EQ(bits(got), bits(float(expected))) << h;
    }
  }
}

TEST(Half, EveryBf16MatchesItsDefinition) {
  for (uint32_t h = 0; h < 0x10000; ++h) {
    double expected = value_by_definition(uint16_t(h), 8, 7);
    float got = bf16_to_f32(uint16_t(h));
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(got)) << h;
    } else {
      ASSERT_EQ(bits(got), bits(float(expected))) << h;
    }
  }
}

TEST(Half, EveryPatternRoundTrips) {
  for (uint32_t h = 0; h < 0x10000; ++h) {
    if (!std::isnan(f16_to_f32(uint16_t(h)))) {
      ASSERT_EQ(f32_to_f16(f16_to_f32(uint16_t(h))), h);
    }
    if (!std::isnan(bf16_to_f32(uint16_t(h)))) {
      ASSERT_EQ(f32_to_bf16(bf16_to_f32(uint16_t(h))), h);
    }
  }
}

TEST(Half, ANaNStaysANaN) {
  for (uint32_t mantissa : {1u, 0x1fffu, 0x2000u, 0xffffu, 0x10000u, 0x3fffffu, 0x400000u, 0x7fffffu})
    for (uint32_t sign : {0u, 0x80000000u}) {
      float nan = std::bit_cast<float>(sign | 0x7f800000u | mantissa);
      EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(nan)))) << mantissa;
      EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16(nan)))) << mantissa;
    }
}

// Between neighbours a < b of the short format: the midpoint rounds to even, and one f32 step off it to the nearer.
template <class Widen, class Narrow>
void check_rounding(uint16_t infinity, Widen widen, Narrow narrow) {
  for (uint32_t h = 0; h + 1 < infinity; ++h) {
    float a = widen(uint16_t(h)), b = widen(uint16_t(h + 1)), middle = float((double(a) + double(b)) / 2);
    uint16_t even = uint16_t(h & 1 ? h + 1 : h);
    for (uint16_t sign : {0, 0x8000}) {
      float s = sign ? -1.f : 1.f;
      ASSERT_EQ(narrow(s * middle), sign | even) << h;
      ASSERT_EQ(narrow(s * std::nextafter(middle, a)), sign | h) << h;
      ASSERT_EQ(narrow(s * std::nextafter(middle, b)), sign | (h + 1)) << h;
    }
  }
}

TEST(Half, F16RoundsToNearestEven) { check_rounding(0x7c00, f16_to_f32, f32_to_f16); }
TEST(Half, Bf16RoundsToNearestEven) { check_rounding(0x7f80, bf16_to_f32, f32_to_bf16); }

TEST(Half, LargeValuesBecomeInfinity) {
  EXPECT_EQ(f32_to_f16(65504.f), 0x7bff);
  EXPECT_EQ(f32_to_f16(std::nextafter(65520.f, 0.f)), 0x7bff);
  EXPECT_EQ(f32_to_f16(65520.f), 0x7c00);
  EXPECT_EQ(f32_to_f16(-1e30f), 0xfc00);
  EXPECT_EQ(f32_to_bf16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(f32_to_bf16(-std::numeric_limits<float>::infinity()), 0xff80);
}

}  // namespace
}  // namespace ridge
