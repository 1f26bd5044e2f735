// Products of two bf16 operands with the CPU's native dot product of pairs: two neighbours along K form one 32-bit element, in panels and in registers. A panel
// of pairs is as large as an f32 panel of half the depth, and block sizes count pairs.
#include "backend/cpu/matmul_kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include "hwy/base.h"

HWY_PUSH_ATTRIBUTES("avx512f,avx512vl,avx512dq,avx512bw,avx512bf16")
namespace ridge::cpu {
namespace {

constexpr int kLanes = 16, kRows = 14, kVectors = 2;

// A pair may be at any even address.
HWY_INLINE __m512bh broadcast_pair(const float* p) {
  int32_t pair;
  __builtin_memcpy(&pair, p, 4);
  return __m512bh(_mm512_set1_epi32(pair));
}
HWY_INLINE __m512bh load_pairs(const float* p) { return __m512bh(_mm512_loadu_si512(p)); }

// Adds kSteps products to the sums. Three rows share a pointer of `a`.
template <int R, int N, bool kPacked, int kSteps>
HWY_INLINE void add_pairs(const float* const* a, int64_t a_row, int64_t a_k, const float* b, int64_t b_k, __m512 (&sum)[R][N]) {
#pragma GCC unroll 4
  for (int u = 0; u < kSteps; ++u, b += b_k) {
    __m512bh bv[N];
#pragma GCC unroll 4
    for (int v = 0; v < N; ++v) bv[v] = load_pairs(b + v * kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const __m512bh av = broadcast_pair(kPacked ? a[0] + u * a_k + r : a[r / 3] + (r % 3) * a_row + u);
#pragma GCC unroll 4
      for (int v = 0; v < N; ++v) sum[r][v] = _mm512_dpbf16_ps(sum[r][v], av, bv[v]);
    }
  }
}

// Writes a tile's sums: f32, added to what is there if `add`, or bf16. `last`: the live columns of the last vector.
template <int R, int N, bool kWhole>
HWY_INLINE void put_sums(const TileArgs& t, __m512 (&sum)[R][N]) {
  const __mmask16 last = kWhole ? __mmask16(0xffff) : __mmask16((1u << (t.cols - (N - 1) * kLanes)) - 1);
  float* c = t.c;
  const int64_t c_row = t.c_row, out_row = t.out_row;
  if (t.add) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < N; ++v)
        sum[r][v] = _mm512_add_ps(_mm512_maskz_loadu_ps(v == N - 1 ? last : __mmask16(0xffff), c + r * c_row + v * kLanes), sum[r][v]);
  }
  if (uint16_t* out = static_cast<uint16_t*>(t.out)) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r, out += out_row) {
      if constexpr (N == 2 && kWhole) {
        _mm512_storeu_si512(out, __m512i(_mm512_cvtne2ps_pbh(sum[r][1], sum[r][0])));
      } else {
#pragma GCC unroll 4
        for (int v = 0; v < N; ++v) _mm256_mask_storeu_epi16(out + v * kLanes, v == N - 1 ? last : __mmask16(0xffff), __m256i(_mm512_cvtneps_pbh(sum[r][v])));
      }
    }
    return;
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r, c += c_row)
#pragma GCC unroll 4
    for (int v = 0; v < N; ++v) {
      if (kWhole || v < N - 1)
        _mm512_storeu_ps(c + v * kLanes, sum[r][v]);
      else
        _mm512_mask_storeu_ps(c + v * kLanes, last, sum[r][v]);
    }
}

