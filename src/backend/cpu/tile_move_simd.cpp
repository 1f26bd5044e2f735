// Handlers of the tile interpreter that move and convert data: casts, loads, stores, random words.
#include "base/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/tile_move_simd.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "backend/cpu/tile_simd.h"
#include "backend/cpu/widen_simd.h"
#include "base/half.h"

HWY_BEFORE_NAMESPACE();
namespace ridge::cpu {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using DI = hn::RebindToSigned<D>;
using V = hn::Vec<D>;

template <class T>
const T* at(const TileSlot* s, int64_t row) {
  return reinterpret_cast<const T*>(s->p + row * s->row);
}
template <class T>
T* at_mutable(const TileSlot* s, int64_t row) {
  return reinterpret_cast<T*>(s->p + row * s->row);
}

// Truncates; values out of range saturate, and NaN gives the lowest value.
template <class To, class From>
To convert(From x) {
  if constexpr (std::is_same_v<From, float> && !std::is_same_v<To, float>) {
    constexpr float kEnd = sizeof(To) == 4 ? 0x1p31f : 0x1p63f;
    return x >= kEnd ? std::numeric_limits<To>::max() : !(x >= -kEnd) ? std::numeric_limits<To>::lowest() : To(x);
  } else {
    return To(x);
  }
}

template <class From, class To>
void cast(const TileInstr& in, const TileFrame& f, int64_t rows, int64_t cols) {
  for (int64_t r = 0; r < rows; ++r) {
    const From* a = at<From>(f.slots + in.a, r);
    To* out = at_mutable<To>(f.slots + in.d, r);
    for (int64_t i = 0; i < cols; ++i) out[i] = convert<To>(a[i]);
  }
}

int64_t gather_words(const int64_t* index, const float* from, int64_t size, float* to, int64_t n) {
  int64_t i = 0;
#if HWY_TARGET == HWY_AVX3
  const __m512i limit = _mm512_set1_epi64(size);
  if (size <= 128 && n >= 32) {  // a table in eight registers
    __m512 table[8];
#pragma GCC unroll 8
    for (int t = 0; t < 8; ++t) {
      const int64_t left = size - 16 * t;
      table[t] = _mm512_maskz_loadu_ps(left >= 16 ? 0xffff : left > 0 ? (1 << left) - 1 : 0, from + 16 * t);
    }
    for (; i + 16 <= n; i += 16) {
      const __m512i low = _mm512_loadu_si512(index + i), high = _mm512_loadu_si512(index + i + 8);
      if ((_mm512_cmplt_epu64_mask(low, limit) & _mm512_cmplt_epu64_mask(high, limit)) != 0xff) break;
      const __m512i k = _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi64_epi32(low)), _mm512_cvtepi64_epi32(high), 1);
      const __mmask16 odd = _mm512_test_epi32_mask(k, _mm512_set1_epi32(32));
      __m512 y = _mm512_mask_blend_ps(odd, _mm512_permutex2var_ps(table[0], k, table[1]), _mm512_permutex2var_ps(table[2], k, table[3]));
      if (size > 64) {
        const __m512 above = _mm512_mask_blend_ps(odd, _mm512_permutex2var_ps(table[4], k, table[5]), _mm512_permutex2var_ps(table[6], k, table[7]));
        y = _mm512_mask_blend_ps(_mm512_test_epi32_mask(k, _mm512_set1_epi32(64)), y, above);
      }
      _mm512_storeu_ps(to + i, y);
    }
  }
  for (; i + 8 <= n; i += 8) {
    const __m512i k = _mm512_loadu_si512(index + i);
    if (_mm512_cmplt_epu64_mask(k, limit) != 0xff) break;
    _mm256_storeu_ps(to + i, _mm512_i64gather_ps(k, from, 4));
  }
#endif
  for (; i < n && uint64_t(index[i]) < uint64_t(size); ++i) to[i] = from[index[i]];
  return i;
}

