// Shared by the tile interpreter's handler files: loads and stores of tails, which touch no byte beyond the last element.
#if defined(RIDGE_TILE_SIMD_H) == defined(HWY_TARGET_TOGGLE)
#ifdef RIDGE_TILE_SIMD_H
#undef RIDGE_TILE_SIMD_H
#else
#define RIDGE_TILE_SIMD_H
#endif

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "backend/cpu/math_simd.h"
#include "backend/cpu/tile_handlers.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace ridge::cpu {
namespace HWY_NAMESPACE {
namespace {

// Loads the first `live` lanes; the rest are zero.
template <class D, class T = hwy::HWY_NAMESPACE::TFromD<D>>
HWY_INLINE hwy::HWY_NAMESPACE::Vec<D> load_tail(D d, const T* p, int64_t live) {
  namespace hn = hwy::HWY_NAMESPACE;
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2
  return hn::MaskedLoad(hn::FirstN(d, size_t(live)), d, p);
#else
  HWY_ALIGN T part[hn::MaxLanes(D())] = {};
  std::memcpy(part, p, size_t(live) * sizeof(T));
  return hn::Load(d, part);
#endif
}

template <class D, class T = hwy::HWY_NAMESPACE::TFromD<D>>
HWY_INLINE void store_tail(hwy::HWY_NAMESPACE::Vec<D> v, D d, T* p, int64_t live) {
  namespace hn = hwy::HWY_NAMESPACE;
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2
  hn::BlendedStore(v, hn::FirstN(d, size_t(live)), d, p);
#else
  HWY_ALIGN T part[hn::MaxLanes(D())];
  hn::Store(v, d, part);
  std::memcpy(p, part, size_t(live) * sizeof(T));
#endif
}

HWY_INLINE bool is_aligned(const float* p) {
  return reinterpret_cast<uintptr_t>(p) % (hwy::HWY_NAMESPACE::Lanes(hwy::HWY_NAMESPACE::ScalableTag<float>()) * 4) == 0;
}

// NaN propagates.
HWY_INLINE math::V minimum(math::V a, math::V b) {
  namespace hn = hwy::HWY_NAMESPACE;
  return hn::IfThenElse(hn::IsNaN(a), a, math::at_most(a, b));
}
HWY_INLINE math::V maximum(math::V a, math::V b) {
  namespace hn = hwy::HWY_NAMESPACE;
  return hn::IfThenElse(hn::IsNaN(a), a, math::at_least(a, b));
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ridge::cpu
HWY_AFTER_NAMESPACE();
#endif