// Like the f32 tile, with pairs as elements.
template <int R, int N, bool kPacked>
void dot_tile(const TileArgs& t) {
  __m512 sum[R][N];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < N; ++v) sum[r][v] = _mm512_setzero_ps();
  if (t.k * t.stretches >= 128) {  // prefetch the lines that are written while the sums are computed
    const char* to = t.out ? static_cast<const char*>(t.out) : reinterpret_cast<const char*>(t.c);
    const int64_t row = t.out ? t.out_row * 2 : t.c_row * 4, bytes = t.out ? N * kLanes * 2 : N * kLanes * 4;
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r, to += row)
      for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(to + at, 1);
  }
  const float* HWY_RESTRICT b = t.b;
  const int64_t b_k = t.b_k, a_k = t.a_k, a_row = t.a_row;
  constexpr int64_t kWhole[1] = {0};
  const int64_t* const at = t.stretch_at ? t.stretch_at : kWhole;
  // Three rows share a pointer: base, base + a_row and base + 2 * a_row are addressing modes.
  constexpr int kPointers = kPacked ? 1 : (R + 2) / 3;
  const float* a[kPointers];
  for (int64_t i = 0; i < t.stretches; ++i) {
#pragma GCC unroll 16
    for (int g = 0; g < kPointers; ++g) a[g] = t.a + at[i] + 3 * g * a_row;
    int64_t k = t.k;
    const auto pass = [&](int64_t by) __attribute__((always_inline)) {
#pragma GCC unroll 16
      for (const float*& p : a) p += by;
    };
    // Several pairs an iteration: the loop's own instructions are fewer, and so are the iterations that the end of a short sum is predicted from.
    constexpr int kSteps = 4;
    if (kPacked ? a_k == R && b_k == N * kLanes : a_k == 1 && b_k == N * kLanes)
      for (; k >= kSteps; k -= kSteps, b += kSteps * N * kLanes) {
        add_pairs<R, N, kPacked, kSteps>(a, a_row, R, b, N * kLanes, sum);
        pass(kPacked ? kSteps * R : kSteps);
      }
    for (; k > 0; --k, b += b_k) {
      add_pairs<R, N, kPacked, 1>(a, a_row, a_k, b, b_k, sum);
      pass(a_k);
    }
  }
  if (t.cols == N * kLanes)
    put_sums<R, N, true>(t, sum);
  else
    put_sums<R, N, false>(t, sum);
}

// ---- packing

HWY_INLINE void put_pair(float* to, uint16_t low, uint16_t high) {
  const uint32_t pair = uint32_t(low) | uint32_t(high) << 16;
  __builtin_memcpy(to, &pair, 4);
}

// The permutation that interleaves two rows of 32 elements.
struct Order {
  alignas(64) uint16_t to[2 * 32];
  constexpr Order() : to() {
    for (int i = 0; i < 32; ++i) to[2 * i] = uint16_t(i), to[2 * i + 1] = uint16_t(32 + i);
  }
};
constexpr Order kInterleaved;

// Panels are packed some rows at a time, tile by tile: a row's next columns are needed soon, but rows are too many for the hardware to see it.
constexpr int64_t kAhead = 128;  // columns

// Whole panels of two vectors: rows k and k + 1 interleaved.
HWY_NOINLINE void interleave_wide(const uint16_t* HWY_RESTRICT src, int64_t k_stride, int64_t pairs, float* HWY_RESTRICT dst) {
  const __m512i low = _mm512_load_si512(kInterleaved.to), high = _mm512_load_si512(kInterleaved.to + 32);
  for (int64_t k = 0; k < pairs; ++k, src += 2 * k_stride, dst += 2 * kLanes) {
    const __m512i even = _mm512_loadu_si512(src), odd = _mm512_loadu_si512(src + k_stride);
    __builtin_prefetch(src + kAhead), __builtin_prefetch(src + k_stride + kAhead);
    _mm512_storeu_si512(dst, _mm512_permutex2var_epi16(even, low, odd));
    _mm512_storeu_si512(dst + kLanes, _mm512_permutex2var_epi16(even, high, odd));
  }
}

