// Attention with one query. Its cost is memory bandwidth alone, so every key and value is read once, in order.
#include "backend/cpu/attention_kernels.h"
#include "base/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/attention_decode_simd.cpp"
#include "hwy/foreach_target.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/cpu/lane_sums_simd.h"
#include "backend/cpu/math_simd.h"
#include "backend/cpu/widen_simd.h"
#include "base/half.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace ridge::cpu {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

using F = hn::ScalableTag<float>;
using Vec = hn::Vec<F>;
constexpr int64_t kLanes = HWY_MAX_BYTES / 4;
constexpr float kInf = std::numeric_limits<float>::infinity();

template <DType t>
using Stored = std::conditional_t<t == DType::f32, float, uint16_t>;

template <DType t>
HWY_INLINE Vec load(const Stored<t>* p) {
  const F d;
  if constexpr (t == DType::f32)
    return hn::LoadU(d, p);
  else
    return t == DType::bf16 ? wide::load_bf16(d, p) : wide::load_f16(d, p);
}

// One step through a row: two vectors of features, or a single one at the end.
template <DType t, int N>
HWY_INLINE void load(const Stored<t>* p, Vec* to) {
  if constexpr (N == 2 && t == DType::bf16)
    wide::load_bf16(p, to[0], to[1]);
  else
    for (int i = 0; i < N; ++i) to[i] = load<t>(p + i * kLanes);
}

// Rows that are read in sequence, and the rows to read after them: after a head's keys come its values, then the next head's keys. The hardware prefetcher does
// not continue from one range to the next, so rows are prefetched explicitly, into L2, because L1 would evict them before they are read.
constexpr int64_t kBytesAhead = 16 << 10;
template <class T>
struct Rows {
  const T *data, *next;
  int64_t stride, next_stride, n, ahead;

  HWY_INLINE void fetch(int64_t j, int64_t at, int64_t dim) const {
    const T* row = (j < n ? data + j * stride : next + std::min(j - n, n - 1) * next_stride) + at;
    for (int64_t c = 0; c < dim; c += 64 / int64_t(sizeof(T))) __builtin_prefetch(row + c, 0, 2);
  }
};

// scores[j] = q · keys[j]; scores past the last key, up to a multiple of 16, become -inf. N: vectors of features, an even number; 0: any.
template <DType t, int N>
HWY_INLINE void score(const float* q, const Rows<Stored<t>>& keys, int64_t dim, float* scores) {
  const F d;
  const hn::Full128<float> d4;
  Vec x[std::max(N, 1)];
#pragma GCC unroll 8
  for (int c = 0; c < N; ++c) x[c] = hn::LoadU(d, q + c * kLanes);
  const int64_t n = keys.n;
  for (int64_t j = 0; j < n; j += 4) {
    const Stored<t>* row[4];
    Vec sum[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      keys.fetch(j + keys.ahead + i, 0, N ? N * kLanes : dim);
      row[i] = keys.data + std::min(j + i, n - 1) * keys.stride;
      sum[i] = hn::Zero(d);
    }
    Vec k[2];
    if constexpr (N > 0) {
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i)
#pragma GCC unroll 4
        for (int c = 0; c < N; c += 2) {
          load<t, 2>(row[i] + c * kLanes, k);
          sum[i] = hn::MulAdd(x[c + 1], k[1], hn::MulAdd(x[c], k[0], sum[i]));
        }
    } else {
      int64_t c = 0;
      for (; c + 2 * kLanes <= dim; c += 2 * kLanes) {
        const Vec x0 = hn::LoadU(d, q + c), x1 = hn::LoadU(d, q + c + kLanes);
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
          load<t, 2>(row[i] + c, k);
          sum[i] = hn::MulAdd(x1, k[1], hn::MulAdd(x0, k[0], sum[i]));
        }
      }
      if (c < dim)
        for (int i = 0; i < 4; ++i) sum[i] = hn::MulAdd(hn::LoadU(d, q + c), load<t>(row[i] + c), sum[i]);
    }
    hn::StoreU(lanes::sums4(sum[0], sum[1], sum[2], sum[3]), d4, scores + j);
  }
  for (int64_t j = n; j % 16; ++j) scores[j] = -kInf;
}

// Turns scores into weights; returns their sum and the largest score.
struct Softmax {
  float sum, top;
};
HWY_INLINE Softmax softmax(float* scores, int64_t n) {
  const F d;
  Vec top = hn::Set(d, -kInf), sum = hn::Zero(d);
  for (int64_t j = 0; j < n; j += kLanes) top = hn::Max(top, hn::LoadU(d, scores + j));
  top = hn::MaxOfLanes(d, top);
  for (int64_t j = 0; j < n; j += kLanes) {
    const Vec s = hn::LoadU(d, scores + j);
    const Vec p = hn::IfThenZeroElse(hn::Eq(s, hn::Set(d, -kInf)), math::exp(hn::Sub(s, top)));
    sum = hn::Add(sum, p);
    hn::StoreU(p, d, scores + j);
  }
  return {hn::GetLane(hn::SumOfLanes(d, sum)), hn::GetLane(top)};
}

