// One query against a cache: the same values as ordinary attention, for every length that the cache can hold.
#include "attention_case.h"

namespace ridge::cpu {
namespace {

TEST(AttentionDecode, MatchesDoubleForEveryLength) {
  const IsaTier best = isa_tier();
  for (IsaTier tier : {IsaTier::sse4, IsaTier::avx2, IsaTier::avx512, IsaTier::avx512bf16, IsaTier::amx, IsaTier::neon, IsaTier::sve}) {
    const bool x86 = best <= IsaTier::amx;
    if (x86 ? tier > best : tier != best) continue;
    for (DType t : {DType::f32, DType::bf16, DType::f16})
      for (int64_t dim : {16, 32, 48, 64, 80, 128})
        for (Layout layout : {Layout::heads_first, Layout::qkv_slices})
          for (int64_t length : {0, 1, 3, 5, 16, 33, 70}) {
            Case c;
            c.d = {.batch = 2, .heads = 2, .kv_heads = 1, .queries = 1, .keys = 70, .dim = dim, .dtype = t};
            c.d.scale = 1 / std::sqrt(double(dim)), c.d.causal = length % 2, c.d.has_length = length != 70, c.length = c.d.has_length ? length : -1;
            c.make(layout);
            ASSERT_TRUE(is_decoding(c.d));
            const Case::Answer want = c.solve(false);
            c.run(false, tier);
            const std::vector<double> got = c.dense(c.out, c.d.out, c.d.heads, 1);
            const double stored = t == DType::f32 ? 0x1p-23 : t == DType::bf16 ? 0x1p-8 : 0x1p-11;
            for (size_t i = 0; i < got.size(); ++i)
              ASSERT_LE(std::abs(got[i] - want.out[i]), stored + 0x1p-23 * 40)
                  << name(tier) << " " << name(t) << " dim " << dim << " length " << length << " " << i;
            for (size_t i = 0; i < want.lse.size(); ++i) {
              const double lse = load(DType::f32, c.lse, Case::kMargin + int64_t(i));
              ASSERT_TRUE(lse == want.lse[i] || std::abs(lse - want.lse[i]) < 1e-5) << lse << " " << want.lse[i];
            }
          }
  }
}

TEST(AttentionDecode, RequiresPlainRows) {
  AttentionDesc d{.batch = 1, .heads = 2, .kv_heads = 2, .queries = 1, .keys = 8, .dim = 32};
  d.q[3] = d.k[3] = d.v[3] = d.out[3] = 1;
  EXPECT_TRUE(is_decoding(d));
  auto changed = [&](auto change) {
    AttentionDesc other = d;
    change(other);
    return is_decoding(other);
  };
  EXPECT_FALSE(changed([](AttentionDesc& x) { x.queries = 2; }));
  EXPECT_FALSE(changed([](AttentionDesc& x) { x.dim = 24; }));
  EXPECT_FALSE(changed([](AttentionDesc& x) { x.k[3] = 2; }));
  EXPECT_FALSE(changed([](AttentionDesc& x) { x.mask = Mask::boolean; }));
  EXPECT_FALSE(changed([](AttentionDesc& x) { x.dropout = 0.5; }));
}

}  // namespace
}  // namespace ridge::cpu
