#include <type_traits>

#include "backend/cpu/matmul_kernels.h"
#include "base/half.h"
#include "base/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/matmul_simd.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "backend/cpu/lane_sums_simd.h"
#include "backend/cpu/widen_simd.h"

HWY_BEFORE_NAMESPACE();
namespace ridge::cpu {
namespace HWY_NAMESPACE {
namespace {  // other kernel files use the same target namespaces
namespace hn = hwy::HWY_NAMESPACE;

using F = hn::ScalableTag<float>;
using V = hn::Vec<F>;
constexpr int kLanes = HWY_MAX_BYTES / 4;
constexpr int kBlocks = kLanes / 4;  // 128-bit blocks in a vector

#if HWY_TARGET == HWY_AVX3
constexpr int kRows = 8, kVectors = 3;  // 24 sums + 3 of B + 1 of A in 32 registers; 14 by 2 needs more loads per product
constexpr int kNarrowRows = 12;
#elif HWY_TARGET == HWY_NEON
constexpr int kRows = 10, kVectors = 2;  // 20 sums; GCC loads A's ten scalars in advance
constexpr int kNarrowRows = kRows;
#else
constexpr int kRows = 6, kVectors = 2;  // 12 sums + 2 + 1 in 16 registers
constexpr int kNarrowRows = kRows;
#endif

// Loads lanes [0, n), zeros above; never reads past n.
HWY_INLINE V load_first(F d, const float* p, size_t n) {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  return hn::MaskedLoad(hn::FirstN(d, n), d, p);
#else
  alignas(64) float tmp[kLanes] = {};
  for (size_t i = 0; i < n; ++i) tmp[i] = p[i];
  return hn::Load(d, tmp);
#endif
}

// Writes lanes [0, n) and does not touch the rest, not even to rewrite it, because it may belong to another thread.
HWY_INLINE void store_first(V v, F d, float* p, size_t n) {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  hn::BlendedStore(v, hn::FirstN(d, n), d, p);
#else
  alignas(64) float tmp[kLanes];
  hn::Store(v, d, tmp);
  for (size_t i = 0; i < n; ++i) p[i] = tmp[i];
#endif
}

// Sums products over all of k, two steps per iteration: if another thread shares the core's decoders, loop overhead costs as much as multiplications.
template <int R, int N, bool kPacked, bool kFetch>
HWY_INLINE const float* add_stretch(const TileArgs& t, const float* from, const float* HWY_RESTRICT b, V (&sum)[R][N]) {
  const F d;
  const int64_t b_k = t.b_k, a_k = t.a_k, a_row = t.a_row;
  // Three rows share a pointer: base, base + a_row and base + 2 * a_row are addressing modes.
  constexpr int kPointers = kPacked ? 1 : (R + 2) / 3;
  const float* HWY_RESTRICT a[kPointers];
#pragma GCC unroll 16
  for (int g = 0; g < kPointers; ++g) a[g] = from + 3 * g * a_row;
  const auto add_product = [&](int64_t offset) HWY_ATTR __attribute__((always_inline)) {
    V bv[N];
#pragma GCC unroll 4
    for (int v = 0; v < N; ++v) bv[v] = hn::LoadU(d, b + v * kLanes);
    if constexpr (kFetch) {
      constexpr int64_t kAhead = 12;
#pragma GCC unroll 4
      for (int v = 0; v < N * kLanes; v += 16) __builtin_prefetch(b + kAhead * b_k + v);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const V av = hn::Set(d, kPacked ? a[0][offset + r] : a[r / 3][(r % 3) * a_row + offset]);
#pragma GCC unroll 4
      for (int v = 0; v < N; ++v) sum[r][v] = hn::MulAdd(av, bv[v], sum[r][v]);
    }
    b += b_k;
  };
  const auto pass = [&](int64_t by) HWY_ATTR __attribute__((always_inline)) {
#pragma GCC unroll 16
    for (int g = 0; g < kPointers; ++g) a[g] += by;
  };
  int64_t k = t.k;
  if (kPacked || a_k == 1) {
    for (; k >= 2; k -= 2) {
      add_product(0);
      add_product(kPacked ? a_k : 1);
      pass(kPacked ? 2 * a_k : 2);
    }
  }
  for (; k > 0; --k) {
    add_product(0);
    pass(a_k);
  }
  return b;
}

template <int R, int N, bool kPacked, bool kFetch>
HWY_INLINE void add_products(const TileArgs& t, V (&sum)[R][N]) {
  const float* b = t.b;
  if (!t.stretch_at)
    add_stretch<R, N, kPacked, kFetch>(t, t.a, b, sum);
  else
    for (int64_t i = 0; i < t.stretches; ++i) b = add_stretch<R, N, kPacked, kFetch>(t, t.a + t.stretch_at[i], b, sum);
}

template <int R, int N, bool kPacked>
void tile(const TileArgs& t) {
  const F d;
  V sum[R][N];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < N; ++v) sum[r][v] = hn::Zero(d);
  if (t.k * t.stretches >= 256) {  // prefetch C's lines while the sums are computed
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < N * kLanes; v += 16) __builtin_prefetch(t.c + r * t.c_row + v, 1);
  }
  // Rows of a B that is read in place are too far apart for the hardware prefetcher.
  if (t.b_k > N * kLanes)
    add_products<R, N, kPacked, true>(t, sum);
  else
    add_products<R, N, kPacked, false>(t, sum);
  float* c = t.c;
  if (t.cols == N * kLanes) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < N; ++v) {
        float* p = c + r * t.c_row + v * kLanes;
        if (t.add) sum[r][v] = hn::Add(hn::LoadU(d, p), sum[r][v]);
        hn::StoreU(sum[r][v], d, p);
      }
    }
  } else {
    const size_t last = size_t(t.cols - (N - 1) * kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < N; ++v) {
        float* p = c + r * t.c_row + v * kLanes;
        const size_t n = v == N - 1 ? last : size_t(kLanes);
        if (t.add) sum[r][v] = hn::Add(load_first(d, p, n), sum[r][v]);
        store_first(sum[r][v], d, p, n);
      }
    }
  }
}

