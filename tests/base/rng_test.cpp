#include "base/rng.h"

#include <gtest/gtest.h>

#include <cmath>

namespace ridge {
namespace {

using Words = std::array<uint32_t, 4>;

// Random123's known answers for philox4x32-10: counter (c0, c1, c2, c3) and key (k0, k1).
TEST(Philox, MatchesTheKnownAnswers) {
  EXPECT_EQ(philox({.seed = 0, .step = 0, .stream = 0}, 0), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({.seed = ~0ull, .step = ~0u, .stream = ~0u}, ~0ull), (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({.seed = 0x299f31d0'a4093822, .step = 0x13198a2e, .stream = 0x03707344}, 0x85a308d3'243f6a88),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, DependsOnEveryOperand) {
  RandomKey key{.seed = 7, .step = 3, .stream = 5};
  Words base = philox(key, 11);
  EXPECT_NE(base, philox({8, 3, 5}, 11));
  EXPECT_NE(base, philox({7 + (1ull << 32), 3, 5}, 11));
  EXPECT_NE(base, philox({7, 4, 5}, 11));
  EXPECT_NE(base, philox({7, 3, 6}, 11));
  EXPECT_NE(base, philox(key, 12));
  EXPECT_NE(base, philox(key, 11 + (1ull << 32)));
}

// A split batch draws the same numbers, so a word depends on the global index alone, also past 2^32 elements.
TEST(Philox, WordsDependOnTheirIndexOnly) {
  RandomKey key{.seed = 42, .step = 1, .stream = 2};
  for (uint64_t first : {uint64_t(0), uint64_t(1) << 31, (uint64_t(1) << 34) + 4})
    for (uint64_t i = 0; i < 64; ++i) EXPECT_EQ(random_word(key, first + i), philox(key, (first + i) / 4)[i % 4]);
}

TEST(Uniform, IsBelowOneAndUniform) {
  EXPECT_EQ(uniform_from(0), 0.f);
  EXPECT_EQ(uniform_from(~0u), 1.f - 0x1p-24f);
  EXPECT_EQ(uniform_from(1u << 31), 0.5f);

  constexpr int kDraws = 1 << 16;
  double sum = 0, squares = 0;
  for (int i = 0; i < kDraws; ++i) {
    double u = uniform_from(random_word({.seed = 1}, i));
    sum += u, squares += u * u;
  }
  // Five standard errors: sqrt(1/12n) for the mean, sqrt(4/45n) for the mean square.
  EXPECT_NEAR(sum / kDraws, 1.0 / 2, 5 * std::sqrt(1 / (12.0 * kDraws)));
  EXPECT_NEAR(squares / kDraws, 1.0 / 3, 5 * std::sqrt(4 / (45.0 * kDraws)));
}

}  // namespace
}  // namespace ridge
