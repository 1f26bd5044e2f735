// Loads 16-bit numbers as f32. Compiled per Highway target: include after hwy/highway.h, outside any namespace.
#if defined(RIDGE_WIDEN_SIMD_H) == defined(HWY_TARGET_TOGGLE)
#ifdef RIDGE_WIDEN_SIMD_H
#undef RIDGE_WIDEN_SIMD_H
#else
#define RIDGE_WIDEN_SIMD_H
#endif

#include "base/half.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace ridge::cpu {
namespace HWY_NAMESPACE {
namespace wide {
namespace hn = hwy::HWY_NAMESPACE;

using F = hn::ScalableTag<float>;
using V = hn::Vec<F>;

template <class D>
HWY_INLINE hn::Vec<D> load_bf16(D d, const uint16_t* p) {
  const hn::Rebind<uint16_t, D> d16;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(hn::RebindToUnsigned<D>(), hn::LoadU(d16, p))));
}

template <class D>
HWY_INLINE hn::Vec<D> load_f16(D d, const uint16_t* p) {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  const hn::Rebind<hwy::float16_t, D> d16;
  return hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(p)));
#else
  HWY_ALIGN float part[hn::MaxLanes(D())];
  for (size_t i = 0; i < hn::Lanes(d); ++i) part[i] = f16_to_f32(p[i]);
  return hn::Load(d, part);
#endif
}

// Loads two vectors of consecutive numbers. A permute that can also zero words takes one instruction per vector instead of two.
HWY_INLINE void load_bf16(const uint16_t* p, V& first, V& second) {
#if HWY_TARGET == HWY_AVX3
  alignas(64) static constexpr uint16_t kFirst[32] = {0, 0, 0, 1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6, 0, 7, 0, 8, 0, 9, 0, 10, 0, 11, 0, 12, 0, 13, 0, 14, 0, 15};
  alignas(64) static constexpr uint16_t kSecond[32] = {0, 16, 0, 17, 0, 18, 0, 19, 0, 20, 0, 21, 0, 22, 0, 23,
                                                       0, 24, 0, 25, 0, 26, 0, 27, 0, 28, 0, 29, 0, 30, 0, 31};
  const __m512i both = _mm512_loadu_si512(p);
  first = V{_mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(0xaaaaaaaa, _mm512_load_si512(kFirst), both))};
  second = V{_mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(0xaaaaaaaa, _mm512_load_si512(kSecond), both))};
#else
  const F d;
  first = load_bf16(d, p), second = load_bf16(d, p + hn::Lanes(d));
#endif
}

}  // namespace wide
}  // namespace HWY_NAMESPACE
}  // namespace ridge::cpu
HWY_AFTER_NAMESPACE();
#endif