// ---- conversion

template <class D>
HWY_INLINE hn::Vec<D> load_f32(D d, const float* p) {
  return hn::LoadU(d, p);
}
struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};
struct Byte {
  uint8_t value;
};
HWY_INLINE float to_f32(float x) { return x; }
HWY_INLINE float to_f32(Byte x) { return float(x.value); }
HWY_INLINE float to_f32(Bf16 x) { return bf16_to_f32(x.bits); }
HWY_INLINE float to_f32(F16 x) { return f16_to_f32(x.bits); }

template <class D>
HWY_INLINE hn::Vec<D> load_f32(D d, const Bf16* p) {
  return wide::load_bf16(d, &p->bits);
}
template <class D>
HWY_INLINE hn::Vec<D> load_f32(D d, const F16* p) {
  return wide::load_f16(d, &p->bits);
}

template <class D>
HWY_INLINE hn::Vec<D> load_f32(D d, const Byte* p) {
  const hn::Rebind<uint8_t, D> d8;
  return hn::ConvertTo(d, hn::PromoteTo(hn::Rebind<int32_t, D>(), hn::LoadU(d8, &p->value)));
}

// ---- packing

template <int kBlock = 0>
HWY_INLINE void store_blocks(V v, float* dst, int64_t step) {
  const hn::Full128<float> d4;
  hn::StoreU(lanes::block_of<kBlock>(v), d4, dst + kBlock * step);
  if constexpr (kBlock + 1 < kBlocks) store_blocks<kBlock + 1>(v, dst, step);
}

