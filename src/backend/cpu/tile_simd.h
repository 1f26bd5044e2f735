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

// Rounds to bf16, to nearest even, with NaN made quiet; the result is in the upper half of each lane.
HWY_INLINE hwy::HWY_NAMESPACE::Vec<hwy::HWY_NAMESPACE::RebindToUnsigned<math::D>> bf16_bits(math::V v) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::RebindToUnsigned<math::D> du;
  auto u = hn::BitCast(du, v);
  auto odd = hn::And(hn::ShiftRight<16>(u), hn::Set(du, 1));
  auto rounded = hn::Add(u, hn::Add(odd, hn::Set(du, 0x7fff)));
  auto quiet = hn::Or(u, hn::Set(du, 0x400000));
  return hn::And(hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(v)), quiet, rounded), hn::Set(du, 0xffff0000));
}

// To 16 bits in memory.
HWY_INLINE void narrow_bf16(math::V v, uint16_t* p) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::Rebind<uint16_t, math::DI> d16;
  hn::StoreU(hn::DemoteTo(d16, hn::BitCast(math::DI(), hn::ShiftRight<16>(bf16_bits(v)))), d16, p);
}

// With the processor's conversion, which the tiers of has_bf16 have. Other tiers do not get here.
#if HWY_TARGET == HWY_AVX3
// Out of line: for denormals, which the conversion takes for zeros, and for the last lanes of a row.
[[maybe_unused]] HWY_NOINLINE void narrow_slowly(math::V v, uint16_t* p, int64_t live) {
  uint16_t part[16];
  narrow_bf16(v, part);
  std::memcpy(p, part, size_t(live) * 2);
}
[[maybe_unused]] HWY_NOINLINE math::V round_slowly(math::V v) { return hwy::HWY_NAMESPACE::BitCast(math::D(), bf16_bits(v)); }

// False if there are denormals.
HWY_INLINE bool convert_bf16(math::V v, __m256i& half) {
  const __m512i bits = _mm512_castps_si512(v.raw);
  const __mmask16 small =
      _mm512_testn_epi32_mask(bits, _mm512_set1_epi32(0x7f800000));  // by integers, as the mode of the thread may hide denormals from floats
  if (HWY_UNLIKELY(_mm512_mask_test_epi32_mask(small, bits, _mm512_set1_epi32(0x7fffff)) != 0)) return false;
  asm("vcvtneps2bf16 %1, %0" : "=v"(half) : "v"(v.raw));
  return true;
}
HWY_INLINE void narrow_native(math::V v, uint16_t* p) {
  if (__m256i half; HWY_LIKELY(convert_bf16(v, half)))
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), half);
  else
    narrow_slowly(v, p, 16);
}
HWY_INLINE math::V round_native(math::V v) {
  if (__m256i half; HWY_LIKELY(convert_bf16(v, half))) return math::V{_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16))};
  return round_slowly(v);
}
template <class Point>
HWY_INLINE void narrow_row_native(uint16_t* out, int64_t cols, const Point& point) {
  namespace hn = hwy::HWY_NAMESPACE;
  int64_t i = 0;
  for (; i + 16 <= cols; i += 16) narrow_native(point(i, [](const float* p) HWY_ATTR { return hn::LoadU(math::D(), p); }), out + i);
  if (i < cols) narrow_slowly(point(i, [&](const float* p) HWY_ATTR { return load_tail(math::D(), p, cols - i); }), out + i, cols - i);
}
constexpr bool kNarrows = true;
#else
template <class Point>
HWY_INLINE void narrow_row_native(uint16_t*, int64_t, const Point&) {}
constexpr bool kNarrows = false;
#endif

// NaN propagates.
HWY_INLINE math::V minimum(math::V a, math::V b) {
  namespace hn = hwy::HWY_NAMESPACE;
  return hn::IfThenElse(hn::IsNaN(a), a, math::at_most(a, b));
}
HWY_INLINE math::V maximum(math::V a, math::V b) {
  namespace hn = hwy::HWY_NAMESPACE;
  return hn::IfThenElse(hn::IsNaN(a), a, math::at_least(a, b));
}

using DU = hwy::HWY_NAMESPACE::RebindToUnsigned<math::D>;
using VU = hwy::HWY_NAMESPACE::Vec<DU>;

// high and low halves of a * b, lane by lane
HWY_INLINE void wide_mul(VU a, VU b, VU& high, VU& low) {
  namespace hn = hwy::HWY_NAMESPACE;
  const DU du;
  auto even = hn::MulEven(a, b);
  auto odd = hn::MulEven(hn::BitCast(du, hn::ShiftRight<32>(hn::BitCast(hn::Repartition<uint64_t, DU>(), a))),
                         hn::BitCast(du, hn::ShiftRight<32>(hn::BitCast(hn::Repartition<uint64_t, DU>(), b))));
  VU e = hn::BitCast(du, even), o = hn::BitCast(du, odd);
  low = hn::OddEven(hn::BitCast(du, hn::ShiftLeft<32>(odd)), e);
  high = hn::OddEven(o, hn::BitCast(du, hn::ShiftRight<32>(even)));
}

// The words of one Philox block per lane; c holds the block's number (low, high), the step and the stream.
HWY_INLINE void philox_rounds(VU k0, VU k1, VU (&c)[4]) {
  namespace hn = hwy::HWY_NAMESPACE;
  const DU du;
  for (int round = 0; round < 10; ++round) {
    VU h0, l0, h1, l1;
    wide_mul(c[0], hn::Set(du, 0xD2511F53u), h0, l0);
    wide_mul(c[2], hn::Set(du, 0xCD9E8D57u), h1, l1);
    c[0] = hn::Xor(hn::Xor(h1, c[1]), k0);
    c[2] = hn::Xor(hn::Xor(h0, c[3]), k1);
    c[1] = l1, c[3] = l0;
    k0 = hn::Add(k0, hn::Set(du, 0x9E3779B9u)), k1 = hn::Add(k1, hn::Set(du, 0xBB67AE85u));
  }
}

HWY_INLINE math::V uniform_of(VU word) {
  namespace hn = hwy::HWY_NAMESPACE;
  return hn::Mul(hn::ConvertTo(math::D(), hn::BitCast(math::DI(), hn::ShiftRight<8>(word))), math::set(0x1p-24f));
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ridge::cpu
HWY_AFTER_NAMESPACE();
#endif