template <class From>
void truth(const TileInstr& in, const TileFrame& f, int64_t rows, int64_t cols) {
  for (int64_t r = 0; r < rows; ++r) {
    const From* a = at<From>(f.slots + in.a, r);
    int32_t* out = at_mutable<int32_t>(f.slots + in.d, r);
    for (int64_t i = 0; i < cols; ++i) out[i] = a[i] != 0;
  }
}

template <class T, bool kPerRow>
void copy(const TileInstr& in, const TileFrame& f, int64_t rows, int64_t cols) {
  for (int64_t r = 0; r < rows; ++r) {
    const T* a = at<T>(f.slots + in.a, r);
    T* out = at_mutable<T>(f.slots + in.d, r);
    if constexpr (kPerRow) {
      std::fill(out, out + cols, *a);
    } else {
      std::memmove(out, a, size_t(cols) * sizeof(T));
    }
  }
}

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2
HWY_INLINE void narrow_f16(V v, uint16_t* p) {
  const hn::Rebind<hwy::float16_t, D> d16;
  const hn::Rebind<uint16_t, D> du16;
  hn::StoreU(hn::BitCast(du16, hn::DemoteTo(d16, v)), du16, p);
}
#else
HWY_INLINE void narrow_f16(V v, uint16_t* p) {
  HWY_ALIGN float part[hn::MaxLanes(D())];
  hn::Store(v, D(), part);
  for (size_t i = 0; i < hn::Lanes(D()); ++i) p[i] = f32_to_f16(part[i]);
}
#endif

template <bool kBrain>
HWY_INLINE V widen(const uint16_t* p) {
  return kBrain ? wide::load_bf16(D(), p) : wide::load_f16(D(), p);
}
template <bool kBrain>
HWY_INLINE void narrow(V v, uint16_t* p) {
  return kBrain ? narrow_bf16(v, p) : narrow_f16(v, p);
}

template <bool kBrain>
void widen_row(float* out, const uint16_t* p, int64_t cols) {
  const int64_t n = int64_t(hn::Lanes(D()));
  int64_t i = 0;
  for (; i + n <= cols; i += n) hn::StoreU(widen<kBrain>(p + i), D(), out + i);
  if (i < cols) {
    uint16_t part[hn::MaxLanes(D())] = {};
    std::memcpy(part, p + i, size_t(cols - i) * 2);
    store_tail(widen<kBrain>(part), D(), out + i, cols - i);
  }
}

template <bool kBrain>
void narrow_row(uint16_t* out, const float* p, int64_t cols) {
  const int64_t n = int64_t(hn::Lanes(D()));
  int64_t i = 0;
  for (; i + n <= cols; i += n) narrow<kBrain>(hn::LoadU(D(), p + i), out + i);
  if (i < cols) {
    uint16_t part[hn::MaxLanes(D())];
    narrow<kBrain>(load_tail(D(), p + i, cols - i), part);
    std::memcpy(out + i, part, size_t(cols - i) * 2);
  }
}

template <bool kBrain>
void round_half(const TileInstr& in, const TileFrame& f, int64_t rows, int64_t cols) {
  const int64_t n = int64_t(hn::Lanes(D()));
  uint16_t part[hn::MaxLanes(D())];
  auto rounded = [&](V v) HWY_ATTR {
    if constexpr (kBrain) return hn::BitCast(D(), bf16_bits(v));
    narrow<kBrain>(v, part);
    return widen<kBrain>(part);
  };
  for (int64_t r = 0; r < rows; ++r) {
    const float* a = at<float>(f.slots + in.a, r);
    float* out = at_mutable<float>(f.slots + in.d, r);
    int64_t i = 0;
    for (; i + n <= cols; i += n) hn::StoreU(rounded(hn::LoadU(D(), a + i)), D(), out + i);
    if (i < cols) store_tail(rounded(load_tail(D(), a + i, cols - i)), D(), out + i, cols - i);
  }
}

