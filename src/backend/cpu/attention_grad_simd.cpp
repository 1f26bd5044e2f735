// Attention, backward: recomputes scores from q, k and the log-sum-exp, with queries in the outer loop and keys in the inner loop.
#include "base/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/attention_grad_simd.cpp"
#include "hwy/foreach_target.h"

#include "backend/cpu/attention_tiles_simd.h"

HWY_BEFORE_NAMESPACE();
namespace ridge::cpu {
namespace HWY_NAMESPACE {
namespace {

// What a block of queries keeps while it iterates over the keys. With pairs, features of q_t, dout_t, k and v are paired, and queries of q and dout are paired.
struct Operands {
  Rows q{}, dout{};                               // [query][feature], whole vectors
  Rows k{}, v{};                                  // [key][feature]
  const float *q_t = nullptr, *dout_t = nullptr;  // [feature][query]; q_t is scaled for base 2, except with pairs
  const float *lse = nullptr, *delta = nullptr;   // per query: log-sum-exp in base 2; scale * sum of dout * out
  const float *bias = nullptr, *drop = nullptr;   // [key][query], null if absent
  int64_t dim = 0, depth = 0;                     // number of features, and of features or feature pairs
  float scale = 1, factor = 1;                    // factor: scale * log2(e), for a score of pairs
  const Exp2Table* table = nullptr;
};

// Where probabilities and gradients of scores are stored: for R keys, and for all keys of a block.
struct Weights {
  float* p = nullptr;   // [R][query]
  float* ds = nullptr;  // [key][query], or pairs of keys
  // With pairs: the same in bf16, contiguous along the queries.
  uint16_t *p_rows = nullptr, *ds_rows = nullptr;
};

// For R keys from row j and vectors [v, v + N): p = softmax after dropout, and ds = scale * p * (dout vᵀ - delta).
template <Arithmetic kArithmetic, int R, int N>
HWY_NOINLINE void score_grad_tile(const Operands& o, const Block& k, int64_t j, int v, const Weights& to) {
  float* const p = to.p;
  const F d;
  const int64_t lanes = v * kLanes;
  {
    Vec acc[R][N];
    set_zero(acc);
    multiply<true, kArithmetic>(o.k.p + j * o.k.stride, size_t(o.k.stride), o.q_t + lanes, kQ, size_t(o.depth), acc);
    if constexpr (kArithmetic == Arithmetic::pairs) {
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int i = 0; i < N; ++i) acc[r][i] = hn::Mul(acc[r][i], hn::Set(d, o.factor));
    }
    if (o.bias) {
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int i = 0; i < N; ++i) acc[r][i] = hn::MulAdd(hn::Load(d, o.bias + (j + r) * kQ + lanes + i * kLanes), hn::Set(d, kLog2e), acc[r][i]);
    }
    const Exp2 exp2(*o.table);
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) {
      const int64_t at = lanes + i * kLanes;
      const Vec lse = hn::Load(d, o.lse + at), lane = hn::Iota(d, float(at));
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) hn::Store(exp2(hn::Sub(acc[r][i], lse)), d, p + r * kQ + at);
      if (k.cuts(j, R, v + i))
        for (int r = 0; r < R; ++r) {
          float* row = p + r * kQ + at;
          hn::Store(hn::IfThenElseZero(hn::Ge(lane, hn::Set(d, float(k.first + j + r))), hn::Load(d, row)), d, row);
        }
    }
  }
  Vec acc[R][N];
  set_zero(acc);
  multiply<true, kArithmetic>(o.v.p + j * o.v.stride, size_t(o.v.stride), o.dout_t + lanes, kQ, size_t(o.depth), acc);
  const U u;
  const hn::Rebind<uint16_t, U> d16;