// out[c] = sum over j of weights[j] * values[j][c] for N vectors of features; even and odd keys are summed separately.
template <DType t, int N>
HWY_INLINE void mix(const float* weights, const Rows<Stored<t>>& values, int64_t at, float scale, float* out) {
  const F d;
  constexpr int kOfStep = N == 1 ? 1 : 2;
  Vec sum[2][N];
#pragma GCC unroll 4
  for (int i = 0; i < N; ++i) sum[0][i] = sum[1][i] = hn::Zero(d);
  auto add = [&](int64_t j, Vec* to) HWY_ATTR {
    const Vec w = hn::Set(d, weights[j]);
#pragma GCC unroll 2
    for (int i = 0; i < N; i += kOfStep) {
      Vec v[kOfStep];
      load<t, kOfStep>(values.data + at + j * values.stride + i * kLanes, v);
#pragma GCC unroll 2
      for (int u = 0; u < kOfStep; ++u) to[i + u] = hn::MulAdd(w, v[u], to[i + u]);
    }
  };
  const int64_t n = values.n;
  int64_t j = 0;
  for (; j + 2 <= n; j += 2) {
    values.fetch(j + values.ahead, at, N * kLanes), values.fetch(j + values.ahead + 1, at, N * kLanes);
    add(j, sum[0]), add(j + 1, sum[1]);
  }
  if (j < n) add(j, sum[0]);
#pragma GCC unroll 4
  for (int i = 0; i < N; ++i) hn::StoreU(hn::Mul(hn::Add(sum[0][i], sum[1][i]), hn::Set(d, scale)), d, out + at + i * kLanes);
}

// A unit is one (batch, head).
template <DType t>
void decode(const void* p, int64_t begin, int64_t end, Worker& worker) {
  using T = Stored<t>;
  const AttentionArgs& args = *static_cast<const AttentionArgs*>(p);
  const AttentionDesc& desc = args.desc;
  const int64_t dim = desc.dim, n = desc.has_length ? std::clamp<int64_t>(*worker.at<int64_t>(args.length), 0, desc.keys) : desc.keys;
  float* const q = reinterpret_cast<float*>(worker.scratch);  // later holds the result
  float* const scores = q + dim;
  const int64_t ahead = std::max<int64_t>(4, kBytesAhead / (dim * int64_t(sizeof(T))));
  const F d;
  const auto score_rows = dim == 2 * kLanes ? score<t, 2> : dim == 4 * kLanes ? score<t, 4> : dim == 8 * kLanes ? score<t, 8> : score<t, 0>;
  auto keys = [&](int64_t unit) { return worker.at<T>(args.k) + unit / desc.heads * desc.k[0] + unit % desc.heads / args.group * desc.k[1]; };
  for (int64_t unit = begin; unit < end; ++unit) {
    const int64_t b = unit / desc.heads, h = unit % desc.heads, kv = h / args.group;
    const T* from = worker.at<T>(args.q) + b * desc.q[0] + h * desc.q[1];
    const T* values = worker.at<T>(args.v) + b * desc.v[0] + kv * desc.v[1];
    for (int64_t c = 0; c < dim; c += kLanes) hn::StoreU(hn::Mul(load<t>(from + c), hn::Set(d, float(desc.scale))), d, q + c);
    const T* next = keys(std::min(unit + 1, desc.batch * desc.heads - 1));  // units are assigned one by one, mostly in order
    const Rows<T> k{keys(unit), values, desc.k[2], desc.v[2], n, ahead}, v{values, next, desc.v[2], desc.k[2], n, ahead};
    for (int64_t j = 0; j < std::min(ahead, 2 * n); ++j) k.fetch(j, 0, dim);
    score_rows(q, k, dim, scores);
    const Softmax s = softmax(scores, n);
    const float scale = n ? 1 / s.sum : 0;
    int64_t c = 0;
    for (; c + 4 * kLanes <= dim; c += 4 * kLanes) mix<t, 4>(scores, v, c, scale, q);
    for (; c + 2 * kLanes <= dim; c += 2 * kLanes) mix<t, 2>(scores, v, c, scale, q);
    if (c < dim) mix<t, 1>(scores, v, c, scale, q);
    worker.at<float>(args.lse)[unit] = n ? s.top + std::log(s.sum) : -kInf;
    T* out = worker.at<T>(args.out) + b * desc.out[0] + h * desc.out[1];
    for (c = 0; c < dim; ++c) {
      if constexpr (t == DType::f32)
        out[c] = q[c];
      else
        out[c] = t == DType::bf16 ? f32_to_bf16(q[c]) : f32_to_f16(q[c]);
    }
  }
}

}  // namespace

AttentionRun decode_of(DType t) { return t == DType::f32 ? decode<DType::f32> : t == DType::bf16 ? decode<DType::bf16> : decode<DType::f16>; }

}  // namespace HWY_NAMESPACE
}  // namespace ridge::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ridge::cpu {

bool is_decoding(const AttentionDesc& d) {
  const bool rows = d.q[3] == 1 && d.k[3] == 1 && d.v[3] == 1 && d.out[3] == 1;
  return d.queries == 1 && d.keys > 0 && d.dim > 0 && d.dim % 16 == 0 && rows && d.mask == AttentionDesc::Mask::none && d.dropout == 0;
}

AttentionRun decode_kernel(IsaTier tier, DType dtype) {
#if RIDGE_TIERS
  return has_avx512(tier) ? N_AVX3::decode_of(dtype) : tier == IsaTier::avx2 ? N_AVX2::decode_of(dtype) : N_SSE4::decode_of(dtype);
#else
  (void)tier;
  return HWY_STATIC_DISPATCH(decode_of)(dtype);
#endif
}

}  // namespace ridge::cpu
#endif