#if HWY_TARGET == HWY_AVX3
// As round_half, and also a store if kStore, with the processor's conversion.
template <bool kStore>
void round_row(const TileInstr& in, const TileFrame& f, int64_t rows, int64_t cols) {
  for (int64_t r = 0; r < rows; ++r) {
    const float* a = at<float>(f.slots + in.a, r);
    float* out = at_mutable<float>(f.slots + in.d, r);
    uint16_t* stored = kStore ? at_mutable<uint16_t>(f.slots + in.e, r) : nullptr;
    int64_t i = 0;
    for (; i + 16 <= cols; i += 16) {
      const V v = hn::LoadU(D(), a + i);
      if (kStore) narrow_native(v, stored + i);
      hn::StoreU(kStore ? widen<true>(stored + i) : round_native(v), D(), out + i);
    }
    if (i < cols) {
      const V v = load_tail(D(), a + i, cols - i);
      if (kStore) narrow_slowly(v, stored + i, cols - i);
      store_tail(round_slowly(v), D(), out + i, cols - i);
    }
  }
}

void store_native(std::byte* dst, int64_t dst_row, int64_t, const std::byte* src, int64_t src_row, int64_t rows, int64_t cols) {
  for (int64_t r = 0; r < rows; ++r) {
    const float* from = reinterpret_cast<const float*>(src + r * src_row);
    narrow_row_native(reinterpret_cast<uint16_t*>(dst + r * dst_row), cols, [&](int64_t i, auto load) HWY_ATTR { return load(from + i); });
  }
}
#endif

void low_byte(const TileInstr& in, const TileFrame& f, int64_t rows, int64_t cols) {
  for (int64_t r = 0; r < rows; ++r) {
    const int32_t* a = at<int32_t>(f.slots + in.a, r);
    int32_t* out = at_mutable<int32_t>(f.slots + in.d, r);
    for (int64_t i = 0; i < cols; ++i) out[i] = a[i] & 255;
  }
}

// Converts a storage element to a register element and back.
template <DType t>
struct Stored;
template <>
struct Stored<DType::f32> {
  using Memory = float;
  using Reg = float;
  static Reg get(Memory x) { return x; }
  static Memory put(Reg x) { return x; }
};
template <>
struct Stored<DType::i32> {
  using Memory = int32_t;
  using Reg = int32_t;
  static Reg get(Memory x) { return x; }
  static Memory put(Reg x) { return x; }
};
template <>
struct Stored<DType::i64> {
  using Memory = int64_t;
  using Reg = int64_t;
  static Reg get(Memory x) { return x; }
  static Memory put(Reg x) { return x; }
};
template <>
struct Stored<DType::u8> {
  using Memory = uint8_t;
  using Reg = int32_t;
  static Reg get(Memory x) { return x; }
  static Memory put(Reg x) { return Memory(x); }
};
template <>
struct Stored<DType::boolean> {
  using Memory = uint8_t;
  using Reg = int32_t;
  static Reg get(Memory x) { return x != 0; }
  static Memory put(Reg x) { return x != 0; }
};
template <>
struct Stored<DType::bf16> {
  using Memory = uint16_t;
  using Reg = float;
  static Reg get(Memory x) { return bf16_to_f32(x); }
  static Memory put(Reg x) { return f32_to_bf16(x); }
};
template <>
struct Stored<DType::f16> {
  using Memory = uint16_t;
  using Reg = float;
  static Reg get(Memory x) { return f16_to_f32(x); }
  static Memory put(Reg x) { return f32_to_f16(x); }
};