// Four columns with contiguous k: transposed in registers, written as [k][width].
template <class T>
HWY_INLINE void transpose4(const T* s0, const T* s1, const T* s2, const T* s3, int64_t depth, float* dst, int64_t width) {
  const F d;
  const hn::Repartition<double, F> dd;
  int64_t k = 0;
  for (; k + kLanes <= depth; k += kLanes) {
    const V r0 = load_f32(d, s0 + k), r1 = load_f32(d, s1 + k), r2 = load_f32(d, s2 + k), r3 = load_f32(d, s3 + k);
    const auto l01 = hn::BitCast(dd, hn::InterleaveLower(d, r0, r1)), u01 = hn::BitCast(dd, hn::InterleaveUpper(d, r0, r1));
    const auto l23 = hn::BitCast(dd, hn::InterleaveLower(d, r2, r3)), u23 = hn::BitCast(dd, hn::InterleaveUpper(d, r2, r3));
    float* p = dst + k * width;
    store_blocks(hn::BitCast(d, hn::InterleaveLower(dd, l01, l23)), p, 4 * width);
    store_blocks(hn::BitCast(d, hn::InterleaveUpper(dd, l01, l23)), p + width, 4 * width);
    store_blocks(hn::BitCast(d, hn::InterleaveLower(dd, u01, u23)), p + 2 * width, 4 * width);
    store_blocks(hn::BitCast(d, hn::InterleaveUpper(dd, u01, u23)), p + 3 * width, 4 * width);
  }
  for (; k < depth; ++k) {
    float* p = dst + k * width;
    p[0] = to_f32(s0[k]), p[1] = to_f32(s1[k]), p[2] = to_f32(s2[k]), p[3] = to_f32(s3[k]);
  }
}

template <class T>
HWY_NOINLINE void pack_transposed(const T* src, const PackArgs& p) {
  const auto column = [&](int64_t i) { return src + p.column(p.first_column + i); };
  int64_t i = 0;
  for (; i + 4 <= p.live; i += 4) transpose4(column(i), column(i + 1), column(i + 2), column(i + 3), p.depth, p.dst + i, p.width);
  if (i < p.live) {  // an overlapping last group writes the same values again
    i = p.live - 4;
    transpose4(column(i), column(i + 1), column(i + 2), column(i + 3), p.depth, p.dst + i, p.width);
  }
}

// Rows of whole vectors.
template <class T, int N>
HWY_NOINLINE void pack_rows(const T* src, int64_t k_stride, const PackArgs& p) {
  const F d;
  float* dst = p.dst;
  for (int64_t k = 0; k < p.depth; ++k, src += k_stride, dst += N * kLanes) {
#pragma GCC unroll 4
    for (int v = 0; v < N; ++v) hn::StoreU(load_f32(d, src + v * kLanes), d, dst + v * kLanes);
  }
}

// Rows of four or more columns, in groups of four; the last group may overlap the previous one.
template <class T>
HWY_NOINLINE void pack_quads(const T* src, const PackArgs& p) {
  const hn::Full128<float> d4;
  const int64_t last = p.live - 4;
  for (int64_t k = 0; k < p.depth; ++k) {
    const T* s = src + p.k(p.first_k + k);
    float* dst = p.dst + k * p.width;
    for (int64_t i = 0; i < last; i += 4) hn::StoreU(load_f32(d4, s + i), d4, dst + i);
    hn::StoreU(load_f32(d4, s + last), d4, dst + last);
  }
}

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
// Rows of at most one vector: each store overhangs into the next row, which is written after it.
HWY_NOINLINE void pack_narrow(const float* src, int64_t k_stride, const PackArgs& p) {
  const F d;
  const auto mask = hn::FirstN(d, size_t(p.live));
  float* dst = p.dst;
  float* const end = p.dst + p.depth * p.width;
  int64_t k = p.depth;
  for (; k > 0 && end - dst >= kLanes; --k, src += k_stride, dst += p.width) hn::StoreU(hn::MaskedLoad(mask, d, src), d, dst);
  for (; k > 0; --k, src += k_stride, dst += p.width) hn::BlendedStore(hn::MaskedLoad(mask, d, src), mask, d, dst);
}
#endif

template <class T>
HWY_NOINLINE void pack_any(const T* src, const PackArgs& p) {
  for (int64_t k = 0; k < p.depth; ++k) {
    const T* s = src + p.k(p.first_k + k);
    for (int64_t i = 0; i < p.live; ++i) p.dst[k * p.width + i] = to_f32(s[p.column(p.first_column + i)]);
  }
}

