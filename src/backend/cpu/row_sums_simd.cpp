#include "backend/cpu/row_sums.h"
#include "base/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/row_sums_simd.cpp"
#include "hwy/foreach_target.h"

#include <cstring>

#include "backend/cpu/widen_simd.h"
#include "base/error.h"
#include "base/half.h"
#include "hwy/highway.h"
#include "machine/features.h"

HWY_BEFORE_NAMESPACE();
namespace ridge::cpu {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

using F = hn::ScalableTag<float>;
using Vec = hn::Vec<F>;
constexpr int64_t kLanes = hn::MaxLanes(F());

template <DType t>
using Stored = std::conditional_t<t == DType::f32, float, uint16_t>;

HWY_INLINE Vec load(const float* p) { return hn::LoadU(F(), p); }
template <DType t>
HWY_INLINE Vec load(const uint16_t* p) {
  return t == DType::bf16 ? wide::load_bf16(F(), p) : wide::load_f16(F(), p);
}

template <DType t>
HWY_INLINE void store_scalar(float x, void* out, int64_t c, bool wide) {
  if (t == DType::f32 || wide)
    static_cast<float*>(out)[c] = x;
  else
    static_cast<uint16_t*>(out)[c] = t == DType::bf16 ? f32_to_bf16(x) : f32_to_f16(x);
}

template <DType t>
HWY_INLINE void store(Vec v, void* out, int64_t c, bool wide) {
  if (t == DType::f32 || wide) return hn::StoreU(v, F(), static_cast<float*>(out) + c);
  HWY_ALIGN float part[kLanes];  // one conversion per sum: the scalar function is fast enough, and it is the reference
  hn::Store(v, F(), part);
  for (int64_t i = 0; i < kLanes; ++i) store_scalar<t>(part[i], out, c + i, false);
}

// N vectors of columns from c on, with their sums in registers over all rows.
template <DType t, int N>
HWY_INLINE void sum_block(const Stored<t>* rows, int64_t stride, const int64_t* which, int64_t count, int64_t c, void* out, bool wide) {
  Vec acc[N];
  for (int i = 0; i < N; ++i) acc[i] = hn::Zero(F());
  for (int64_t k = 0; k < count; ++k) {
    const Stored<t>* p = rows + which[k] * stride + c;
    if (k + 1 < count) {  // rows are scattered, so the hardware cannot predict the next one
      const auto* next = reinterpret_cast<const char*>(rows + which[k + 1] * stride + c);
      for (size_t line = 0; line < N * kLanes * sizeof(Stored<t>); line += 64) __builtin_prefetch(next + line);
    }
    for (int i = 0; i < N; ++i) {
      if constexpr (t == DType::f32)
        acc[i] = hn::Add(acc[i], load(p + i * kLanes));
      else
        acc[i] = hn::Add(acc[i], load<t>(p + i * kLanes));
    }
  }
  for (int i = 0; i < N; ++i) store<t>(acc[i], out, c + i * kLanes, wide);
}

template <DType t>
void sum(const void* data, int64_t stride, const int64_t* which, int64_t count, int64_t columns, void* out, bool wide) {
  constexpr int kWide = HWY_TARGET == HWY_AVX3 ? 16 : 8;
  const auto* rows = static_cast<const Stored<t>*>(data);
  int64_t c = 0;
  for (; c + kWide * kLanes <= columns; c += kWide * kLanes) sum_block<t, kWide>(rows, stride, which, count, c, out, wide);
  for (; c + 4 * kLanes <= columns; c += 4 * kLanes) sum_block<t, 4>(rows, stride, which, count, c, out, wide);
  for (; c + kLanes <= columns; c += kLanes) sum_block<t, 1>(rows, stride, which, count, c, out, wide);
  for (; c < columns; ++c) {
    float acc = 0;
    for (int64_t k = 0; k < count; ++k) {
      const Stored<t> x = rows[which[k] * stride + c];
      if constexpr (t == DType::f32)
        acc += x;
      else
        acc += t == DType::bf16 ? bf16_to_f32(x) : f16_to_f32(x);
    }
    store_scalar<t>(acc, out, c, wide);
  }
}

}  // namespace

SumRows find_sum_rows(DType dtype) {
  if (dtype == DType::f32) return sum<DType::f32>;
  return dtype == DType::bf16 ? sum<DType::bf16> : sum<DType::f16>;
}

}  // namespace HWY_NAMESPACE
}  // namespace ridge::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ridge::cpu {

SumRows sum_rows(DType dtype) {
#if RIDGE_TIERS
  const IsaTier tier = isa_tier();
  return has_avx512(tier) ? N_AVX3::find_sum_rows(dtype) : tier == IsaTier::avx2 ? N_AVX2::find_sum_rows(dtype) : N_SSE4::find_sum_rows(dtype);
#else
  return HWY_STATIC_DISPATCH(find_sum_rows)(dtype);
#endif
}

}  // namespace ridge::cpu
#endif