template <DType t>
void load(std::byte* dst, int64_t dst_row, const std::byte* src, int64_t src_row, int64_t, int64_t rows, int64_t cols) {
  using S = Stored<t>;
  for (int64_t r = 0; r < rows; ++r) {
    auto* out = reinterpret_cast<typename S::Reg*>(dst + r * dst_row);
    auto* p = reinterpret_cast<const typename S::Memory*>(src + r * src_row);
    if constexpr (t == DType::bf16)
      widen_row<true>(out, p, cols);
    else if constexpr (t == DType::f16)
      widen_row<false>(out, p, cols);
    else
      for (int64_t i = 0; i < cols; ++i) out[i] = S::get(p[i]);
  }
}

template <DType t>
void load_strided(std::byte* dst, int64_t dst_row, const std::byte* src, int64_t src_row, int64_t src_col, int64_t rows, int64_t cols) {
  using S = Stored<t>;
  for (int64_t r = 0; r < rows; ++r) {
    auto* out = reinterpret_cast<typename S::Reg*>(dst + r * dst_row);
    const std::byte* p = src + r * src_row;
    for (int64_t i = 0; i < cols; ++i, p += src_col) out[i] = S::get(*reinterpret_cast<const typename S::Memory*>(p));
  }
}

// Transposes blocks of four rows and four columns, kBlocks of them next to each other in a vector.
template <int kBlocks>
HWY_INLINE void transpose_blocks(std::byte* dst, int64_t dst_row, const std::byte* src, int64_t src_col) {
  const hn::FixedTag<float, 4> quarter;
  const hn::FixedTag<float, 4 * kBlocks> d;
  const hn::FixedTag<float, std::max(4, 2 * kBlocks)> half;
  const hn::FixedTag<double, 2 * kBlocks> dd;
  auto line = [&](int64_t k) HWY_ATTR {
    auto at = [&](int64_t block) HWY_ATTR { return hn::LoadU(quarter, reinterpret_cast<const float*>(src + (k + 4 * block) * src_col)); };
    if constexpr (kBlocks == 4)
      return hn::Combine(d, hn::Combine(half, at(3), at(2)), hn::Combine(half, at(1), at(0)));
    else if constexpr (kBlocks == 2)
      return hn::Combine(d, at(1), at(0));
    else
      return at(0);
  };
  const auto a = line(0), b = line(1), e = line(2), f = line(3);
  const auto ab0 = hn::BitCast(dd, hn::InterleaveLower(d, a, b)), ab1 = hn::BitCast(dd, hn::InterleaveUpper(d, a, b));
  const auto ef0 = hn::BitCast(dd, hn::InterleaveLower(d, e, f)), ef1 = hn::BitCast(dd, hn::InterleaveUpper(d, e, f));
  auto put = [&](int64_t k, auto v) HWY_ATTR { hn::StoreU(hn::BitCast(d, v), d, reinterpret_cast<float*>(dst + k * dst_row)); };
  put(0, hn::InterleaveLower(dd, ab0, ef0)), put(1, hn::InterleaveUpper(dd, ab0, ef0));
  put(2, hn::InterleaveLower(dd, ab1, ef1)), put(3, hn::InterleaveUpper(dd, ab1, ef1));
}

#if HWY_TARGET == HWY_AVX3
// Transposes 4 × 4 elements inside each quarter of four vectors.
HWY_INLINE void transpose_quarters(const __m512* x, __m512* y) {
  const __m512d a = _mm512_castps_pd(_mm512_unpacklo_ps(x[0], x[1])), b = _mm512_castps_pd(_mm512_unpackhi_ps(x[0], x[1]));
  const __m512d c = _mm512_castps_pd(_mm512_unpacklo_ps(x[2], x[3])), d = _mm512_castps_pd(_mm512_unpackhi_ps(x[2], x[3]));
  y[0] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c)), y[1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
  y[2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d)), y[3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
}