template <class T>
void pack(const PackArgs& p) {
  const T* src = static_cast<const T*>(p.src);
  if (p.live < p.width) {
    for (int64_t k = 0; k < p.depth; ++k)
      for (int64_t i = p.live; i < p.width; ++i) p.dst[k * p.width + i] = 0;
  }
  const bool adjacent = p.column.regular() && p.column.stride == 1;
  if (p.live < 4 || (!adjacent && !(p.k.regular() && p.k.stride == 1))) return pack_any(src, p);
  if (!adjacent) return pack_transposed(src + p.first_k, p);
  if (p.k.regular() && p.live == p.width) {
    const T* first = src + p.first_column + p.first_k * p.k.stride;
    if (p.width == 3 * kLanes) return pack_rows<T, 3>(first, p.k.stride, p);
    if (p.width == 2 * kLanes) return pack_rows<T, 2>(first, p.k.stride, p);
    if (p.width == kLanes) return pack_rows<T, 1>(first, p.k.stride, p);
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
    if constexpr (std::is_same_v<T, float>) {
      if (p.width < kLanes) return pack_narrow(first, p.k.stride, p);
    }
#endif
  }
  pack_quads(src + p.first_column, p);
}

template <class T>
void widen(const void* src, float* HWY_RESTRICT dst, int64_t n) {
  const F d;
  const T* s = static_cast<const T*>(src);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) hn::StoreU(load_f32(d, s + i), d, dst + i);
  for (; i < n; ++i) dst[i] = to_f32(s[i]);
}

// ---- few rows

// Columns [0, N * kLanes) in registers; kSets independent sums hide the latency of the multiply-add.
template <int R, int N, int kSets>
HWY_INLINE void small_block(const SmallArgs& s, int64_t column, size_t last) {
  const F d;
  V sum[kSets][R][N];
#pragma GCC unroll 8
  for (int u = 0; u < kSets; ++u)
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < N; ++v) sum[u][r][v] = hn::Zero(d);
  const float* b = static_cast<const float*>(s.b) + column;
  int64_t k = 0;
  const bool whole = last == size_t(kLanes);
  for (; k + kSets <= s.k; k += kSets) {
#pragma GCC unroll 8
    for (int u = 0; u < kSets; ++u) {
      const float* row = b + (k + u) * s.b_stride;
#pragma GCC unroll 8
      for (int v = 0; v < N; ++v) {
        const V bv = (v < N - 1 || whole) ? hn::LoadU(d, row + v * kLanes) : load_first(d, row + v * kLanes, last);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) sum[u][r][v] = hn::MulAdd(hn::Set(d, s.a[r * s.a_row + k + u]), bv, sum[u][r][v]);
      }
    }
  }
  for (; k < s.k; ++k) {
    const float* row = b + k * s.b_stride;
#pragma GCC unroll 8
    for (int v = 0; v < N; ++v) {
      const V bv = (v < N - 1 || whole) ? hn::LoadU(d, row + v * kLanes) : load_first(d, row + v * kLanes, last);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) sum[0][r][v] = hn::MulAdd(hn::Set(d, s.a[r * s.a_row + k]), bv, sum[0][r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < N; ++v) {
#pragma GCC unroll 8
      for (int u = 1; u < kSets; ++u) sum[0][r][v] = hn::Add(sum[0][r][v], sum[u][r][v]);
      float* p = s.c + r * s.c_row + column + v * kLanes;
      const size_t n = v == N - 1 ? last : size_t(kLanes);
      if (s.add) sum[0][r][v] = hn::Add(load_first(d, p, n), sum[0][r][v]);
      store_first(sum[0][r][v], d, p, n);
    }
  }
}

// Adds kDepth rows of B, times R rows of A, to C.
template <int R, int kDepth>
HWY_INLINE void add_rows(const SmallArgs& s, int64_t k, const float* HWY_RESTRICT a, float* HWY_RESTRICT c) {
  const F d;
  V av[R][kDepth];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int u = 0; u < kDepth; ++u) av[r][u] = hn::Set(d, a[r * s.a_row + k + u]);
  const float* HWY_RESTRICT b = static_cast<const float*>(s.b) + k * s.b_stride;
  int64_t j = 0;
  for (; j + kLanes <= s.cols; j += kLanes) {
    V sum[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) sum[r] = hn::LoadU(d, c + r * s.c_row + j);
#pragma GCC unroll 8
    for (int u = 0; u < kDepth; ++u) {
      const V bv = hn::LoadU(d, b + u * s.b_stride + j);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) sum[r] = hn::MulAdd(av[r][u], bv, sum[r]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) hn::StoreU(sum[r], d, c + r * s.c_row + j);
  }
  if (j == s.cols) return;
  const size_t rest = size_t(s.cols - j);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    V sum = load_first(d, c + r * s.c_row + j, rest);
