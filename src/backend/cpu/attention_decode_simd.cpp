// Attention of one query: memory is all that it costs, so every key and value is read once, in order.
#include "backend/cpu/attention_kernels.h"
#include "backend/cpu/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/attention_decode_simd.cpp"
#include "hwy/foreach_target.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/cpu/lane_sums_simd.h"
#include "backend/cpu/math_simd.h"
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
  if constexpr (t == DType::f32) {
    return hn::LoadU(d, p);
  } else if constexpr (t == DType::bf16) {
    const hn::Rebind<uint16_t, F> d16;
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(hn::RebindToUnsigned<F>(), hn::LoadU(d16, p))));
  } else {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
    const hn::Rebind<hwy::float16_t, F> dh;
    return hn::PromoteTo(d, hn::LoadU(dh, reinterpret_cast<const hwy::float16_t*>(p)));
#else
    alignas(64) float part[kLanes];
    for (int64_t i = 0; i < kLanes; ++i) part[i] = f16_to_f32(p[i]);
    return hn::Load(d, part);
#endif
  }
}

// While rows are read, those that come next are fetched: values behind keys, the keys of the next head behind values.
template <class T>
struct Rows {
  const T* data;
  int64_t stride;
  HWY_INLINE void fetch(int64_t first, int64_t n, int64_t dim) const {
    for (int64_t j = first; j < first + n; ++j)
      for (int64_t c = 0; c < dim; c += 64 / int64_t(sizeof(T))) __builtin_prefetch(data + j * stride + c);
  }
};

// scores[j] = q · keys[j]; what lies behind the last up to a multiple of 16 becomes -inf. N: vectors of features; 0: any number.
template <DType t, int N>
HWY_INLINE void score(const float* q, const Stored<t>* keys, int64_t stride, int64_t n, int64_t dim, float* scores, Rows<Stored<t>> next) {
  const F d;
  const hn::Full128<float> d4;
  Vec x[std::max(N, 1)];
#pragma GCC unroll 8
  for (int c = 0; c < N; ++c) x[c] = hn::LoadU(d, q + c * kLanes);
  for (int64_t j = 0; j < n; j += 4) {
    next.fetch(j, 4, N ? N * kLanes : dim);
    const Stored<t>* row[4];
    for (int i = 0; i < 4; ++i) row[i] = keys + std::min(j + i, n - 1) * stride;
    Vec sum[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
    if constexpr (N > 0) {
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i)
#pragma GCC unroll 8
        for (int c = 0; c < N; ++c) sum[i] = hn::MulAdd(x[c], load<t>(row[i] + c * kLanes), sum[i]);
    } else {
      for (int64_t c = 0; c < dim; c += kLanes) {
        const Vec part = hn::LoadU(d, q + c);
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) sum[i] = hn::MulAdd(part, load<t>(row[i] + c), sum[i]);
      }
    }
    hn::StoreU(lanes::sums4(sum[0], sum[1], sum[2], sum[3]), d4, scores + j);
  }
  for (int64_t j = n; j % 16; ++j) scores[j] = -kInf;
}

// Scores become weights; returns their sum and the largest score.
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

// out[c] = sum over j of weights[j] * values[j][c], N vectors of features at a time; even and odd keys are summed apart.
template <DType t, int N>
HWY_INLINE void mix(const float* weights, const Stored<t>* values, int64_t stride, int64_t n, float scale, float* out, Rows<Stored<t>> next) {
  const F d;
  Vec sum[2][N];
#pragma GCC unroll 4
  for (int i = 0; i < N; ++i) sum[0][i] = sum[1][i] = hn::Zero(d);
  int64_t j = 0;
  for (; j + 2 <= n; j += 2) {
    next.fetch(j, 2, N * kLanes);
#pragma GCC unroll 2
    for (int u = 0; u < 2; ++u) {
      const Vec w = hn::Set(d, weights[j + u]);
#pragma GCC unroll 4
      for (int i = 0; i < N; ++i) sum[u][i] = hn::MulAdd(w, load<t>(values + (j + u) * stride + i * kLanes), sum[u][i]);
    }
  }
  if (j < n) {
    const Vec w = hn::Set(d, weights[j]);
#pragma GCC unroll 4
    for (int i = 0; i < N; ++i) sum[0][i] = hn::MulAdd(w, load<t>(values + j * stride + i * kLanes), sum[0][i]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < N; ++i) hn::StoreU(hn::Mul(hn::Add(sum[0][i], sum[1][i]), hn::Set(d, scale)), d, out + i * kLanes);
}

// A unit is one (batch, head).
template <DType t>
void decode(const void* p, int64_t begin, int64_t end, Worker& worker) {
  using T = Stored<t>;
  const AttentionArgs& args = *static_cast<const AttentionArgs*>(p);
  const AttentionDesc& desc = args.desc;
  const int64_t dim = desc.dim, n = desc.has_length ? std::clamp<int64_t>(*worker.at<int64_t>(args.length), 0, desc.keys) : desc.keys;
  float* const q = reinterpret_cast<float*>(worker.scratch);  // later the result
  float* const scores = q + dim;
  const F d;
  const auto score_rows = dim == 2 * kLanes ? score<t, 2> : dim == 4 * kLanes ? score<t, 4> : dim == 8 * kLanes ? score<t, 8> : score<t, 0>;
  auto keys = [&](int64_t unit) { return worker.at<T>(args.k) + unit / desc.heads * desc.k[0] + unit % desc.heads / args.group * desc.k[1]; };
  for (int64_t unit = begin; unit < end; ++unit) {
    const int64_t b = unit / desc.heads, h = unit % desc.heads, kv = h / args.group;
    const T* from = worker.at<T>(args.q) + b * desc.q[0] + h * desc.q[1];
    const T* values = worker.at<T>(args.v) + b * desc.v[0] + kv * desc.v[1];
    for (int64_t c = 0; c < dim; c += kLanes) hn::StoreU(hn::Mul(load<t>(from + c), hn::Set(d, float(desc.scale))), d, q + c);
    score_rows(q, keys(unit), desc.k[2], n, dim, scores, {values, desc.v[2]});
    const Softmax s = softmax(scores, n);
    const T* next = keys(std::min(unit + 1, end - 1));
    const float scale = n ? 1 / s.sum : 0;
    int64_t c = 0;
    for (; c + 4 * kLanes <= dim; c += 4 * kLanes) mix<t, 4>(scores, values + c, desc.v[2], n, scale, q + c, {next + c, desc.k[2]});
    for (; c < dim; c += kLanes) mix<t, 1>(scores, values + c, desc.v[2], n, scale, q + c, {next + c, desc.k[2]});
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
#if HWY_ARCH_X86
  return has_avx512(tier) ? N_AVX3::decode_of(dtype) : tier == IsaTier::avx2 ? N_AVX2::decode_of(dtype) : N_SSE4::decode_of(dtype);
#else
  (void)tier;
  return HWY_STATIC_DISPATCH(decode_of)(dtype);
#endif
}

}  // namespace ridge::cpu
#endif