// Eight rows of n >= 16 elements to columns next to each other. The last sixteen columns overlap those before them.
void to_columns_of_eight(float* dst, const std::byte* src, int64_t row, int64_t n) {
  const __m512i low = _mm512_setr_epi32(0, 2, 4, 6, 16, 18, 20, 22, 1, 3, 5, 7, 17, 19, 21, 23), high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
  for (int64_t at = 0; at < n; at += 16) {
    const int64_t first = std::min(at, n - 16);
    __m512 x[4], y[4], columns[8];
    for (int r = 0; r < 4; ++r) {
      const __m512 upper = _mm512_loadu_ps(src + r * row + first * 4), lower = _mm512_loadu_ps(src + (r + 4) * row + first * 4);
      x[r] = _mm512_permutex2var_ps(upper, low, lower), y[r] = _mm512_permutex2var_ps(upper, high, lower);
    }
    transpose_quarters(x, columns), transpose_quarters(y, columns + 4);
    for (int i = 0; i < 8; ++i) _mm512_storeu_ps(dst + first * 8 + i * 16, columns[i]);
  }
}
// And back.
void from_columns_of_eight(std::byte* dst, int64_t row, const float* src, int64_t n) {
  const __m512i upper = _mm512_setr_epi32(0, 8, 1, 9, 2, 10, 3, 11, 16, 24, 17, 25, 18, 26, 19, 27), lower = _mm512_add_epi32(upper, _mm512_set1_epi32(4));
  for (int64_t at = 0; at < n; at += 16) {
    const int64_t first = std::min(at, n - 16);
    __m512 columns[8], x[4], y[4];
    for (int i = 0; i < 8; ++i) columns[i] = _mm512_loadu_ps(src + first * 8 + i * 16);
    transpose_quarters(columns, x), transpose_quarters(columns + 4, y);
    for (int r = 0; r < 4; ++r) {
      _mm512_storeu_ps(dst + r * row + first * 4, _mm512_permutex2var_ps(x[r], upper, y[r]));
      _mm512_storeu_ps(dst + (r + 4) * row + first * 4, _mm512_permutex2var_ps(x[r], lower, y[r]));
    }
  }
}
// Sixteen columns of n >= 16 elements each, to rows; again the last sixteen rows overlap those before them. Prefetches as many columns that follow.
void transpose_sixteen(std::byte* dst, int64_t dst_row, const std::byte* src, int64_t src_col, int64_t n) {
  for (int64_t at = 0; at < n; at += 16) {
    const int64_t first = std::min(at, n - 16);
    __m512 y[4][4];  // y[g][k]: in quarter q the elements 4 q + k of four columns
    for (int g = 0; g < 4; ++g) {
      __m512 x[4];
      for (int i = 0; i < 4; ++i) {
        x[i] = _mm512_loadu_ps(src + (4 * g + i) * src_col + first * 4);
        _mm_prefetch(reinterpret_cast<const char*>(src + (16 + 4 * g + i) * src_col + first * 4), _MM_HINT_T0);
      }
      transpose_quarters(x, y[g]);
    }
    for (int k = 0; k < 4; ++k) {
      const __m512 a = _mm512_shuffle_f32x4(y[0][k], y[1][k], 0x88), b = _mm512_shuffle_f32x4(y[0][k], y[1][k], 0xdd);
      const __m512 c = _mm512_shuffle_f32x4(y[2][k], y[3][k], 0x88), d = _mm512_shuffle_f32x4(y[2][k], y[3][k], 0xdd);
      auto put = [&](int q, __m512 v) HWY_ATTR { _mm512_storeu_ps(dst + (first + 4 * q + k) * dst_row, v); };
      put(0, _mm512_shuffle_f32x4(a, c, 0x88)), put(1, _mm512_shuffle_f32x4(b, d, 0x88));
      put(2, _mm512_shuffle_f32x4(a, c, 0xdd)), put(3, _mm512_shuffle_f32x4(b, d, 0xdd));
    }
  }
}
#endif

