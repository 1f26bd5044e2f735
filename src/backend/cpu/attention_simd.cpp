// Attention, forward: online softmax over blocks of keys.
#include "base/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/attention_simd.cpp"
#include "hwy/foreach_target.h"

#include "backend/cpu/attention_tiles_simd.h"

HWY_BEFORE_NAMESPACE();
namespace ridge::cpu {
namespace HWY_NAMESPACE {
namespace {

// Scores of R keys from row j for vectors [v, v + N), masked and written to the tile; `top` tracks each lane's maximum.
template <Arithmetic kArithmetic, int R, int N>
HWY_NOINLINE void score_tile(Rows keys, const float* q_t, int64_t depth, float factor, const Block& k, int64_t j, int v, const float* bias, float* tile,
                             float* top) {
  const F d;
  Vec acc[R][N];
  set_zero(acc);
  multiply<true, kArithmetic>(keys.p + j * keys.stride, size_t(keys.stride), q_t + v * kLanes, kQ, size_t(depth), acc);
  if constexpr (kArithmetic == Arithmetic::pairs) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int i = 0; i < N; ++i) acc[r][i] = hn::Mul(acc[r][i], hn::Set(d, factor));
  }
  if (bias) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int i = 0; i < N; ++i) acc[r][i] = hn::MulAdd(hn::Load(d, bias + (j + r) * kQ + (v + i) * kLanes), hn::Set(d, kLog2e), acc[r][i]);
  }
#pragma GCC unroll 8
  for (int i = 0; i < N; ++i) {
    if (!k.cuts(j, R, v + i)) continue;
    const Vec lane = hn::Iota(d, float((v + i) * kLanes));
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) acc[r][i] = hn::IfThenElse(hn::Ge(lane, hn::Set(d, float(k.first + j + r))), acc[r][i], hn::Set(d, -kInf));
  }
#pragma GCC unroll 8
  for (int i = 0; i < N; ++i) {
    Vec m = hn::Load(d, top + (v + i) * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      m = hn::Max(m, acc[r][i]);
      hn::Store(acc[r][i], d, tile + (j + r) * kQ + (v + i) * kLanes);
    }
    hn::Store(m, d, top + (v + i) * kLanes);
  }
}

template <Arithmetic kArithmetic, int R>
HWY_INLINE void score_tiles(Rows keys, const float* q_t, int64_t depth, float factor, const Block& k, int64_t j, const float* bias, float* tile, float* top) {
  int v = k.vector_of(j);
  for (; v + 2 <= k.vectors(); v += 2) score_tile<kArithmetic, R, 2>(keys, q_t, depth, factor, k, j, v, bias, tile, top);
  if (v < k.vectors()) score_tile<kArithmetic, R, 1>(keys, q_t, depth, factor, k, j, v, bias, tile, top);
}

// Turns scores into probabilities, up to the factor that is known after the last block; sums continue those of earlier blocks. Pairs are written over the first
// half of the scores.
template <Arithmetic kArithmetic>
HWY_NOINLINE void softmax(const Exp2Table& table, const Block& k, const float* drop, float* tile, float* top, float* last_top, float* sum, float* keep) {
  const F d;
  const Exp2 exp2(table);
  for (int v = 0; v < k.vectors(); ++v) {
    const int64_t lanes = v * kLanes;
    const Vec m = hn::Load(d, top + lanes);
    const Vec safe = hn::IfThenElse(hn::Eq(m, hn::Set(d, -kInf)), hn::Zero(d), m);  // for a lane that has not seen any key yet
    const Vec alpha = exp2(hn::Sub(hn::Load(d, last_top + lanes), safe));
    hn::Store(m, d, last_top + lanes);
    hn::Store(alpha, d, keep + lanes);
    Vec s0 = hn::Zero(d), s1 = hn::Zero(d);
    const int64_t n = k.limit(v);
    float* p = tile + lanes;
    const auto put = [&](int64_t j, Vec p0, Vec p1) HWY_ATTR {
      const auto dropped = [&](Vec x, int64_t row) HWY_ATTR {
        const Vec kept = hn::Load(d, drop + lanes + row * kQ);
        // The factor for kept elements would be rounded, with the same error for all keys, so it is applied at the end.
        return kArithmetic == Arithmetic::pairs ? hn::IfThenZeroElse(hn::Eq(kept, hn::Zero(d)), x) : hn::Mul(x, kept);
      };
      if (drop) p0 = dropped(p0, j);
      if (drop && j + 1 < n) p1 = dropped(p1, j + 1);
      if constexpr (kArithmetic == Arithmetic::pairs) {
        hn::Store(hn::BitCast(d, paired(rounded(p0), rounded(p1))), d, p + j / 2 * kQ);
      } else {
        hn::Store(p0, d, p + j * kQ);
        if (j + 1 < n) hn::Store(p1, d, p + (j + 1) * kQ);
      }
    };
    int64_t j = 0;
    for (; j + 2 <= n; j += 2) {
      const Vec p0 = exp2(hn::Sub(hn::Load(d, p + j * kQ), safe)), p1 = exp2(hn::Sub(hn::Load(d, p + (j + 1) * kQ), safe));
      s0 = hn::Add(s0, p0), s1 = hn::Add(s1, p1);
      put(j, p0, p1);
    }
    if (j < n) {
      const Vec p0 = exp2(hn::Sub(hn::Load(d, p + j * kQ), safe));
      s0 = hn::Add(s0, p0);
      put(j, p0, hn::Zero(d));
    }
    hn::Store(hn::MulAdd(hn::Load(d, sum + lanes), alpha, hn::Add(s0, s1)), d, sum + lanes);
  }
}

