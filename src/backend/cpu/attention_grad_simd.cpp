// Attention, backward: scores are computed again from q, k and the log-sum-exp; queries outside, keys inside.
#include "backend/cpu/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/attention_grad_simd.cpp"
#include "hwy/foreach_target.h"

#include "backend/cpu/attention_tiles_simd.h"

HWY_BEFORE_NAMESPACE();
namespace ridge::cpu {
namespace HWY_NAMESPACE {
namespace {

// What a block of queries keeps while it passes over the keys.
struct Operands {
  Rows q{}, dout{};                               // [query][feature], whole vectors
  Rows k{}, v{};                                  // [key][feature]
  const float *q_t = nullptr, *dout_t = nullptr;  // [feature][query]; q_t is scaled, in powers of two
  const float *lse = nullptr, *delta = nullptr;   // per query: in powers of two; sum of dout * out
  const float *bias = nullptr, *drop = nullptr;   // [key][query], null where there is none
  int64_t dim = 0;
};

// For R keys from row j and vectors [v, v + N): p = softmax, dropped out, and ds = p * (dout vᵀ - delta).
template <int R, int N>
HWY_INLINE void score_grad_tile(const Operands& o, const Block& k, int64_t j, int v, float* p, float* ds) {
  const F d;
  const int64_t lanes = v * kLanes;
  {
    Vec acc[R][N];
    set_zero(acc);
    multiply<true>(o.k.p + j * o.k.stride, size_t(o.k.stride), o.q_t + lanes, kQ, size_t(o.dim), acc);
    if (o.bias) {
      for (int r = 0; r < R; ++r)
        for (int i = 0; i < N; ++i) acc[r][i] = hn::MulAdd(hn::Load(d, o.bias + (j + r) * kQ + lanes + i * kLanes), hn::Set(d, kLog2e), acc[r][i]);
    }
    const bool edge = k.first + j + R - 1 > lanes;
    for (int r = 0; r < R; ++r)
      for (int i = 0; i < N; ++i) {
        Vec e = exp2_lanes(hn::Sub(acc[r][i], hn::Load(d, o.lse + lanes + i * kLanes)));
        if (edge) e = hn::IfThenElseZero(hn::Ge(hn::Iota(d, float(lanes + i * kLanes)), hn::Set(d, float(k.first + j + r))), e);
        hn::Store(e, d, p + r * kQ + lanes + i * kLanes);
      }
  }
  Vec acc[R][N];
  set_zero(acc);
  multiply<true>(o.v.p + j * o.v.stride, size_t(o.v.stride), o.dout_t + lanes, kQ, size_t(o.dim), acc);
  for (int r = 0; r < R; ++r)
    for (int i = 0; i < N; ++i) {
      const int64_t at = lanes + i * kLanes;
      const Vec e = hn::Load(d, p + r * kQ + at), delta = hn::Load(d, o.delta + at);
      Vec dp = acc[r][i];
      if (o.drop) {
        const Vec keep = hn::Load(d, o.drop + (j + r) * kQ + at);
        dp = hn::Mul(dp, keep);
        hn::Store(hn::Mul(e, keep), d, p + r * kQ + at);
      }
      hn::Store(hn::Mul(e, hn::Sub(dp, delta)), d, ds + (j + r) * kQ + at);
    }
}

// sums[r][c] += sum over queries of weights[r][query] * rows[query][c], for R keys.
template <int R>
HWY_INLINE void add_keys(const float* weights, Rows rows, int64_t first, int64_t n, int64_t padded, int64_t dim, float* sums) {
  const F d;
  for (int64_t c = 0; c < dim; c += 2 * kLanes) {
    const float* from = rows.p + first * rows.stride + c;
    if (c + kLanes < dim) {
      Vec acc[R][2];
      for (int r = 0; r < R; ++r)
        for (int i = 0; i < 2; ++i) acc[r][i] = hn::Load(d, sums + r * padded + c + i * kLanes);
      multiply<true>(weights + first, kQ, from, size_t(rows.stride), size_t(n - first), acc);
      for (int r = 0; r < R; ++r)
        for (int i = 0; i < 2; ++i) hn::Store(acc[r][i], d, sums + r * padded + c + i * kLanes);
    } else {
      Vec acc[R][1];
      for (int r = 0; r < R; ++r) acc[r][0] = hn::Load(d, sums + r * padded + c);
      multiply<true>(weights + first, kQ, from, size_t(rows.stride), size_t(n - first), acc);
      for (int r = 0; r < R; ++r) hn::Store(acc[r][0], d, sums + r * padded + c);
    }
  }
}

template <int R>
HWY_INLINE void key_rows(const Operands& o, const Block& k, int64_t j, int64_t padded, float* p, float* ds, float* dk, float* dv) {
  int v = k.vector_of(j);
  if (v >= k.vectors()) return;
  for (; v + 2 <= k.vectors(); v += 2) score_grad_tile<R, 2>(o, k, j, v, p, ds);
  if (v < k.vectors()) score_grad_tile<R, 1>(o, k, j, v, p, ds);
  const int64_t first = k.lane_of(j);
  if (first >= k.n) return;
  add_keys<R>(p, o.dout, first, k.n, padded, o.dim, dv + j * padded);
  add_keys<R>(ds + j * kQ, o.q, first, k.n, padded, o.dim, dk + j * padded);
}

void backward_block(const Context& x, Block k, float* dk, float* dv) {
  const F d;
  const AttentionDesc& desc = x.args.desc;
  const DType t = desc.dtype;
  const int64_t kv_head = k.h / x.args.group, padded = x.args.padded, dim = desc.dim;
  float *q_t = x.part(x.at.q_t), *dout_t = x.part(x.at.dout_t), *acc_t = x.part(x.at.acc_t), *tile = x.part(x.at.tile), *p = x.part(x.at.probs);
  float *lse = x.part(x.at.stats), *delta = lse + kQ, *factor = lse + 2 * kQ, *one = lse + 3 * kQ;
  auto offset = [&](const AttentionDesc::Strides& s, int64_t head, int64_t i) { return k.b * s[0] + head * s[1] + i * s[2]; };

  Operands o{.q_t = q_t, .dout_t = dout_t, .lse = lse, .delta = delta, .dim = dim};
  o.q = fetch(t, x.data(x.args.q), offset(desc.q, k.h, k.i0), desc.q[2], desc.q[3], k.n, dim, true, x.part(x.at.q_rows), padded);
  o.dout = fetch(t, x.data(x.args.dout), offset(desc.dout, k.h, k.i0), desc.dout[2], desc.dout[3], k.n, dim, true, x.part(x.at.dout_rows), padded);
  const Rows out = fetch(t, x.data(x.args.out), offset(desc.out, k.h, k.i0), desc.out[2], desc.out[3], k.n, dim, false, x.part(x.at.k_rows), padded);
  transpose_in(o.q, k.n, dim, float(desc.scale * 1.4426950408889634), q_t);
  transpose_in(o.dout, k.n, dim, 1.0f, dout_t);
  transpose_in(out, k.n, dim, 1.0f, acc_t);
  // Lanes past the last query, and queries that saw nothing, get probability zero everywhere.
  const float* saved = x.worker.at<const float>(x.args.lse) + (k.b * desc.heads + k.h) * desc.queries + k.i0;
  for (int i = 0; i < kQ; ++i) lse[i] = i < k.n && saved[i] != -kInf ? saved[i] * kLog2e : kInf, factor[i] = float(desc.scale), one[i] = 1;
  for (int v = 0; v < k.vectors(); ++v) {
    Vec s0 = hn::Zero(d), s1 = hn::Zero(d);
    int64_t c = 0;
    for (; c + 2 <= dim; c += 2) {
      s0 = hn::MulAdd(hn::Load(d, dout_t + c * kQ + v * kLanes), hn::Load(d, acc_t + c * kQ + v * kLanes), s0);
      s1 = hn::MulAdd(hn::Load(d, dout_t + (c + 1) * kQ + v * kLanes), hn::Load(d, acc_t + (c + 1) * kQ + v * kLanes), s1);
    }
    if (c < dim) s0 = hn::MulAdd(hn::Load(d, dout_t + c * kQ + v * kLanes), hn::Load(d, acc_t + c * kQ + v * kLanes), s0);
    hn::Store(hn::Add(s0, s1), d, delta + v * kLanes);
  }

  const int64_t end = x.visible(k.i0 + k.n);
  for (k.k0 = 0; k.k0 < end; k.k0 += kAttentionKeys) {
    k.nk = std::min(kAttentionKeys, end - k.k0);
    k.first = desc.causal ? k.k0 - x.shift - k.i0 : -kAttentionKeys;
    o.k = fetch(t, x.data(x.args.k), offset(desc.k, kv_head, k.k0), desc.k[2], desc.k[3], k.nk, dim, false, x.part(x.at.k_rows), padded);
    o.v = fetch(t, x.data(x.args.v), offset(desc.v, kv_head, k.k0), desc.v[2], desc.v[3], k.nk, dim, false, x.part(x.at.v_rows), padded);
    o.bias = bias_tile(x, k);
    o.drop = keep_tile(x, k);
    int64_t j = 0;
    for (; j + kRows <= k.nk; j += kRows) key_rows<kRows>(o, k, j, padded, p, tile, dk + k.k0 * padded, dv + k.k0 * padded);
    for (; j < k.nk; ++j) key_rows<1>(o, k, j, padded, p, tile, dk + k.k0 * padded, dv + k.k0 * padded);
    sum_rows(o.k, tile, k, dim, k.k0 ? one : nullptr, acc_t);
  }
  if (end == 0) std::memset(acc_t, 0, size_t(dim) * kQ * sizeof(float));
  transpose_out(acc_t, factor, k.n, dim, t, x.worker.at<std::byte>(x.args.dq), offset(desc.dq, k.h, k.i0), desc.dq, x.part(x.at.q_rows), padded);
}

// Sums to dk and dv of keys [begin, end) of one (batch, kv head); dk still lacks the scale.
void store_keys(const Context& x, int64_t b, int64_t kv_head, int64_t begin, int64_t end, float* dk, const float* dv) {
  const F d;
  const AttentionDesc& desc = x.args.desc;
  const int64_t padded = x.args.padded;
  const Vec scale = hn::Set(d, float(desc.scale));
  for (int64_t j = begin; j < end; ++j, dk += padded, dv += padded) {
    for (int64_t c = 0; c < desc.dim; c += kLanes) hn::Store(hn::Mul(hn::Load(d, dk + c), scale), d, dk + c);
    put(desc.dtype, x.worker.at<std::byte>(x.args.dk), b * desc.dk[0] + kv_head * desc.dk[1] + j * desc.dk[2], desc.dk[3], dk, desc.dim);
    put(desc.dtype, x.worker.at<std::byte>(x.args.dv), b * desc.dv[0] + kv_head * desc.dv[1] + j * desc.dv[2], desc.dv[3], dv, desc.dim);
  }
}

// A unit is one chunk of a (batch, kv head).
void backward(const void* arg, int64_t begin, int64_t end, Worker& worker) {
  const AttentionArgs& args = *static_cast<const AttentionArgs*>(arg);
  const AttentionDesc& desc = args.desc;
  const int64_t chunks = args.chunks(), blocks = args.query_blocks(), half = args.sums() / 2;
  const Context x(args, worker, chunks == 1 ? args.sums() : 0);
  for (int64_t unit = begin; unit < end; ++unit) {
    const int64_t b = unit / chunks / desc.kv_heads, kv_head = unit / chunks % desc.kv_heads, chunk = unit % chunks;
    float* dk = chunks == 1 ? x.part(x.at.sums) : worker.at<float>(args.workspace) + unit * args.sums();
    float* dv = dk + half;
    std::memset(dk, 0, size_t(args.sums()) * sizeof(float));
    for (int64_t at = args.chunk_begin[chunk]; at < args.chunk_begin[chunk + 1]; ++at) {
      const int64_t h = kv_head * args.group + at / blocks, first = at % blocks * kAttentionQueries, last = std::min(first + kAttentionQueries, desc.queries);
      for (int64_t i = first; i < last; i += kQ) backward_block(x, {.b = b, .h = h, .i0 = i, .n = std::min<int64_t>(kQ, last - i)}, dk, dv);
    }
    if (chunks == 1) store_keys(x, b, kv_head, 0, desc.keys, dk, dv);
  }
}

// A unit is a block of keys of one (batch, kv head): the chunks are added in their order, into the first.
void reduce(const void* arg, int64_t begin, int64_t end, Worker& worker) {
  const F d;
  const AttentionArgs& args = *static_cast<const AttentionArgs*>(arg);
  const AttentionDesc& desc = args.desc;
  const Context x(args, worker, 0);
  const int64_t key_blocks = (desc.keys + kAttentionKeys - 1) / kAttentionKeys, half = args.sums() / 2;
  for (int64_t unit = begin; unit < end; ++unit) {
    const int64_t head = unit / key_blocks, first = unit % key_blocks * kAttentionKeys, last = std::min(first + kAttentionKeys, desc.keys);
    float* sums = worker.at<float>(args.workspace) + head * args.chunks() * args.sums() + first * args.padded;
    for (int64_t chunk = 1; chunk < args.chunks(); ++chunk) {
      const float* more = sums + chunk * args.sums();
      for (int64_t part = 0; part < 2; ++part)
        for (int64_t i = part * half; i < part * half + (last - first) * args.padded; i += kLanes)
          hn::Store(hn::Add(hn::Load(d, sums + i), hn::Load(d, more + i)), d, sums + i);
    }
    store_keys(x, head / desc.kv_heads, head % desc.kv_heads, first, last, sums, sums + half);
  }
}

}  // namespace

AttentionGradKernels grad_kernels() { return {backward, reduce}; }

}  // namespace HWY_NAMESPACE
}  // namespace ridge::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ridge::cpu {

AttentionGradKernels attention_grad_kernels(IsaTier tier) {
#if HWY_ARCH_X86
  return tier == IsaTier::avx512 ? N_AVX3::grad_kernels() : tier == IsaTier::avx2 ? N_AVX2::grad_kernels() : N_SSE4::grad_kernels();
#else
  (void)tier;
  return HWY_STATIC_DISPATCH(grad_kernels)();
#endif
}

}  // namespace ridge::cpu
#endif
