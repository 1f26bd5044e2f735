#include "backend/cpu/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "machine/ceilings_simd.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "hwy/cache_control.h"
#include "machine/ceiling_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace ridge::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

// Enough independent chains to cover the latency of two or four pipes, and no more than there are registers.
constexpr int kChains = HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON ? 24 : 12;
constexpr int64_t kRounds = 8;

float fma(int64_t iterations) {
  const D d;
  const V scale = hn::Set(d, 0.999f), shift = hn::Set(d, 1e-3f);
  V chain[kChains];
  for (int i = 0; i < kChains; ++i) chain[i] = hn::Set(d, float(i));
  for (int64_t n = 0; n < iterations * kRounds; ++n) {
#pragma GCC unroll 24
    for (int i = 0; i < kChains; ++i) chain[i] = hn::MulAdd(chain[i], scale, shift);
  }
  for (int i = 1; i < kChains; ++i) chain[0] = hn::Add(chain[0], chain[i]);
  return hn::GetLane(hn::SumOfLanes(d, chain[0]));
}

template <bool kStreaming>
HWY_INLINE void put(V v, float* to) {
  if constexpr (kStreaming)
    hn::Stream(v, D(), to);
  else
    hn::Store(v, D(), to);
}

// Ranges are multiples of 4096 floats, so a step of four vectors and up to four streams leave no rest.
template <int kStreams, bool kStreaming>
void copy(float* to, const float* from, MoveShape shape) {
  const D d;
  const int64_t lanes = int64_t(hn::Lanes(d)), part = shape.count / kStreams;
  for (int64_t i = 0; i < part; i += 4 * lanes) {
#pragma GCC unroll 4
    for (int s = 0; s < kStreams; ++s) {
      const int64_t at = s * part + i;
      if (shape.ahead) hwy::Prefetch(from + at + shape.ahead);
      const V a = hn::Load(d, from + at), b = hn::Load(d, from + at + lanes), c = hn::Load(d, from + at + 2 * lanes), e = hn::Load(d, from + at + 3 * lanes);
      put<kStreaming>(a, to + at);
      put<kStreaming>(b, to + at + lanes);
      put<kStreaming>(c, to + at + 2 * lanes);
      put<kStreaming>(e, to + at + 3 * lanes);
    }
  }
  if (kStreaming) hwy::FlushStream();
}

template <int kStreams, bool kStreaming>
void triad(float* to, const float* a, const float* b, MoveShape shape) {
  const D d;
  const V scale = hn::Set(d, 0.5f);
  const int64_t lanes = int64_t(hn::Lanes(d)), part = shape.count / kStreams;
  for (int64_t i = 0; i < part; i += 4 * lanes) {
#pragma GCC unroll 4
    for (int s = 0; s < kStreams; ++s) {
      const int64_t at = s * part + i;
      if (shape.ahead) hwy::Prefetch(a + at + shape.ahead), hwy::Prefetch(b + at + shape.ahead);
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k) put<kStreaming>(hn::MulAdd(hn::Load(d, b + at + k * lanes), scale, hn::Load(d, a + at + k * lanes)), to + at + k * lanes);
    }
  }
  if (kStreaming) hwy::FlushStream();
}

template <int kStreams>
float read(const float* from, MoveShape shape) {
  const D d;
  const int64_t lanes = int64_t(hn::Lanes(d)), part = shape.count / kStreams;
  V sum[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
  for (int64_t i = 0; i < part; i += 4 * lanes) {
#pragma GCC unroll 4
    for (int s = 0; s < kStreams; ++s) {
      const int64_t at = s * part + i;
      if (shape.ahead) hwy::Prefetch(from + at + shape.ahead);
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k) sum[k] = hn::Add(sum[k], hn::Load(d, from + at + k * lanes));
    }
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(sum[0], sum[1]), hn::Add(sum[2], sum[3]))));
}

}  // namespace

CeilingKernels make_table() {
  return {fma,
          2.0 * kChains * kRounds * double(hn::Lanes(D())),
          {{copy<1, false>, copy<1, true>}, {copy<2, false>, copy<2, true>}, {copy<4, false>, copy<4, true>}},
          {{triad<1, false>, triad<1, true>}, {triad<2, false>, triad<2, true>}, {triad<4, false>, triad<4, true>}},
          {read<1>, read<2>, read<4>}};
}

}  // namespace ridge::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "machine/features.h"

namespace ridge {

const CeilingKernels& ceiling_kernels() {
  static const CeilingKernels chosen = [] {
#if defined(__x86_64__)
    if (isa_tier() == IsaTier::avx512) return N_AVX3::make_table();
    if (isa_tier() == IsaTier::avx2) return N_AVX2::make_table();
#endif
    return HWY_STATIC_DISPATCH(make_table)();
  }();
  return chosen;
}

}  // namespace ridge
#endif