#pragma GCC unroll 8
  for (int i = 0; i < N; ++i) {
    const int64_t at = lanes + i * kLanes;
    const Vec delta = hn::Load(d, o.delta + at);
    hn::Vec<U> before = hn::Zero(u);  // the previous row, rounded
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      Vec e = hn::Load(d, p + r * kQ + at), dp = acc[r][i], kept = e;
      if (o.drop) {
        const Vec keep = hn::Load(d, o.drop + (j + r) * kQ + at);
        dp = hn::Mul(dp, keep), kept = hn::Mul(e, keep);
      }
      const Vec ds = hn::Mul(e, hn::MulSub(dp, hn::Set(d, o.scale), delta));
      if constexpr (kArithmetic == Arithmetic::pairs) {
        const auto bits = rounded(ds);
        hn::StoreU(hn::TruncateTo(d16, hn::ShiftRight<16>(rounded(kept))), d16, to.p_rows + r * kQ + at);
        hn::StoreU(hn::TruncateTo(d16, hn::ShiftRight<16>(bits)), d16, to.ds_rows + (j + r) * kQ + at);
        // A single key is either the second of a pair, or the first of a pair that has no second yet.
        uint32_t* pairs = reinterpret_cast<uint32_t*>(to.ds + (j + r) / 2 * kQ + at);
        if (R == 1)
          hn::Store(j % 2 ? hn::Or(hn::Load(u, pairs), hn::And(bits, hn::Set(u, 0xffff0000u))) : hn::ShiftRight<16>(bits), u, pairs);
        else if (r % 2)
          hn::Store(paired(before, bits), u, pairs);
        before = bits;
      } else {
        if (o.drop) hn::Store(kept, d, p + r * kQ + at);
        hn::Store(ds, d, to.ds + (j + r) * kQ + at);
      }
    }
  }
}

// Where a unit sums dk and dv: directly in the outputs if possible, otherwise in separate f32 rows.
struct Sums {
  float *dk, *dv;
  int64_t dk_stride, dv_stride;
  int64_t touched = 0;  // number of keys that already have sums; the others start from zero
};

// sums[r][c] (+)= sum over queries of weights[r][query] * rows[query][c], for R keys.
template <Arithmetic kArithmetic, int R, int N>
HWY_NOINLINE void add_keys_tile(const float* weights, int64_t weights_stride, const float* from, int64_t stride, int64_t n, bool add, float* sums,
                                int64_t sums_stride) {
  const F d;
  Vec acc[R][N];
  if (add) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int i = 0; i < N; ++i) acc[r][i] = hn::LoadU(d, sums + r * sums_stride + i * kLanes);
  } else {
    set_zero(acc);
  }
  multiply<true, kArithmetic>(weights, size_t(weights_stride), from, size_t(stride), size_t(n), acc);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) hn::StoreU(acc[r][i], d, sums + r * sums_stride + i * kLanes);
}

// With pairs, `first` and `n` count pairs of queries.
template <Arithmetic kArithmetic, int R>
HWY_INLINE void add_keys(const float* weights, int64_t weights_stride, Rows rows, int64_t first, int64_t n, int64_t dim, bool add, float* sums,
                         int64_t sums_stride) {
  const float *from = rows.p + first * rows.stride, *w = weights + first;
  int64_t c = 0;
  for (; c + kLanes < dim; c += 2 * kLanes) add_keys_tile<kArithmetic, R, 2>(w, weights_stride, from + c, rows.stride, n - first, add, sums + c, sums_stride);
  if (c < dim) add_keys_tile<kArithmetic, R, 1>(w, weights_stride, from + c, rows.stride, n - first, add, sums + c, sums_stride);
}