#pragma GCC unroll 8
    for (int u = 0; u < kDepth; ++u) sum = hn::MulAdd(av[r][u], load_first(d, b + u * s.b_stride + j, rest), sum);
    store_first(sum, d, c + r * s.c_row + j, rest);
  }
}

template <int R>
HWY_NOINLINE void add_depth(const SmallArgs& s, int64_t k, int64_t depth, const float* a, float* c) {
  constexpr int kDepth = R == 1 ? 8 : 4;
  int64_t i = 0;
  for (; i + kDepth <= depth; i += kDepth) add_rows<R, kDepth>(s, k + i, a, c);
  for (; i < depth; ++i) add_rows<R, 1>(s, k + i, a, c);
}

// Wide products stream whole rows of B, eight at a time, and keep their sums in C.
HWY_NOINLINE void small_stream(const SmallArgs& s) {
  for (int64_t r = 0; r < s.rows && !s.add; ++r) __builtin_memset(s.c + r * s.c_row, 0, size_t(s.cols) * 4);
  for (int64_t k = 0; k < s.k; k += 8) {
    const int64_t depth = s.k - k < 8 ? s.k - k : 8;
    int64_t r = 0;
    for (; r + 4 <= s.rows; r += 4) add_depth<4>(s, k, depth, s.a + r * s.a_row, s.c + r * s.c_row);
    const float* a = s.a + r * s.a_row;
    float* c = s.c + r * s.c_row;
    if (s.rows - r == 3) add_depth<3>(s, k, depth, a, c);
    if (s.rows - r == 2) add_depth<2>(s, k, depth, a, c);
    if (s.rows - r == 1) add_depth<1>(s, k, depth, a, c);
  }
}

constexpr int kBlockVectors = 4;  // per register block

template <int R>
HWY_NOINLINE void small_registers(const SmallArgs& s) {
  constexpr int kWide = HWY_TARGET == HWY_AVX3 || R <= 2 ? kBlockVectors : kBlockVectors / 2;
  int64_t j = 0;
  for (; j + kWide * kLanes <= s.cols; j += kWide * kLanes) small_block<R, kWide, (R == 1 ? 2 : 1)>(s, j, kLanes);
  for (; j < s.cols; j += kLanes) small_block<R, 1, (R == 1 ? 4 : 2)>(s, j, size_t(s.cols - j < kLanes ? s.cols - j : kLanes));
}

void by_row(const SmallArgs& s) {
  if (s.cols > 2 * kBlockVectors * kLanes) return small_stream(s);
  if (s.rows == 1) return small_registers<1>(s);
  SmallArgs g = s;
  for (; g.rows >= 4; g.rows -= 4, g.a += 4 * s.a_row, g.c += 4 * s.c_row) small_registers<4>(g);
  if (g.rows == 3) small_registers<3>(g);
  if (g.rows == 2) small_registers<2>(g);
  if (g.rows == 1) small_registers<1>(g);
}

HWY_INLINE V load_first_f32(F d, const float* p, size_t n) { return load_first(d, p, n); }
template <class T>
HWY_INLINE V load_first_f32(F d, const T* p, size_t n) {
  alignas(64) float tmp[kLanes] = {};
  for (size_t i = 0; i < n; ++i) tmp[i] = to_f32(p[i]);
  return hn::Load(d, tmp);
}

template <class T>
HWY_INLINE void load_two_f32(const T* p, V& first, V& second) {
  const F d;
  if constexpr (std::is_same_v<T, Bf16>)
    wide::load_bf16(reinterpret_cast<const uint16_t*>(p), first, second);
  else
    first = load_f32(d, p), second = load_f32(d, p + kLanes);
}

template <int N, int kCache, class T>
HWY_INLINE void fetch(const T* p) {
#pragma GCC unroll 8
  for (int i = 0; i < N; ++i) __builtin_prefetch(p + i * (64 / sizeof(T)), 0, kCache);
}