// Cache lines run along the rows, so each is used completely before the next. The last blocks overlap those before them.
void load_transposed(std::byte* dst, int64_t dst_row, const std::byte* src, int64_t src_row, int64_t src_col, int64_t rows, int64_t cols) {
  if (rows < 4 || cols < 4) return load_strided<DType::f32>(dst, dst_row, src, src_row, src_col, rows, cols);
#if HWY_TARGET == HWY_AVX3
  if (cols == 8 && dst_row == 32 && rows >= 16) return to_columns_of_eight(reinterpret_cast<float*>(dst), src, src_col, rows);
  if (rows == 8 && src_col == 32 && cols >= 16) return from_columns_of_eight(dst, dst_row, reinterpret_cast<const float*>(src), cols);
#endif
  constexpr int kBlocks = int(std::min<size_t>(4, hn::MaxLanes(hn::ScalableTag<float>()) / 4));
  auto columns = [&](int64_t c, auto blocks) HWY_ATTR {
    for (int64_t r = 0; r < rows; r += 4) {
      const int64_t first = std::min(r, rows - 4);
      transpose_blocks<decltype(blocks)::value>(dst + first * dst_row + c * 4, dst_row, src + first * 4 + c * src_col, src_col);
    }
  };
  constexpr int kHalf = std::min(2, kBlocks);
  int64_t c = 0;
#if HWY_TARGET == HWY_AVX3
  for (; rows >= 16 && c + 16 <= cols; c += 16) transpose_sixteen(dst + c * 4, dst_row, src + c * src_col, src_col, rows);
#endif
  for (; c + 4 * kBlocks <= cols; c += 4 * kBlocks) columns(c, std::integral_constant<int, kBlocks>());
  for (; c + 4 * kHalf <= cols; c += 4 * kHalf) columns(c, std::integral_constant<int, kHalf>());
  for (; c < cols; c += 4) columns(std::min(c, cols - 4), std::integral_constant<int, 1>());
}

template <DType t, bool kPerRow>
void store(std::byte* dst, int64_t dst_row, int64_t, const std::byte* src, int64_t src_row, int64_t rows, int64_t cols) {
  using S = Stored<t>;
  for (int64_t r = 0; r < rows; ++r) {
    auto* out = reinterpret_cast<typename S::Memory*>(dst + r * dst_row);
    auto* p = reinterpret_cast<const typename S::Reg*>(src + r * src_row);
    if constexpr (kPerRow)
      std::fill(out, out + cols, S::put(*p));
    else if constexpr (t == DType::bf16)
      narrow_row<true>(out, p, cols);
    else if constexpr (t == DType::f16)
      narrow_row<false>(out, p, cols);
    else
      for (int64_t i = 0; i < cols; ++i) out[i] = S::put(p[i]);
  }
}

template <DType t, bool kPerRow>
void store_strided(std::byte* dst, int64_t dst_row, int64_t dst_col, const std::byte* src, int64_t src_row, int64_t rows, int64_t cols) {
  using S = Stored<t>;
  for (int64_t r = 0; r < rows; ++r) {
    std::byte* out = dst + r * dst_row;
    auto* p = reinterpret_cast<const typename S::Reg*>(src + r * src_row);
    for (int64_t i = 0; i < cols; ++i, out += dst_col) *reinterpret_cast<typename S::Memory*>(out) = S::put(p[kPerRow ? 0 : i]);
  }
}

// Rows that start at a vector boundary bypass the caches.
void store_stream_f32(std::byte* dst, int64_t dst_row, int64_t dst_col, const std::byte* src, int64_t src_row, int64_t rows, int64_t cols) {
  const int64_t n = int64_t(hn::Lanes(D()));
  for (int64_t r = 0; r < rows; ++r) {
    float* out = reinterpret_cast<float*>(dst + r * dst_row);
    const float* p = reinterpret_cast<const float*>(src + r * src_row);
    if (reinterpret_cast<uintptr_t>(out) % size_t(n * 4)) {
      store<DType::f32, false>(dst + r * dst_row, 0, dst_col, src + r * src_row, 0, 1, cols);
      continue;
    }
    int64_t i = 0;
    for (; i + n <= cols; i += n) hn::Stream(hn::LoadU(D(), p + i), D(), out + i);
    if (i < cols) store_tail(load_tail(D(), p + i, cols - i), D(), out + i, cols - i);
  }
}

