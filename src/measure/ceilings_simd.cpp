#include "base/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "measure/ceilings_simd.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "hwy/cache_control.h"
#include "measure/ceiling_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace ridge::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

// Enough independent chains to hide the latency of two or four pipes, but no more than there are registers.
constexpr int kChains = HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON ? 24 : 12;
constexpr int64_t kRounds = 8;

template <class T>
float fma(int64_t iterations) {
  const hn::ScalableTag<T> d;
  using Lanes = hn::Vec<decltype(d)>;
  const Lanes scale = hn::Set(d, T(0.999)), shift = hn::Set(d, T(1e-3));
  Lanes chain[kChains];
  for (int i = 0; i < kChains; ++i) chain[i] = hn::Set(d, T(i));
  for (int64_t n = 0; n < iterations * kRounds; ++n) {
#pragma GCC unroll 24
    for (int i = 0; i < kChains; ++i) chain[i] = hn::MulAdd(chain[i], scale, shift);
  }
  for (int i = 1; i < kChains; ++i) chain[0] = hn::Add(chain[0], chain[i]);
  return float(hn::GetLane(hn::SumOfLanes(d, chain[0])));
}

// 16-bit factors without native instructions: each is widened once and used for four rows of a product, as in a matmul without packing.
template <class T16>
float widened_fma(int64_t iterations) {
  const D d;
  const hn::Rebind<T16, D> d16;
  constexpr int kRows = 4, kColumns = kChains / kRows;
  alignas(64) static const uint16_t factors[64 * kColumns] = {};
  const V row[kRows] = {hn::Set(d, 0.25f), hn::Set(d, 0.5f), hn::Set(d, 0.75f), hn::Set(d, 1.0f)};
  V sum[kColumns][kRows];
  for (int c = 0; c < kColumns; ++c)
    for (int r = 0; r < kRows; ++r) sum[c][r] = hn::Zero(d);
  const int64_t lanes = int64_t(hn::Lanes(d));
  const auto* from = reinterpret_cast<const T16*>(factors);
  for (int64_t n = 0; n < iterations * kRounds; ++n) {
    asm volatile("" : "+r"(from));  // the pointer may have changed, so the loads stay in the loop
#pragma GCC unroll 6
    for (int c = 0; c < kColumns; ++c) {
      const V wide = hn::PromoteTo(d, hn::Load(d16, from + c * lanes));
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) sum[c][r] = hn::MulAdd(wide, row[r], sum[c][r]);
    }
  }
  for (int c = 0; c < kColumns; ++c)
    for (int r = 0; r < kRows; ++r) sum[0][0] = hn::Add(sum[0][0], sum[c][r]);
  return hn::GetLane(hn::SumOfLanes(d, sum[0][0]));
}

template <bool kStreaming>
HWY_INLINE void put(V v, float* to) {
  if constexpr (kStreaming)
    hn::Stream(v, D(), to);
  else
    hn::Store(v, D(), to);
}

// Ranges are multiples of kMoveGrain, so a step of four vectors in up to four streams leaves no remainder.
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

// Tile by tile: memory switches between reading and writing less often, which is faster on some machines.
constexpr int64_t kTile = kMoveGrain;

template <bool kStreaming>
void copy_tiles(float* to, const float* from, MoveShape shape) {
  alignas(64) float tile[kTile];
  for (int64_t at = 0; at < shape.count; at += kTile) {
    copy<1, false>(tile, from + at, {kTile, shape.ahead});
    copy<1, kStreaming>(to + at, tile, {kTile, 0});
  }
}

template <bool kStreaming>
void triad_tiles(float* to, const float* a, const float* b, MoveShape shape) {
  alignas(64) float tile[kTile];
  for (int64_t at = 0; at < shape.count; at += kTile) {
    triad<1, false>(tile, a + at, b + at, {kTile, shape.ahead});
    copy<1, kStreaming>(to + at, tile, {kTile, 0});
  }
}

template <int kStreams>
float read(const float* from, MoveShape shape, int64_t passes) {
  const D d;
  const int64_t lanes = int64_t(hn::Lanes(d)), part = shape.count / kStreams;
  V sum[8];
  for (V& s : sum) s = hn::Zero(d);
  for (int64_t pass = 0; pass < passes; ++pass)
    for (int64_t i = 0; i < part; i += 8 * lanes) {
#pragma GCC unroll 4
      for (int s = 0; s < kStreams; ++s) {
        const int64_t at = s * part + i;
        if (shape.ahead) hwy::Prefetch(from + at + shape.ahead), hwy::Prefetch(from + at + shape.ahead + 4 * lanes);
#pragma GCC unroll 8
        for (int k = 0; k < 8; ++k) sum[k] = hn::Add(sum[k], hn::Load(d, from + at + k * lanes));
      }
    }
  for (int k = 1; k < 8; ++k) sum[0] = hn::Add(sum[0], sum[k]);
  return hn::GetLane(hn::SumOfLanes(d, sum[0]));
}

}  // namespace