// R rows times columns with contiguous k. Four columns are read together, so the hardware prefetcher does not recognise a sequential read; the next columns are
// prefetched explicitly, unless columns are so long that the data would be evicted before use. 16-bit data is processed faster than L1 can be filled, so it is
// prefetched into L2.
template <int R, class T>
HWY_NOINLINE void dots(const SmallArgs& s) {
  const F d;
  const hn::Full128<float> d4;
  constexpr int kLine = 64 / sizeof(T), kAhead = 16384 / sizeof(T), kCache = sizeof(T) == 2 ? 2 : 3;
  constexpr int kLines = 8 * kLanes < kLine ? 1 : 8 * kLanes / kLine;  // for all four columns, two vectors of each
  const int64_t ahead = s.k * 3 > kAhead ? s.k * 3 : kAhead;           // the last of the next four columns starts this far ahead
  const bool in_order = s.b_stride == s.k && ahead <= 8 * kAhead && s.cols * s.k > 2 * ahead;
  const int64_t whole = s.k / kLanes * kLanes;
  const size_t rest = size_t(s.k - whole);
  for (int64_t j = 0; j < s.cols; j += 4) {
    const int64_t live = s.cols - j < 4 ? s.cols - j : 4;
    const T* b[4];
    for (int i = 0; i < 4; ++i) b[i] = static_cast<const T*>(s.b) + (j + (i < live ? i : 0)) * s.b_stride;
    V sum[R][4];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) sum[r][i] = hn::Zero(d);
    int64_t k = 0;
    if constexpr (R == 1 && sizeof(T) == 2)
      for (; k + 2 * kLanes <= whole; k += 2 * kLanes) {
        if (in_order) fetch<kLines, kCache>(b[0] + ahead + 4 * k);
        const V a0 = hn::LoadU(d, s.a + k), a1 = hn::LoadU(d, s.a + k + kLanes);
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
          V b0, b1;
          load_two_f32(b[i] + k, b0, b1);
          sum[0][i] = hn::MulAdd(a1, b1, hn::MulAdd(a0, b0, sum[0][i]));
        }
      }
    for (; k < whole; k += kLanes) {
      V av[R];
      if (in_order) fetch<(kLines + 1) / 2, kCache>(b[0] + ahead + 4 * k);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) av[r] = hn::LoadU(d, s.a + r * s.a_row + k);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const V bv = load_f32(d, b[i] + k);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) sum[r][i] = hn::MulAdd(av[r], bv, sum[r][i]);
      }
    }
    if (rest) {
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const V av = load_first(d, s.a + r * s.a_row + whole, rest);
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) sum[r][i] = hn::MulAdd(av, load_first_f32(d, b[i] + whole, rest), sum[r][i]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      auto total = lanes::sums4(sum[r][0], sum[r][1], sum[r][2], sum[r][3]);
      float* c = s.c + r * s.c_row + j;
      if (live == 4) {
        if (s.add) total = hn::Add(hn::LoadU(d4, c), total);
        hn::StoreU(total, d4, c);
      } else {
        alignas(16) float tmp[4];
        hn::Store(total, d4, tmp);
        for (int64_t i = 0; i < live; ++i) c[i] = s.add ? c[i] + tmp[i] : tmp[i];
      }
    }
  }
}

template <class T>
void by_dot(const SmallArgs& s) {
  if (s.rows == 1) return dots<1, T>(s);
  // With more than four rows, a few columns are processed at a time, while they are in L1.
  const int64_t step = s.rows <= 4 ? s.cols : s.k <= 512 ? 8 : 4;
  for (int64_t j = 0; j < s.cols; j += step) {
    SmallArgs g = s;
    g.b = static_cast<const T*>(s.b) + j * s.b_stride, g.c += j, g.cols = s.cols - j < step ? s.cols - j : step;
    for (; g.rows >= 4; g.rows -= 4, g.a += 4 * s.a_row, g.c += 4 * s.c_row) dots<4, T>(g);
    if (g.rows == 3) dots<3, T>(g);
    if (g.rows == 2) dots<2, T>(g);
    if (g.rows == 1) dots<1, T>(g);
  }
}