template <Arithmetic kArithmetic>
void forward_block(const Context& x, Block k, Ahead& ahead) {
  const F d;
  constexpr bool kPairs = kArithmetic == Arithmetic::pairs;
  const AttentionDesc& desc = x.args.desc;
  const int64_t kv_head = k.h / x.args.group, padded = x.args.padded, dim = desc.dim;
  float *q_t = x.part(x.at.q_t), *acc_t = x.part(x.at.acc_t), *tile = x.part(x.at.tile);
  float *top = x.part(x.at.stats), *last_top = top + kQ, *sum = top + 2 * kQ, *keep = top + 3 * kQ;
  const auto& qs = desc.q;
  const float factor = float(desc.scale * 1.4426950408889634);
  const int64_t q_at = k.b * qs[0] + k.h * qs[1] + k.i0 * qs[2], depth = kPairs ? dim / 2 : dim;
  if constexpr (kPairs)
    transpose_in<false>(pair_rows(x.data(x.args.q), q_at, qs[2]), k.n, depth, 1, q_t);
  else
    transpose_in(fetch(desc.dtype, x.data(x.args.q), q_at, qs[2], qs[3], k.n, dim, false, x.part(x.at.q_rows), padded), k.n, dim, factor, q_t);
  for (int i = 0; i < kQ; ++i) top[i] = last_top[i] = -kInf, sum[i] = 0;
  const int64_t end = x.visible(k.i0 + k.n);
  ahead.spread(end / kRows);
  for (k.k0 = 0; k.k0 < end; k.k0 += kAttentionKeys) {
    k.nk = std::min(kAttentionKeys, end - k.k0);
    k.first = desc.causal ? k.k0 - x.shift - k.i0 : -kAttentionKeys;
    const int64_t k_at = k.b * desc.k[0] + kv_head * desc.k[1] + k.k0 * desc.k[2], v_at = k.b * desc.v[0] + kv_head * desc.v[1] + k.k0 * desc.v[2];
    Rows keys, values;
    if constexpr (kPairs) {
      keys = pair_rows(x.data(x.args.k), k_at, desc.k[2]);
      values = interleave_rows(x.data(x.args.v), v_at, desc.v[2], k.nk, dim, x.part(x.at.v_rows), padded);
    } else {
      keys = fetch(desc.dtype, x.data(x.args.k), k_at, desc.k[2], desc.k[3], k.nk, dim, false, x.part(x.at.k_rows), padded);
      values = fetch(desc.dtype, x.data(x.args.v), v_at, desc.v[2], desc.v[3], k.nk, dim, false, x.part(x.at.v_rows), padded);
    }
    const float* bias = bias_tile(x, k);
    const float* drop = keep_tile(x, k);
    int64_t j = 0;
    for (; j + kRows <= k.nk; j += kRows) {
      score_tiles<kArithmetic, kRows>(keys, q_t, depth, factor, k, j, bias, tile, top);
      ahead.step((k.k0 + j) / kRows);
    }
    for (; j < k.nk; ++j) score_tiles<kArithmetic, 1>(keys, q_t, depth, factor, k, j, bias, tile, top);
    softmax<kArithmetic>(x.args.exp2, k, drop, tile, top, last_top, sum, keep);
    if (k.k0 == 0) {
      sum_rows<Start::zero, kArithmetic>(values, tile, k, dim, keep, acc_t);
    } else {
      sum_rows<Start::scale, kArithmetic>(values, tile, k, dim, keep, acc_t);
    }
  }
  if (end == 0) std::memset(acc_t, 0, size_t(dim) * kQ * sizeof(float));
  float* lse = x.worker.at<float>(x.args.lse) + (k.b * desc.heads + k.h) * desc.queries + k.i0;
  const float whole = kPairs && desc.dropout > 0 && desc.dropout < 1 ? float(1 / (1 - desc.dropout)) : 1.0f;
  for (int v = 0; v < k.vectors(); ++v) {
    const Vec s = hn::Load(d, sum + v * kLanes);
    const auto nothing = hn::Eq(s, hn::Zero(d));
    hn::Store(hn::IfThenElse(nothing, hn::Zero(d), hn::Div(hn::Set(d, whole), s)), d, keep + v * kLanes);
    const Vec total = hn::Mul(hn::Add(hn::Load(d, top + v * kLanes), log2_lanes(s)), hn::Set(d, kLn2));
    hn::Store(hn::IfThenElse(nothing, hn::Set(d, -kInf), total), d, sum + v * kLanes);
  }
  std::memcpy(lse, sum, size_t(k.n) * sizeof(float));
  const auto& os = desc.out;
  transpose_out(acc_t, keep, k.n, dim, desc.dtype, x.worker.at<std::byte>(x.args.out), k.b * os[0] + k.h * os[1] + k.i0 * os[2], os, x.part(x.at.q_rows),
                padded);
}