template <Arithmetic kArithmetic, int R>
HWY_INLINE void key_rows(const Operands& o, const Block& k, int64_t j, const Weights& w, const Sums& sums) {
  int v = k.vector_of(j);
  for (; v + 2 <= k.vectors(); v += 2) score_grad_tile<kArithmetic, R, 2>(o, k, j, v, w);
  if (v < k.vectors()) score_grad_tile<kArithmetic, R, 1>(o, k, j, v, w);
  const int64_t first = k.lane_of(j), key = k.k0 + j;
  const bool add = key < sums.touched;
  float *dv = sums.dv + key * sums.dv_stride, *dk = sums.dk + key * sums.dk_stride;
  if constexpr (kArithmetic == Arithmetic::pairs) {
    // If the first query is the second of a pair, the first of that pair contributes zero.
    const int64_t begin = first / 2, end = (k.n + 1) / 2;
    add_keys<kArithmetic, R>(reinterpret_cast<const float*>(w.p_rows), kQ / 2, o.dout, begin, end, o.dim, add, dv, sums.dv_stride);
    add_keys<kArithmetic, R>(reinterpret_cast<const float*>(w.ds_rows + j * kQ), kQ / 2, o.q, begin, end, o.dim, add, dk, sums.dk_stride);
  } else {
    add_keys<kArithmetic, R>(w.p, kQ, o.dout, first, k.n, o.dim, add, dv, sums.dv_stride);
    add_keys<kArithmetic, R>(w.ds + j * kQ, kQ, o.q, first, k.n, o.dim, add, dk, sums.dk_stride);
  }
}

// Zeros for the keys [begin, end).
void clear(const Sums& sums, int64_t begin, int64_t end, int64_t dim) {
  const size_t bytes = size_t(dim) * sizeof(float);
  for (int64_t j = begin; j < end; ++j) std::memset(sums.dk + j * sums.dk_stride, 0, bytes), std::memset(sums.dv + j * sums.dv_stride, 0, bytes);
}