CeilingKernels make_table() {
  const double flops = 2.0 * kChains * kRounds * double(hn::Lanes(D()));
  CeilingKernels table{
      {{DType::f32, "registers", fma<float>, flops},
       {DType::bf16, "widened to f32", widened_fma<hwy::bfloat16_t>, flops},
       {DType::f16, "widened to f32", widened_fma<hwy::float16_t>, flops}},
      {{copy<1, false>, copy<1, true>}, {copy<2, false>, copy<2, true>}, {copy<4, false>, copy<4, true>}, {copy_tiles<false>, copy_tiles<true>}},
      {{triad<1, false>, triad<1, true>}, {triad<2, false>, triad<2, true>}, {triad<4, false>, triad<4, true>}, {triad_tiles<false>, triad_tiles<true>}},
      {read<1>, read<2>, read<4>}};
#if HWY_HAVE_FLOAT64
  table.fma.push_back({DType::f64, "registers", fma<double>, flops / 2});
#endif
  return table;
}

}  // namespace ridge::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "machine/features.h"
#if RIDGE_TIERS
#include "base/matrix_units.h"
#endif

namespace ridge {
namespace {

#if RIDGE_TIERS
constexpr int kDotChains = 24;
constexpr int64_t kDotRounds = 8;

// The dot product of bf16 pairs, which Highway's AVX3 target lacks.
__attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16"))) float bf16_dot(int64_t iterations) {
  const __m512bh ones = (__m512bh)_mm512_set1_epi16(0x3f80);
  __m512 chain[kDotChains];
  for (int i = 0; i < kDotChains; ++i) chain[i] = _mm512_setzero_ps();
  for (int64_t n = 0; n < iterations * kDotRounds; ++n) {
#pragma GCC unroll 24
    for (int i = 0; i < kDotChains; ++i) chain[i] = _mm512_dpbf16_ps(chain[i], ones, ones);
  }
  for (int i = 1; i < kDotChains; ++i) chain[0] = _mm512_add_ps(chain[0], chain[i]);
  return _mm512_cvtss_f32(chain[0]);
}

// Matrix units: four tiles of sums, each 16 x 16 after 32 steps along K.
constexpr int64_t kUnitRounds = 16;
float bf16_units(int64_t iterations) {
  using Units = HardwareUnits;
  TileForms forms;
  for (int tile = 0; tile < 8; ++tile) forms.rows[tile] = 16, forms.row_bytes[tile] = 64;
  alignas(64) uint16_t ones[16 * 32];
  alignas(64) float sums[16 * 16];
  for (uint16_t& one : ones) one = 0x3f80;
  const float* const operand = reinterpret_cast<const float*>(ones);
  Units::configure(forms);
  Units::zero<0>(), Units::zero<1>(), Units::zero<2>(), Units::zero<3>();
  Units::load<4>(operand, 64), Units::load<5>(operand, 64), Units::load<6>(operand, 64), Units::load<7>(operand, 64);
  for (int64_t n = 0; n < iterations * kUnitRounds; ++n) {
    Units::add_products<0, 4, 6>();
    Units::add_products<1, 4, 7>();
    Units::add_products<2, 5, 6>();
    Units::add_products<3, 5, 7>();
  }
  Units::store<0>(sums, 64);
  Units::release();
  return sums[0];
}
#endif

}  // namespace

const CeilingKernels& ceiling_kernels() {
  static const CeilingKernels chosen = [] {
#if RIDGE_TIERS
    CeilingKernels table = has_avx512(isa_tier())        ? N_AVX3::make_table()
                           : isa_tier() == IsaTier::avx2 ? N_AVX2::make_table()
                                                         : HWY_STATIC_DISPATCH(make_table)();
    if (has_bf16(isa_tier())) table.fma.push_back({DType::bf16, "dot product", bf16_dot, 2.0 * 32 * kDotChains * kDotRounds});
    if (isa_tier() == IsaTier::amx) table.fma.push_back({DType::bf16, "matrix units", bf16_units, 2.0 * 16 * 16 * 32 * 4 * kUnitRounds});
    return table;
#else
    return HWY_STATIC_DISPATCH(make_table)();
#endif
  }();
  return chosen;
}

}  // namespace ridge
#endif