// Panels of up to a vector, of whole pairs: a tile's rows of A.
HWY_NOINLINE void interleave_narrow(const uint16_t* HWY_RESTRICT src, int64_t k_stride, int64_t width, int64_t pairs, float* HWY_RESTRICT dst) {
  const __m512i order = _mm512_load_si512(kInterleaved.to);
  const __mmask16 live = __mmask16((1u << width) - 1);
  const float* const end = dst + pairs * width;
  for (; pairs > 0; --pairs, src += 2 * k_stride, dst += width) {
    const __m512i even = _mm512_castsi256_si512(_mm256_maskz_loadu_epi16(live, src));
    const __m512i odd = _mm512_castsi256_si512(_mm256_maskz_loadu_epi16(live, src + k_stride));
    const __m512i both = _mm512_permutex2var_epi16(even, order, odd);
    __builtin_prefetch(src + kAhead), __builtin_prefetch(src + k_stride + kAhead);
    if (dst + kLanes <= end)  // the overhang into the next row is overwritten
      _mm512_storeu_si512(dst, both);
    else
      _mm512_mask_storeu_epi32(dst, live, both);
  }
}

// Any panel with contiguous columns; `half`: the last pair has no second row. A row's last vector overhangs into the next row, which is written after it.
HWY_NOINLINE void interleave(const uint16_t* HWY_RESTRICT src, int64_t k_stride, int64_t live, int64_t width, int64_t pairs, bool half,
                             float* HWY_RESTRICT dst) {
  const __m512i order = _mm512_load_si512(kInterleaved.to);
  const float* const end = dst + pairs * width;
  for (int64_t k = 0; k < pairs; ++k, src += 2 * k_stride, dst += width) {
    for (int64_t c = 0; c < width; c += kLanes) {
      const int64_t there = live - c;
      const __mmask16 read = there >= kLanes ? __mmask16(0xffff) : there <= 0 ? __mmask16(0) : __mmask16((1u << there) - 1);
      const __mmask16 second = half && k + 1 == pairs ? __mmask16(0) : read;
      const __m512i even = _mm512_castsi256_si512(_mm256_maskz_loadu_epi16(read, src + c));
      const __m512i odd = _mm512_castsi256_si512(_mm256_maskz_loadu_epi16(second, src + k_stride + c));
      const __m512i both = _mm512_permutex2var_epi16(even, order, odd);
      if (dst + c + kLanes <= end)
        _mm512_storeu_si512(dst + c, both);
      else
        _mm512_mask_storeu_epi32(dst + c, __mmask16((1u << (end - dst - c)) - 1), both);
    }
  }
}

HWY_NOINLINE void pack_any(const uint16_t* src, const PackArgs& p) {
  for (int64_t k = 0; k < p.depth; ++k) {
    const bool both = 2 * k + 1 < p.k_size;
    const uint16_t *even = src + p.k(p.first_k + 2 * k), *odd = both ? src + p.k(p.first_k + 2 * k + 1) : nullptr;
    float* to = p.dst + k * p.width;
    for (int64_t i = 0; i < p.live; ++i) {
      const int64_t at = p.column(p.first_column + i);
      put_pair(to + i, even[at], both ? odd[at] : uint16_t(0));
    }
    for (int64_t i = p.live; i < p.width; ++i) put_pair(to + i, 0, 0);
  }
}

// Columns with contiguous K are already columns of pairs, so this is the transposition of an f32 panel.
HWY_NOINLINE void pack_transposed(const uint16_t* first, const PackArgs& p) {
  const int64_t whole = p.k_size / 2;
  if (whole) {
    PackArgs q = p;
    q.src = first, q.column = {nullptr, p.column.stride / 2}, q.k = {nullptr, 1};
    q.first_column = q.first_k = 0, q.depth = whole;
    matmul_kernels(IsaTier::avx512).pack[storage_index(DType::f32)](q);
  }
  if (whole == p.depth) return;
  float* to = p.dst + whole * p.width;
  for (int64_t i = 0; i < p.width; ++i) put_pair(to + i, i < p.live ? first[i * p.column.stride + 2 * whole] : uint16_t(0), 0);
}