// The sum of dout * out for a query, from rows of pairs.
HWY_INLINE float pair_dot(const float* a, const float* b, int64_t pairs) {
  const F d;
  Vec sum = hn::Zero(d);
  for (int64_t c = 0; c < pairs; c += kLanes) {
    const auto live = hn::FirstN(d, size_t(pairs - c));
    sum = multiply_add<Arithmetic::pairs>(hn::MaskedLoad(live, d, a + c), hn::MaskedLoad(live, d, b + c), sum);
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

template <Arithmetic kArithmetic>
void backward_block(const Context& x, Block k, Sums& sums, Ahead& ahead) {
  const F d;
  constexpr bool kPairs = kArithmetic == Arithmetic::pairs;
  const AttentionDesc& desc = x.args.desc;
  const DType t = desc.dtype;
  const int64_t kv_head = k.h / x.args.group, padded = x.args.padded, dim = desc.dim, padded_dim = x.args.direct() ? dim : padded;
  float *q_t = x.part(x.at.q_t), *dout_t = x.part(x.at.dout_t), *acc_t = x.part(x.at.acc_t), *tile = x.part(x.at.tile), *p = x.part(x.at.probs);
  float *lse = x.part(x.at.stats), *delta = lse + kQ, *one = lse + 2 * kQ;
  auto offset = [&](const AttentionDesc::Strides& s, int64_t head, int64_t i) { return k.b * s[0] + head * s[1] + i * s[2]; };

  const float factor = float(desc.scale * 1.4426950408889634);
  Operands o{.q_t = q_t, .dout_t = dout_t, .lse = lse, .delta = delta, .dim = dim, .depth = kPairs ? dim / 2 : dim, .scale = float(desc.scale)};
  o.factor = factor, o.table = &x.args.exp2;
  const int64_t q_at = offset(desc.q, k.h, k.i0), dout_at = offset(desc.dout, k.h, k.i0), out_at = offset(desc.out, k.h, k.i0);
  Rows dout, out;  // feature rows, for delta
  if constexpr (kPairs) {
    dout = pair_rows(x.data(x.args.dout), dout_at, desc.dout[2]), out = pair_rows(x.data(x.args.out), out_at, desc.out[2]);
    o.q = interleave_rows(x.data(x.args.q), q_at, desc.q[2], k.n, dim, x.part(x.at.q_rows), padded);
    o.dout = interleave_rows(x.data(x.args.dout), dout_at, desc.dout[2], k.n, dim, x.part(x.at.dout_rows), padded);
    transpose_in<false>(pair_rows(x.data(x.args.q), q_at, desc.q[2]), k.n, o.depth, 1, q_t);
    transpose_in<false>(dout, k.n, o.depth, 1, dout_t);
  } else {
    o.q = fetch(t, x.data(x.args.q), q_at, desc.q[2], desc.q[3], k.n, dim, true, x.part(x.at.q_rows), padded);
    dout = o.dout = fetch(t, x.data(x.args.dout), dout_at, desc.dout[2], desc.dout[3], k.n, dim, true, x.part(x.at.dout_rows), padded);
    out = fetch(t, x.data(x.args.out), out_at, desc.out[2], desc.out[3], k.n, dim, true, x.part(x.at.k_rows), padded);
    transpose_in(o.q, k.n, dim, factor, q_t);
    transpose_in(o.dout, k.n, dim, 1.0f, dout_t);
  }
  // Lanes past the last query, and queries that see no keys, get probability zero everywhere.
  const float* saved = x.worker.at<const float>(x.args.lse) + (k.b * desc.heads + k.h) * desc.queries + k.i0;
  for (int i = 0; i < kQ; ++i) lse[i] = i < k.n && saved[i] != -kInf ? saved[i] * kLog2e : kInf, delta[i] = 0, one[i] = 1;
  for (int64_t i = 0; i < k.n; ++i) {
    const float *a = dout.p + i * dout.stride, *b = out.p + i * out.stride;
    if constexpr (kPairs) {
      delta[i] = pair_dot(a, b, o.depth) * o.scale;
    } else {
      Vec sum = hn::Zero(d);
      for (int64_t c = 0; c < dim; c += kLanes) sum = hn::MulAdd(hn::LoadU(d, a + c), hn::LoadU(d, b + c), sum);
      delta[i] = hn::GetLane(hn::SumOfLanes(d, sum)) * o.scale;
    }
  }
  Weights w{.p = p, .ds = tile};
  if constexpr (kPairs) {
    w.p_rows = reinterpret_cast<uint16_t*>(p + kRows * kQ);
    w.ds_rows = reinterpret_cast<uint16_t*>(x.part(x.at.rows));
  }

  const int64_t end = x.visible(k.i0 + k.n);
  ahead.spread(end / kRows);
  for (k.k0 = 0; k.k0 < end; k.k0 += kAttentionKeys) {
    k.nk = std::min(kAttentionKeys, end - k.k0);
    k.first = desc.causal ? k.k0 - x.shift - k.i0 : -kAttentionKeys;
    const int64_t k_at = offset(desc.k, kv_head, k.k0), v_at = offset(desc.v, kv_head, k.k0);
    Rows key_sums;  // the rows that dq is summed from
    if constexpr (kPairs) {
      o.k = pair_rows(x.data(x.args.k), k_at, desc.k[2]), o.v = pair_rows(x.data(x.args.v), v_at, desc.v[2]);
      key_sums = interleave_rows(x.data(x.args.k), k_at, desc.k[2], k.nk, dim, x.part(x.at.k_rows), padded);
    } else {
      o.k = key_sums = fetch(t, x.data(x.args.k), k_at, desc.k[2], desc.k[3], k.nk, dim, false, x.part(x.at.k_rows), padded);
      o.v = fetch(t, x.data(x.args.v), v_at, desc.v[2], desc.v[3], k.nk, dim, false, x.part(x.at.v_rows), padded);
    }
    o.bias = bias_tile(x, k);
    o.drop = keep_tile(x, k);
    // A group of kRows keys must have sums for all or none of its keys, so a group that the previous end cuts in two gets zeros here.
    const int64_t whole = std::min((sums.touched + kRows - 1) / kRows * kRows, end);
    if (sums.touched < whole) clear(sums, sums.touched, whole, padded_dim), sums.touched = whole;
    int64_t j = 0;
    for (; j + kRows <= k.nk; j += kRows) {
      key_rows<kArithmetic, kRows>(o, k, j, w, sums);
      ahead.step((k.k0 + j) / kRows);
    }
    for (; j < k.nk; ++j) key_rows<kArithmetic, 1>(o, k, j, w, sums);
    if (k.k0 == 0) {
      sum_rows<Start::zero, kArithmetic>(key_sums, tile, k, dim, one, acc_t);
    } else {
      sum_rows<Start::add, kArithmetic>(key_sums, tile, k, dim, one, acc_t);
    }
  }
  sums.touched = std::max(sums.touched, end);
  if (end == 0) std::memset(acc_t, 0, size_t(dim) * kQ * sizeof(float));
  transpose_out(acc_t, one, k.n, dim, t, x.worker.at<std::byte>(x.args.dq), offset(desc.dq, k.h, k.i0), desc.dq, x.part(x.at.q_rows), padded);
}

// Stores the sums of keys [begin, end) of one (batch, kv head) to dk and dv; the first sums are those of `begin`.
void store_keys(const Context& x, int64_t b, int64_t kv_head, int64_t begin, int64_t end, const float* dk, const float* dv) {
  const AttentionDesc& desc = x.args.desc;
  for (int64_t j = begin; j < end; ++j, dk += x.args.padded, dv += x.args.padded) {
    put(desc.dtype, x.worker.at<std::byte>(x.args.dk), b * desc.dk[0] + kv_head * desc.dk[1] + j * desc.dk[2], desc.dk[3], dk, desc.dim);
    put(desc.dtype, x.worker.at<std::byte>(x.args.dv), b * desc.dv[0] + kv_head * desc.dv[1] + j * desc.dv[2], desc.dv[3], dv, desc.dim);
  }
}

// A unit is one chunk of a (batch, kv head).
template <Arithmetic kArithmetic>
void backward(const void* arg, int64_t begin, int64_t end, Worker& worker) {
  const AttentionArgs& args = *static_cast<const AttentionArgs*>(arg);
  const AttentionDesc& desc = args.desc;
  const int64_t chunks = args.chunks(), blocks = args.query_blocks(), half = args.sums() / 2;
  const Context x(args, worker, args.scratch_sums());
  const bool direct = args.direct();
  for (int64_t unit = begin; unit < end; ++unit) {
    const int64_t b = unit / chunks / desc.kv_heads, kv_head = unit / chunks % desc.kv_heads, chunk = unit % chunks;
    float* rows = chunks == 1 ? x.part(x.at.sums) : worker.at<float>(args.workspace) + unit * args.sums();
    Sums sums{.dk = rows, .dv = rows + half, .dk_stride = args.padded, .dv_stride = args.padded};
    if (direct) {
      sums = {.dk = worker.at<float>(args.dk) + b * desc.dk[0] + kv_head * desc.dk[1],
              .dv = worker.at<float>(args.dv) + b * desc.dv[0] + kv_head * desc.dv[1],
              .dk_stride = desc.dk[2],
              .dv_stride = desc.dv[2]};
    }
    for (int64_t at = args.chunk_begin[chunk]; at < args.chunk_begin[chunk + 1]; ++at) {
      const int64_t h = kv_head * args.group + at / blocks, first = at % blocks * kAttentionQueries, last = std::min(first + kAttentionQueries, desc.queries);
      for (int64_t i = first; i < last; i += kQ) {
        const Block block{.b = b, .h = h, .i0 = i, .n = std::min<int64_t>(kQ, last - i)};
        Ahead ahead;
        ahead.add(x, args.dq, desc.dq, b, h, i, block.n);
        // The next block's rows and, for the last head of a group, a share of the next group's keys and their gradients.
        const int64_t after = i + kQ < desc.queries ? i + kQ : 0, next = b * desc.heads + h + (after ? 0 : 1),
                      rows = std::min<int64_t>(kQ, desc.queries - after);
        if (next < desc.batch * desc.heads) {
          ahead.add(x, args.q, desc.q, next / desc.heads, next % desc.heads, after, rows);
          ahead.add(x, args.dout, desc.dout, next / desc.heads, next % desc.heads, after, rows);
          ahead.add(x, args.out, desc.out, next / desc.heads, next % desc.heads, after, rows);
        }
        const int64_t other = b * desc.kv_heads + kv_head + 1, from = i * desc.keys / desc.queries;
        if ((h + 1) % args.group == 0 && other * chunks < end) {
          const int64_t part = std::min(kQ * desc.keys / desc.queries + 1, x.keys - from), ob = other / desc.kv_heads, oh = other % desc.kv_heads;
          ahead.add(x, args.k, desc.k, ob, oh, from, part), ahead.add(x, args.v, desc.v, ob, oh, from, part);
          if (direct) ahead.add(x, args.dk, desc.dk, ob, oh, from, part), ahead.add(x, args.dv, desc.dv, ob, oh, from, part);
        }
        backward_block<kArithmetic>(x, block, sums, ahead);
      }
    }
    clear(sums, sums.touched, desc.keys, direct ? desc.dim : args.padded);
    if (chunks == 1 && !direct) store_keys(x, b, kv_head, 0, desc.keys, rows, rows + half);
  }
}

// A unit is a block of keys of one (batch, kv head): adds the chunks in order, into the first.
void reduce(const void* arg, int64_t begin, int64_t end, Worker& worker) {
  const F d;
  const AttentionArgs& args = *static_cast<const AttentionArgs*>(arg);
  const AttentionDesc& desc = args.desc;
  const Context x(args, worker, 0);
  const int64_t key_blocks = (desc.keys + kAttentionKeys - 1) / kAttentionKeys, half = args.sums() / 2;
  for (int64_t unit = begin; unit < end; ++unit) {
    const int64_t head = unit / key_blocks, first = unit % key_blocks * kAttentionKeys, last = std::min(first + kAttentionKeys, desc.keys);
    float* sums = worker.at<float>(args.workspace) + head * args.chunks() * args.sums() + first * args.padded;
    for (int64_t part = 0; part < 2; ++part)
      for (int64_t i = part * half; i < part * half + (last - first) * args.padded; i += kLanes) {
        Vec sum = hn::Load(d, sums + i);
        for (int64_t chunk = 1; chunk < args.chunks(); ++chunk) sum = hn::Add(sum, hn::Load(d, sums + chunk * args.sums() + i));
        hn::Store(sum, d, sums + i);
      }
    store_keys(x, head / desc.kv_heads, head % desc.kv_heads, first, last, sums, sums + half);
  }
}

}  // namespace

AttentionGradKernels grad_kernels() { return {backward<Arithmetic::f32>, reduce}; }
#if HWY_TARGET == HWY_AVX3
AttentionGradKernels grad_pairs() { return {backward<Arithmetic::pairs>, reduce}; }
#endif

}  // namespace HWY_NAMESPACE
}  // namespace ridge::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ridge::cpu {

AttentionGradKernels attention_grad_kernels(IsaTier tier, bool pairs) {
#if RIDGE_TIERS
  if (pairs) return N_AVX3::grad_pairs();
  return has_avx512(tier) ? N_AVX3::grad_kernels() : tier == IsaTier::avx2 ? N_AVX2::grad_kernels() : N_SSE4::grad_kernels();
#else
  (void)tier, (void)pairs;
  return HWY_STATIC_DISPATCH(grad_kernels)();
#endif
}

}  // namespace ridge::cpu
#endif