// Four words for each of the blocks first … first + lanes - 1, in element order
HWY_INLINE void philox_blocks(RandomKey key, uint64_t first, bool uniform, uint32_t* out) {
  const DU du;
  HWY_ALIGN uint32_t lo[hn::MaxLanes(DU())], hi[hn::MaxLanes(DU())];
  for (size_t i = 0; i < hn::Lanes(du); ++i) lo[i] = uint32_t(first + i), hi[i] = uint32_t((first + i) >> 32);
  VU c[4] = {hn::Load(du, lo), hn::Load(du, hi), hn::Set(du, key.step), hn::Set(du, key.stream)};
  philox_rounds(hn::Set(du, uint32_t(key.seed)), hn::Set(du, uint32_t(key.seed >> 32)), c);
  if (uniform)
    for (VU& word : c) word = hn::BitCast(du, uniform_of(word));
  hn::StoreInterleaved4(c[0], c[1], c[2], c[3], du, out);
}

void random_words(RandomKey key, uint64_t first, int64_t n, bool uniform, void* out) {
  const int64_t span = int64_t(4 * hn::Lanes(DU()));
  auto* words = static_cast<uint32_t*>(out);
  HWY_ALIGN uint32_t part[4 * hn::MaxLanes(DU())];
  while (n > 0) {
    int64_t skip = int64_t(first % 4), take = std::min(n, span - skip);
    bool whole = skip == 0 && take == span;
    philox_blocks(key, first / 4, uniform, whole ? words : part);
    if (!whole) std::memcpy(words, part + skip, size_t(take) * 4);
    words += take, first += uint64_t(take), n -= take;
  }
}

template <DType t>
void set_storage(TileHandlers& h) {
  h.load[int(t)] = load<t>;
  h.load_strided[int(t)] = load_strided<t>;
  h.store[int(t)][0] = store<t, false>, h.store[int(t)][1] = store<t, true>;
  h.store_strided[int(t)][0] = store_strided<t, false>, h.store_strided[int(t)][1] = store_strided<t, true>;
}

template <class From, int from>
void set_casts(TileHandlers& h) {
  h.cast[from][0] = cast<From, float>, h.cast[from][1] = cast<From, int32_t>, h.cast[from][2] = cast<From, int64_t>;
  h.truth[from] = truth<From>;
  h.copy[from][0] = copy<From, false>, h.copy[from][1] = copy<From, true>;
}

}  // namespace

void fill_moves(TileHandlers& h) {
  set_casts<float, 0>(h), set_casts<int32_t, 1>(h), set_casts<int64_t, 2>(h);
  set_storage<DType::boolean>(h), set_storage<DType::u8>(h), set_storage<DType::i32>(h), set_storage<DType::i64>(h);
  set_storage<DType::f16>(h), set_storage<DType::bf16>(h), set_storage<DType::f32>(h);
  h.round[int(DType::bf16)] = round_half<true>, h.round[int(DType::f16)] = round_half<false>, h.round[int(DType::u8)] = low_byte;
#if HWY_TARGET == HWY_AVX3
  h.round_store = round_row<true>, h.round_native = round_row<false>, h.store_native = store_native;
#endif
  h.store_stream[int(DType::f32)] = h.store_stream[int(DType::i32)] = store_stream_f32;
  h.gather_words = gather_words;
  h.load_transposed = load_transposed;
  h.random = random_words;
}

}  // namespace HWY_NAMESPACE
}  // namespace ridge::cpu
HWY_AFTER_NAMESPACE();