// ---- stores

void store_f32(const float* src, void* dst, int64_t n) { __builtin_memcpy(dst, src, size_t(n) * 4); }

void store_bf16(const float* src, void* dst, int64_t n) {
  const F d;
  const hn::Rebind<uint32_t, F> du;
  const hn::Rebind<uint16_t, F> d16;
  uint16_t* out = static_cast<uint16_t*>(dst);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const auto u = hn::BitCast(du, hn::LoadU(d, src + i));
    const auto high = hn::ShiftRight<16>(u);
    const auto rounded = hn::ShiftRight<16>(hn::Add(u, hn::Add(hn::And(high, hn::Set(du, 1)), hn::Set(du, 0x7fff))));
    const auto is_nan =
        hn::Gt(hn::BitCast(hn::RebindToSigned<decltype(du)>(), hn::And(u, hn::Set(du, 0x7fffffff))), hn::Set(hn::RebindToSigned<decltype(du)>(), 0x7f800000));
    const auto h = hn::IfThenElse(hn::RebindMask(du, is_nan), hn::Or(high, hn::Set(du, 0x40)), rounded);
    hn::StoreU(hn::DemoteTo(d16, hn::BitCast(hn::RebindToSigned<decltype(du)>(), h)), d16, out + i);
  }
  for (; i < n; ++i) out[i] = f32_to_bf16(src[i]);
}

void store_f16(const float* src, void* dst, int64_t n) {
  uint16_t* out = static_cast<uint16_t*>(dst);
  int64_t i = 0;
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  const F d;
  const hn::Rebind<hwy::float16_t, F> d16;
  for (; i + kLanes <= n; i += kLanes) hn::StoreU(hn::DemoteTo(d16, hn::LoadU(d, src + i)), d16, reinterpret_cast<hwy::float16_t*>(out + i));
#endif
  for (; i < n; ++i) out[i] = f32_to_f16(src[i]);
}

void add_f32(const float* src, float* dst, int64_t n) {
  const F d;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) hn::StoreU(hn::Add(hn::LoadU(d, dst + i), hn::LoadU(d, src + i)), d, dst + i);
  for (; i < n; ++i) dst[i] += src[i];
}

template <int R = 1, int N = 1>
void fill_tiles(MatmulKernels& table) {
  table.packed[R][N] = tile<R, N, true>;
  table.strided[R][N] = tile<R, N, false>;
  if constexpr (N < (R <= kRows ? kVectors : 2))
    fill_tiles<R, N + 1>(table);
  else if constexpr (R < kNarrowRows)
    fill_tiles<R + 1>(table);
}

MatmulKernels make_table() {
  MatmulKernels table;
  table.lanes = kLanes;
  table.tile_rows = kRows;
  table.tile_vectors = kVectors;
  table.narrow_rows = kNarrowRows;
  table.flops_per_cycle = HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 ? 32 : 16;
  fill_tiles(table);
  table.pack[0] = pack<float>, table.pack[1] = pack<Bf16>, table.pack[2] = pack<F16>;
  table.pack_bytes = pack<Byte>;
  table.widen[0] = widen<float>, table.widen[1] = widen<Bf16>, table.widen[2] = widen<F16>;
  table.by_row = by_row;
  table.by_dot[0] = by_dot<float>, table.by_dot[1] = by_dot<Bf16>, table.by_dot[2] = by_dot<F16>;
  table.store[0] = store_f32, table.store[1] = store_bf16, table.store[2] = store_f16;
  table.add = add_f32;
  return table;
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ridge::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ridge::cpu {

const MatmulKernels& matmul_kernels(IsaTier tier) {
#if RIDGE_TIERS
  static const MatmulKernels avx512 = N_AVX3::make_table(), avx2 = N_AVX2::make_table(), sse4 = N_SSE4::make_table();
  return has_avx512(tier) ? avx512 : tier == IsaTier::avx2 ? avx2 : sse4;
#else
  static const MatmulKernels best = HWY_STATIC_DISPATCH(make_table)();
  (void)tier;
  return best;
#endif
}

}  // namespace ridge::cpu
#endif
