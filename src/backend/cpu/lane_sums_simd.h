// Sums the lanes of four vectors together. Compiled per Highway target: include after hwy/highway.h, outside any namespace.
#if defined(RIDGE_LANE_SUMS_SIMD_H) == defined(HWY_TARGET_TOGGLE)
#ifdef RIDGE_LANE_SUMS_SIMD_H
#undef RIDGE_LANE_SUMS_SIMD_H
#else
#define RIDGE_LANE_SUMS_SIMD_H
#endif

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace ridge::cpu {
namespace HWY_NAMESPACE {
namespace lanes {
namespace hn = hwy::HWY_NAMESPACE;

using F = hn::ScalableTag<float>;
using V = hn::Vec<F>;
using V4 = hn::Vec<hn::Full128<float>>;

template <int kBlock>
HWY_INLINE V4 block_of(V v) {
#if HWY_TARGET == HWY_AVX3
  return V4{_mm512_extractf32x4_ps(v.raw, kBlock)};
#elif HWY_TARGET == HWY_AVX2
  return V4{_mm256_extractf128_ps(v.raw, kBlock)};
#else
  return v;
#endif
}

HWY_INLINE V4 sums4(V v0, V v1, V v2, V v3) {
  const F d;
  const hn::Repartition<double, F> dd;
  const auto s01 = hn::BitCast(dd, hn::Add(hn::InterleaveLower(d, v0, v1), hn::InterleaveUpper(d, v0, v1)));
  const auto s23 = hn::BitCast(dd, hn::Add(hn::InterleaveLower(d, v2, v3), hn::InterleaveUpper(d, v2, v3)));
  const V s = hn::Add(hn::BitCast(d, hn::InterleaveLower(dd, s01, s23)), hn::BitCast(d, hn::InterleaveUpper(dd, s01, s23)));
#if HWY_TARGET == HWY_AVX3
  return hn::Add(hn::Add(block_of<0>(s), block_of<1>(s)), hn::Add(block_of<2>(s), block_of<3>(s)));
#elif HWY_TARGET == HWY_AVX2
  return hn::Add(block_of<0>(s), block_of<1>(s));
#else
  return s;
#endif
}

}  // namespace lanes
}  // namespace HWY_NAMESPACE
}  // namespace ridge::cpu
HWY_AFTER_NAMESPACE();
#endif
