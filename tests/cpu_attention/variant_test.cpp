// Attention built by every variant: the bits of the model's choice where the variant promises them, and right values everywhere.
#include "attention_case.h"

namespace ridge::cpu {
namespace {

TEST(AttentionVariants, KeepTheBitsOrTheValues) {
  for (const DType type : {DType::f32, DType::bf16})
    for (const bool causal : {false, true})
      for (const int64_t queries : {33, 300, 700}) {
        Case c;
        c.d = {.batch = 1, .heads = 2, .kv_heads = queries == 300 ? 1 : 2, .queries = queries, .keys = queries, .dim = 32, .dtype = type};
        c.d.causal = causal, c.d.scale = 0.2;
        c.make(Layout::heads_first);
        const IsaTier tier = isa_tier();
        c.run(false, tier), c.run(true, tier);
        const Case planned = c;
        for (const NamedVariant& v : kernel_variants()) {
          const bool backward = v.kind == Tunable::attention_grad;
          if (!backward && v.kind != Tunable::attention) continue;
          SCOPED_TRACE(testing::Message() << v.name << ", " << queries << " queries, " << name(type));
          KernelVariant variant;
          v.set(variant);
          Case got = planned;
          for (auto* x : {&got.dq, &got.dk, &got.dv}) std::fill(x->begin(), x->end(), std::byte{0});
          if (!backward) std::fill(got.out.begin(), got.out.end(), std::byte{0});
          got.run(backward, tier, 1, variant);
          if (v.same_bits) {
            EXPECT_EQ(got.dense(got.out, got.d.out, 2, queries), planned.dense(planned.out, planned.d.out, 2, queries));
          }
          if (!backward) continue;
          const double most = test::tolerance(type, double(queries * 4)) + (type == DType::bf16 ? 0x1p-7 : 0);
          test::expect_near("dk", got.dense(got.dk, got.d.dk, got.d.kv_heads, queries), planned.dense(planned.dk, planned.d.dk, got.d.kv_heads, queries), most,
                            "");
          test::expect_near("dv", got.dense(got.dv, got.d.dv, got.d.kv_heads, queries), planned.dense(planned.dv, planned.d.dv, got.d.kv_heads, queries), most,
                            "");
          test::expect_near("dq", got.dense(got.dq, got.d.dq, 2, queries), planned.dense(planned.dq, planned.d.dq, 2, queries), most, "");
        }
      }
}

}  // namespace
}  // namespace ridge::cpu
