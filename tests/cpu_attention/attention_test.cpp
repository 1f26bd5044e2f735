// Laws of the attention kernels: correct values for every option and shape, no stray writes, bits that depend only on the shape.
#include "attention_case.h"

namespace ridge::cpu {
namespace {

std::vector<IsaTier> tiers() {
  std::vector<IsaTier> all;
  const IsaTier best = isa_tier();
  if (best == IsaTier::neon || best == IsaTier::sve) return {best};
  for (IsaTier t : {IsaTier::sse4, IsaTier::avx2, IsaTier::avx512, IsaTier::avx512bf16, IsaTier::amx})
    if (t <= best) all.push_back(t);
  return all;
}

std::string label(const Case& c, IsaTier tier) { return fmt::format("{} {}", name(tier), test::label(c)); }

void check(Case& c, IsaTier tier) {
  // With pairs the weights are rounded to bf16 before the multiplication.
  const double inner = multiplies_pairs(c.d, tier, true) ? 0x1p-8 : 0;
  test::check_attention(
      c, label(c, tier), [&](bool backward) { c.run(backward, tier); }, inner);
}

// Lengths and widths around every block and vector boundary; options chosen so that each is combined with each.
TEST(Attention, AnyShapeMatchesDouble) {
  for (IsaTier tier : tiers()) {
    uint64_t draw = 0;
    auto pick = [&](int n) { return int(Case::hash(1'000'000 + draw++) % uint32_t(n)); };
    for (int64_t queries : {1, 3, 7, 31, 33, 65, 130})
      for (int64_t dim : {1, 8, 32, 33, 64, 80, 128}) {
        Case c;
        c.d.batch = 1 + pick(2), c.d.heads = kHeads[pick(3)].heads;
        for (Heads h : kHeads)
          if (h.heads == c.d.heads) c.d.kv_heads = h.kv_heads;
        const int64_t lengths[] = {queries, queries, 1, 7, 33, 65, 130};
        c.d.queries = queries, c.d.keys = lengths[pick(7)], c.d.dim = dim;
        c.d.dtype = kTypes[pick(3)], c.d.scale = 1 / std::sqrt(double(dim)), c.d.causal = pick(2);
        c.d.mask = Mask(pick(3)), c.d.stream = 3;
        c.d.has_length = pick(4) == 0, c.length = c.d.has_length ? pick(int(c.d.keys) + 1) : -1;
        c.d.dropout = pick(3) == 0 ? 0.3 : 0, c.base = pick(100);
        c.make(kLayouts[pick(3)], {pick(2) == 0, pick(2) == 0, pick(3) == 0, false});
        check(c, tier);
        if (HasFatalFailure()) return;
      }
  }
}

// All combinations of options on one odd shape.
TEST(Attention, CombinesOptions) {
  for (IsaTier tier : tiers())
    for (bool causal : {false, true})
      for (Mask mask : {Mask::none, Mask::boolean, Mask::additive})
        for (bool has_length : {false, true})
          for (double dropout : {0.0, 0.25})
            for (DType t : kTypes)
              for (Heads h : kHeads) {
                Case c;
                c.d = {.batch = 2, .heads = h.heads, .kv_heads = h.kv_heads, .queries = 35, .keys = 71, .dim = 9, .dtype = t};
                c.d.causal = causal, c.d.mask = mask, c.d.has_length = has_length, c.length = has_length ? 50 : -1;
                c.d.dropout = dropout, c.d.scale = 0.7, c.base = 5;
                c.make(h.heads == 4 ? Layout::qkv_slices : Layout::heads_first);
                check(c, tier);
                if (HasFatalFailure()) return;
              }
}

// Pairs of queries, of keys and of features: odd counts of the first two, causal edges in the middle of a pair, every option.
TEST(Attention, PairsOfBf16) {
  for (IsaTier tier : tiers())
    for (auto [queries, keys] : {std::pair<int64_t, int64_t>{1, 1}, {1, 6}, {17, 17}, {33, 34}, {64, 64}, {65, 130}, {100, 51}, {129, 129}})
      for (int64_t dim : {2, 16, 20, 64})
        for (int option = 0; option < 6; ++option) {
          Case c;
          c.d = {.batch = 2, .heads = 2, .kv_heads = option % 2 ? 1 : 2, .queries = queries, .keys = keys, .dim = dim, .dtype = DType::bf16};
          c.d.causal = option > 0, c.d.scale = 1 / std::sqrt(double(dim)), c.base = 5;
          c.d.mask = option == 3 ? Mask::additive : option == 4 ? Mask::boolean : Mask::none, c.d.dropout = option == 5 ? 0.25 : 0;
          c.make(option == 2 ? Layout::qkv_slices : Layout::heads_first);
          EXPECT_EQ(multiplies_pairs(c.d, tier, true), has_bf16(tier));
          check(c, tier);
          if (HasFatalFailure()) return;
        }
}

TEST(Attention, EmptyShapes) {
  for (IsaTier tier : tiers())
    for (auto [batch, queries, keys] : {std::array<int64_t, 3>{0, 3, 3}, {1, 0, 5}, {2, 5, 0}, {1, 0, 0}}) {
      Case c;
      c.d = {.batch = batch, .heads = 2, .kv_heads = 1, .queries = queries, .keys = keys, .dim = 8};
      c.make(Layout::heads_first);
      check(c, tier);
      if (HasFatalFailure()) return;
    }
}

// More queries than keys under a causal mask: the first ones attend to nothing, give zeros and pass no gradient.
TEST(Attention, RowsWithoutKeys) {
  for (IsaTier tier : tiers()) {
    Case c;
    c.d = {.batch = 1, .heads = 2, .kv_heads = 2, .queries = 70, .keys = 5, .dim = 32};
    c.d.causal = true;
    c.make(Layout::heads_first);
    check(c, tier);
    for (int64_t i = 0; i < 65; ++i) {
      EXPECT_EQ(load(DType::f32, c.lse, Case::kMargin + i), -INFINITY);
      for (int64_t f = 0; f < 32; ++f) {
        EXPECT_EQ(c.at(c.out, c.d.out, 0, 0, i, f), 0);
        EXPECT_EQ(c.at(c.dq, c.d.dq, 0, 0, i, f), 0);
      }
    }
  }
}

// Scores in the hundreds neither overflow nor lose the maximum.
TEST(Attention, HugeScores) {
  for (IsaTier tier : tiers()) {
    Case c;
    c.d = {.batch = 1, .heads = 1, .kv_heads = 1, .queries = 40, .keys = 140, .dim = 16};
    c.d.scale = 1;
    c.make(Layout::heads_first);
    for (int64_t i = 0; i < int64_t(c.q.size()) / 4; ++i) store(DType::f32, c.q, i, 300 * float(load(DType::f32, c.q, i)));
    const auto want = c.solve(false);
    c.run(false, tier);
    // The scores, of about 2000, themselves have an error of a few ulps.
    expect_near("out", c.dense(c.out, c.d.out, 1, 40), want.out, 2000 * 0x1p-22, label(c, tier));
  }
}

TEST(Attention, NanReachesTheOutput) {
  for (IsaTier tier : tiers()) {
    Case c;
    c.d = {.batch = 1, .heads = 1, .kv_heads = 1, .queries = 5, .keys = 9, .dim = 8};
    c.make(Layout::heads_first);
    store(DType::f32, c.q, Case::kMargin + 2 * 8 + 3, NAN);
    c.run(false, tier);
    for (int64_t i = 0; i < 5; ++i) EXPECT_EQ(std::isnan(c.at(c.out, c.d.out, 0, 0, i, 0)), i == 2);
  }
}

// The analytic gradient used as the expected value is itself the derivative of the forward formula.
TEST(Attention, GradientIsTheDerivative) {
  Case c;
  c.d = {.batch = 1, .heads = 4, .kv_heads = 2, .queries = 5, .keys = 7, .dim = 3};
  c.d.causal = true, c.d.mask = Mask::additive, c.d.dropout = 0.2, c.d.scale = 0.9;
  c.make(Layout::heads_first);
  const auto a = c.solve(true);
  const std::vector<double> q = c.dense(c.q, c.d.q, 4, 5), k = c.dense(c.k, c.d.k, 2, 7), v = c.dense(c.v, c.d.v, 2, 7), g = c.dense(c.dout, c.d.dout, 4, 5);
  const double h = 1e-5;
  auto loss = [&](const std::vector<double>& q, const std::vector<double>& k, const std::vector<double>& v) {
    const auto y = c.solve(false, &q, &k, &v);
    double sum = 0;
    for (size_t i = 0; i < g.size(); ++i) sum += y.out[i] * g[i];
    return sum;
  };
  for (size_t i = 0; i < q.size(); ++i) {
    auto up = q, down = q;
    up[i] += h, down[i] -= h;
    EXPECT_NEAR((loss(up, k, v) - loss(down, k, v)) / (2 * h), a.dq[i], 1e-8);
  }
  for (size_t i = 0; i < k.size(); ++i) {
    auto up = k, down = k;
    up[i] += h, down[i] -= h;
    EXPECT_NEAR((loss(q, up, v) - loss(q, down, v)) / (2 * h), a.dk[i], 1e-8);
    up = v, down = v, up[i] += h, down[i] -= h;
    EXPECT_NEAR((loss(q, k, up) - loss(q, k, down)) / (2 * h), a.dv[i], 1e-8);
  }
}

// Any partition and order of the units, also if dk and dv are summed from chunks.
TEST(Attention, BitsDoNotDependOnTheOrderOfUnits) {
  for (IsaTier tier : tiers())
    for (int64_t length : {130, 513})
      for (Heads h : kHeads) {
        Case c;
        c.d = {.batch = 1, .heads = h.heads, .kv_heads = h.kv_heads, .queries = length, .keys = length, .dim = 32};
        c.d.causal = true, c.d.dropout = 0.1;
        c.make(Layout::qkv_slices);
        Case first = c;
        first.run(false, tier, 0), first.run(true, tier, 0);
        for (int order : {1, 2}) {
          Case other = c;
          other.run(false, tier, order), other.run(true, tier, order);
          EXPECT_TRUE(first.out == other.out && first.lse == other.lse && first.dq == other.dq && first.dk == other.dk && first.dv == other.dv)
              << label(c, tier) << " order " << order;
        }
      }
}

// One head of a long sequence still occupies sixteen threads, with memory proportional to its length.
TEST(Attention, SplitsLongSequences) {
  Case c;
  c.d = {.batch = 1, .heads = 1, .kv_heads = 1, .queries = 10'000, .keys = 10'000, .dim = 64};
  c.d.causal = true;
  for (bool backward : {false, true}) {
    auto kernel = backward ? make_attention_grad(c.d) : make_attention(c.d);
    const std::vector<Ref> refs(backward ? 9 : 5, Ref{0, 0});
    std::vector<Task> tasks;
    kernel->bind(refs, {0, 0}, tasks);
    EXPECT_GE(tasks[0].units, 16);
    EXPECT_LE(kernel->workspace_bytes() + kernel->scratch_bytes(), 40 * 10'000 * 64 * 4);
  }
}

TEST(Attention, LongSequenceMatchesDouble) {
  Case c;
  c.d = {.batch = 1, .heads = 1, .kv_heads = 1, .queries = 3, .keys = 10'000, .dim = 8};
  c.d.causal = true;
  c.make(Layout::heads_first);
  check(c, isa_tier());
  Case g;
  g.d = {.batch = 1, .heads = 2, .kv_heads = 1, .queries = 700, .keys = 700, .dim = 32};
  g.d.causal = true;
  g.make(Layout::heads_first);
  check(g, isa_tier());
}

TEST(Attention, RejectsBadDescriptions) {
  AttentionDesc d{.heads = 3, .kv_heads = 2};
  EXPECT_THROW(make_attention(d), std::exception);
  d.kv_heads = 1, d.dtype = DType::i32;
  EXPECT_THROW(make_attention(d), std::exception);
  d.dtype = DType::f32;
  std::vector<Task> tasks;
  EXPECT_THROW(make_attention(d)->bind(std::vector<Ref>(4), {}, tasks), std::exception);
}

}  // namespace
}  // namespace ridge::cpu