void pack_pairs(const PackArgs& p) {
  const uint16_t* src = static_cast<const uint16_t*>(p.src);
  if (!p.column.regular() || !p.k.regular()) return pack_any(src, p);
  const uint16_t* first = src + p.first_column * p.column.stride + p.first_k * p.k.stride;
  const bool half = p.k_size < 2 * p.depth;
  if (p.column.stride == 1) {
    if (p.live == 2 * kLanes && p.width == 2 * kLanes && !half) return interleave_wide(first, p.k.stride, p.depth, p.dst);
    if (p.live == p.width && p.width <= kLanes && !half) return interleave_narrow(first, p.k.stride, p.width, p.depth, p.dst);
    return interleave(first, p.k.stride, p.live, p.width, p.depth, half, p.dst);
  }
  if (p.k.stride == 1 && p.column.stride % 2 == 0 && reinterpret_cast<uintptr_t>(first) % 4 == 0) return pack_transposed(first, p);
  pack_any(src, p);
}

// Copies rows with contiguous K; an odd row ends with a pair whose second element is zero.
void copy_pairs(const void* src, float* dst, int64_t n) {
  __builtin_memcpy(dst, src, size_t(n) * 2);
  if (n % 2) put_pair(dst + n / 2, static_cast<const uint16_t*>(src)[n - 1], 0);
}

void join_pairs(const float* first, const float* second, float* dst, int64_t n) {
  const __m512i order = _mm512_load_si512(kInterleaved.to);
  for (int64_t i = 0; i < n; i += kLanes) {
    const __mmask16 live = n - i >= kLanes ? __mmask16(0xffff) : __mmask16((1u << (n - i)) - 1);
    const __m512i even = _mm512_castsi256_si512(__m256i(_mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(live, first + i))));
    const __m512i odd = second ? _mm512_castsi256_si512(__m256i(_mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(live, second + i)))) : _mm512_setzero_si512();
    _mm512_mask_storeu_epi32(dst + i, live, _mm512_permutex2var_epi16(even, order, odd));
  }
}

// Rounds like the conversion by integer arithmetic, except for denormals, which do not occur in sums because they are flushed.
void store_bf16(const float* src, void* dst, int64_t n) {
  uint16_t* out = static_cast<uint16_t*>(dst);
  for (int64_t i = 0; i < n; i += kLanes) {
    const __mmask16 live = n - i >= kLanes ? __mmask16(0xffff) : __mmask16((1u << (n - i)) - 1);
    _mm256_mask_storeu_epi16(out + i, live, __m256i(_mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(live, src + i))));
  }
}

}  // namespace
}  // namespace ridge::cpu
HWY_POP_ATTRIBUTES

namespace ridge::cpu {
namespace {

template <int R = 1>
void fill_tiles(MatmulKernels& table) {
  table.packed[R][1] = dot_tile<R, 1, true>;
  table.packed[R][2] = dot_tile<R, 2, true>;
  table.strided[R][1] = dot_tile<R, 1, false>;
  table.strided[R][2] = dot_tile<R, 2, false>;
  if constexpr (R < kRows) fill_tiles<R + 1>(table);
}

MatmulKernels make_table() {
  MatmulKernels table = matmul_kernels(IsaTier::avx512);
  static_assert(kVectors <= kMaxTileVectors && kRows <= kMaxTileRows);
  table.tile_rows = table.narrow_rows = kRows, table.tile_vectors = kVectors;
  fill_tiles(table);
  table.pack[storage_index(DType::bf16)] = pack_pairs;
  table.widen[storage_index(DType::bf16)] = copy_pairs;
  table.store[storage_index(DType::bf16)] = store_bf16;
  table.join = join_pairs;
  table.writes_bf16 = true;
  return table;
}

}  // namespace

const MatmulKernels* pair_kernels(IsaTier tier) {
  static const MatmulKernels table = make_table();
  return has_bf16(tier) ? &table : nullptr;
}

}  // namespace ridge::cpu

#else

namespace ridge::cpu {

const MatmulKernels* pair_kernels(IsaTier) { return nullptr; }

}  // namespace ridge::cpu

#endif
