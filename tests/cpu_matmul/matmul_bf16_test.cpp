// Products of two bf16 operands, which some CPUs multiply in pairs along K: the same values as by conversion, in any layout.
#include <gtest/gtest.h>

#include "matmul_case.h"

namespace ridge::cpu {
namespace {

MatmulDesc narrow(MatmulDesc d) {
  d.a_type = d.b_type = DType::bf16;
  return d;
}

TEST(MatmulBf16, EveryDepthAndTail) {
  for (int64_t k : {1, 2, 3, 4, 5, 15, 16, 17, 31, 32, 33, 64, 67})
    for (int form = 0; form < 8; ++form)
      for (const auto& [m, n] : {std::pair<int64_t, int64_t>{5, 5}, {14, 32}, {15, 33}, {29, 47}, {28, 64}}) {
        SCOPED_TRACE(testing::Message() << m << "x" << n << "x" << k << " form " << form);
        Case(narrow(plain(m, n, k, form & 1, form & 2, form & 4)), 3, {.tiny_flops = 0}).check();
        if (HasFailure()) return;
      }
}

// Rows with odd strides contain no whole pairs; offset tables have no stride at all.
TEST(MatmulBf16, AnyRowStride) {
  for (int64_t pad : {0, 1, 2, 3, 64})
    for (int form = 0; form < 4; ++form)
      for (int64_t k : {33, 50})
        for (double tiny : {0., 1e6}) {
          SCOPED_TRACE(testing::Message() << "pad " << pad << " form " << form << " k " << k);
          MatmulDesc d = narrow(plain(31, 40, k, form & 1, form & 2, false, pad));
          Case(d, 1, {.depth = 11, .tiny_flops = tiny}).check({.threads = 2, .run = 2, .seed = 3});
          d.batch = {{3, 31 * 200, 40 * 200, 31 * (40 + pad)}};  // separate products
          Case(d, 2, {.depth = 16, .tiny_flops = tiny}).check();
          d.k = {{2, 7 * d.k[0].a, 9 * d.k[0].b, 0}, {5, d.k[0].a, d.k[0].b, 0}};
          Case(d, 3, {.depth = 3, .tiny_flops = tiny}).check();
          if (HasFailure()) return;
        }
}

TEST(MatmulBf16, EpilogueStoreAndSum) {
  for (int form = 0; form < 4; ++form)
    for (int kind = 0; kind < 3; ++kind) {
      SCOPED_TRACE(testing::Message() << "form " << form << " kind " << kind);
      MatmulDesc d = narrow(plain(70, 75, 531, form & 1, form & 2));
      if (kind == 0) d.c_type = DType::bf16;
      if (kind == 1) d.accumulate = true;
      if (kind == 2) d.epilogue_scratch = 64;
      Case(d, 1, {.depth = 100, .tiny_flops = 0}).check({.threads = 3, .run = 2, .seed = 5});
    }
}

// Results are sums in f32 that are rounded once, wherever they are rounded.
TEST(MatmulBf16, ResultsAreRoundedSums) {
  for (IsaTier tier : tiers())
    for (const auto& s : {std::array<int64_t, 3>{29, 47, 64}, {64, 64, 256}, {33, 100, 67}, {70, 75, 531}, {16, 31, 1300}})
      for (int form = 0; form < 4; ++form) {
        MatmulDesc d = narrow(plain(s[0], s[1], s[2], form & 1, form & 2));
        const MatmulModel model{.depth = 200, .tiny_flops = 0};
        const Case sums(d, 1, model);
        d.c_type = DType::bf16;
        const Case rounded(d, 1, model);
        const auto wide = sums.run(tier), narrow = rounded.run(tier);
        for (int64_t i = 0; i < s[0] * s[1]; ++i) {
          const auto got = uint16_t(f32_to_bf16(float(load(narrow, DType::bf16, rounded.c.origin + i))));
          ASSERT_EQ(got, f32_to_bf16(float(load(wide, DType::f32, sums.c.origin + i)))) << name(tier) << " form " << form << " element " << i;
        }
      }
}

TEST(MatmulBf16, SameBitsForAnyOrderOfUnits) {
  for (IsaTier tier : tiers())
    for (const auto& s : {std::array<int64_t, 3>{100, 150, 90}, {60, 260, 231}, {2, 1500, 70}, {300, 3, 100}, {40, 40, 1001}})
      for (int form = 0; form < 4; ++form) {
        Case c(narrow(plain(s[0], s[1], s[2], form & 1, form & 2)), 1, {.depth = 50, .tiny_flops = 0});
        const auto once = c.run(tier);
        for (uint32_t seed : {1u, 2u, 3u})
          EXPECT_TRUE(c.run(tier, {.threads = int(seed) + 1, .run = int64_t(seed), .seed = seed}) == once) << name(tier) << " " << form;
      }
}

// Non-finite values stay so, and affect only their own row and column.
TEST(MatmulBf16, NonFiniteValuesDoNotSpread) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (IsaTier tier : tiers())
    for (float x : {inf, -inf, nan}) {
      Case c(narrow(plain(20, 40, 31)));
      save(c.a.bytes, DType::bf16, c.a.origin + 7 * 31 + 30, x);  // half of the last pair
      for (int64_t j = 0; j < 40; ++j) save(c.b.bytes, DType::bf16, c.b.origin + 30 * 40 + j, 1);
      const auto got_bytes = c.run(tier);
      for (int64_t j = 0; j < 40; ++j) {
        const float got = load(got_bytes, DType::f32, c.c.origin + 7 * 40 + j);
        EXPECT_TRUE(std::isnan(x) ? std::isnan(got) : got == x) << name(tier) << " " << got;
        EXPECT_TRUE(std::isfinite(load(got_bytes, DType::f32, c.c.origin + 8 * 40 + j)));
      }
    }
}

// The same in every layout, and at every place of a tile: a weight's gradient is a product of a transposed input, often with an odd number of columns.
TEST(MatmulBf16, NonFiniteValuesStayInTheirRowAndColumn) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (IsaTier tier : tiers())
    for (int form = 0; form < 4; ++form)
      for (const auto& [m, n, k] : {std::array<int64_t, 3>{31, 33, 17}, {7, 5, 64}, {29, 47, 32}, {14, 32, 33}, {3, 1, 40}})
        for (double tiny : {0., 1e6})
          for (const int64_t at : {int64_t(0), k / 2, k - 1})
            for (const bool left : {true, false}) {
              const MatmulDesc d = narrow(plain(m, n, k, form & 1, form & 2));
              Case c(d, 1, {.tiny_flops = tiny});
              const int64_t row = m - 1, column = n / 2;
              Operand& o = left ? c.a : c.b;
              save(o.bytes, DType::bf16, o.origin + (left ? row * d.m[0].a + at * d.k[0].a : column * d.n[0].b + at * d.k[0].b), kInf);
              const auto got = c.run(tier);
              int64_t spread = 0, lost = 0;
              for (int64_t i = 0; i < m; ++i)
                for (int64_t j = 0; j < n; ++j) {
                  const bool finite = std::isfinite(load(got, DType::f32, c.c.origin + i * d.m[0].c + j * d.n[0].c)), own = left ? i == row : j == column;
                  spread += !finite && !own, lost += finite && own;
                }
              ASSERT_EQ(spread + lost, 0) << name(tier) << " form " << form << ", " << m << "x" << n << "x" << k << ", " << (left ? "A" : "B") << " at " << at
                                          << ": " << spread << " others are not finite, " << lost << " of its own are";
            }
}

}  // namespace
}  // namespace ridge::cpu