// A unit is `unit_queries` queries of one (batch, head).
template <Arithmetic kArithmetic>
void forward(const void* p, int64_t begin, int64_t end, Worker& worker) {
  const AttentionArgs& args = *static_cast<const AttentionArgs*>(p);
  const AttentionDesc& desc = args.desc;
  const Context x(args, worker, 0);
  for (int64_t unit = begin; unit < end; ++unit) {
    const int64_t head = unit / args.query_units, first = unit % args.query_units * args.unit_queries;
    const int64_t last = std::min(first + args.unit_queries, desc.queries);
    for (int64_t i = first; i < last; i += kQ) {
      const Block block{.b = head / desc.heads, .h = head % desc.heads, .i0 = i, .n = std::min<int64_t>(kQ, last - i)};
      Ahead ahead;
      ahead.add(x, args.out, desc.out, block.b, block.h, i, block.n);
      const int64_t after = i + kQ < last ? i + kQ : last % desc.queries, next = after ? head : head + 1, b = next / desc.heads, h = next % desc.heads;
      if (after || unit + 1 < end) ahead.add(x, args.q, desc.q, b, h, after, std::min<int64_t>(kQ, desc.queries - after));
      // The next head's keys and values, split into as many parts as this head has blocks of queries.
      const int64_t other = head + 1, kv = other % desc.heads / args.group, from = i * desc.keys / desc.queries;
      if (other * args.query_units < end && other % args.group == 0) {
        const int64_t rows = std::min(kQ * desc.keys / desc.queries + 1, x.keys - from);
        ahead.add(x, args.k, desc.k, other / desc.heads, kv, from, rows);
        ahead.add(x, args.v, desc.v, other / desc.heads, kv, from, rows);
      }
      forward_block<kArithmetic>(x, block, ahead);
    }
  }
}

}  // namespace

AttentionRun forward_kernel() { return forward<Arithmetic::f32>; }
#if HWY_TARGET == HWY_AVX3
AttentionRun forward_pairs() { return forward<Arithmetic::pairs>; }
#endif

}  // namespace HWY_NAMESPACE
}  // namespace ridge::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ridge::cpu {

AttentionRun attention_kernel(IsaTier tier, bool pairs) {
#if RIDGE_TIERS
  if (pairs) return N_AVX3::forward_pairs();
  return has_avx512(tier) ? N_AVX3::forward_kernel() : tier == IsaTier::avx2 ? N_AVX2::forward_kernel() : N_SSE4::forward_kernel();
#else
  (void)tier, (void)pairs;
  return HWY_STATIC_DISPATCH(forward_kernel)();
#endif
}

}  // namespace ridge::cpu
#endif
