// What the handler files of the tile interpreter share: tails that touch no byte beyond the last element.
#if defined(RIDGE_TILE_SIMD_H) == defined(HWY_TARGET_TOGGLE)
#ifdef RIDGE_TILE_SIMD_H
#undef RIDGE_TILE_SIMD_H
#else
#define RIDGE_TILE_SIMD_H
#endif

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "backend/cpu/tile_handlers.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace ridge::cpu {
namespace HWY_NAMESPACE {
namespace {

// The first `live` lanes, the rest zero.
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

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ridge::cpu
HWY_AFTER_NAMESPACE();
#endif
