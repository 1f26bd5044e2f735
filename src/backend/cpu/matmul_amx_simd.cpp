// Products of two bf16 operands on matrix units (AMX): 16 rows of 32 elements times 32 elements of 16 columns in one instruction, 16 times as many products as
// a dot product of pairs. Panels of B are those of matmul_bf16.cpp, which is the order in which the units take them; A is read by rows.
#include "backend/cpu/matmul_kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include "base/matrix_units.h"

HWY_PUSH_ATTRIBUTES("avx512f,avx512vl,avx512dq,avx512bw,avx512bf16")
namespace ridge::cpu {
namespace {

constexpr int kUnitRows = 16, kUnitPairs = 16;  // of a tile register: 16 rows of 64 bytes

// The rows and columns that this thread's tile registers are configured for; 0: they are released.
template <class Units>
thread_local int64_t configured = 0;

// Registers 0 to 3 are sums, 4 and 5 rows of A, 6 and 7 columns of B. The last rows and columns may be fewer than 16.
template <class Units>
HWY_NOINLINE void configure(int64_t rows, int64_t columns) {
  TileForms forms;
  const int64_t high[2] = {rows < kUnitRows ? rows : kUnitRows, rows > kUnitRows ? rows - kUnitRows : 1};
  const int64_t wide[2] = {columns < kUnitRows ? columns : kUnitRows, columns > kUnitRows ? columns - kUnitRows : 1};
  const auto set = [&](int tile, int64_t count, int64_t bytes) { forms.rows[tile] = uint8_t(count), forms.row_bytes[tile] = uint16_t(bytes); };
  for (int m = 0; m < 2; ++m) {
    for (int n = 0; n < 2; ++n) set(2 * m + n, high[m], wide[n] * 4);
    set(4 + m, high[m], 64);
    set(6 + m, kUnitPairs, wide[m] * 4);
  }
  Units::configure(forms);
  configured<Units> = rows * 64 + columns;
}

template <class Units>
void release_units() {
  if (configured<Units>) Units::release();
  configured<Units> = 0;
}

// 16 pairs along K of all rows and columns. Strides are in bytes.
template <class Units, int M, int N>
HWY_INLINE void add_products(const float* a, int64_t a_row, const float* b, int64_t b_k) {
  Units::template load<6>(b, b_k);
  Units::template load<4>(a, a_row);
  Units::template add_products<0, 4, 6>();
  if constexpr (N == 2) {
    Units::template load<7>(b + kUnitRows, b_k);
    Units::template add_products<1, 4, 7>();
  }
  if constexpr (M == 2) {
    Units::template load<5>(a + kUnitRows * (a_row / 4), a_row);
    Units::template add_products<2, 5, 6>();
    if constexpr (N == 2) Units::template add_products<3, 5, 7>();
  }
}

// The last pairs along K, fewer than 16: copies whose other pairs are zero in both operands, so that nothing which is not finite meets a zero.
template <class Units, int M, int N>
HWY_NOINLINE void add_last_products(const TileArgs& t, const float* a, const float* b, int64_t pairs) {
  alignas(64) float last_a[M * kUnitRows * kUnitPairs], last_b[kUnitPairs * N * kUnitRows] = {};
  const __mmask16 live = __mmask16((1u << pairs) - 1);
  for (int64_t r = 0; r < t.rows; ++r) _mm512_store_ps(last_a + r * kUnitPairs, _mm512_maskz_loadu_ps(live, a + r * t.a_row));
  for (int64_t k = 0; k < pairs; ++k)
    for (int v = 0; v < N; ++v) {
      const int64_t there = t.cols - v * kUnitRows;
      const __mmask16 columns = there >= kUnitRows ? __mmask16(0xffff) : __mmask16((1u << there) - 1);
      _mm512_store_ps(last_b + (k * N + v) * kUnitRows, _mm512_maskz_loadu_ps(columns, b + k * t.b_k + v * kUnitRows));
    }
  add_products<Units, M, N>(last_a, kUnitPairs * 4, last_b, N * kUnitRows * 4);
}

// Rows up to M * 16, columns up to N * 16.
template <class Units, int M, int N>
void unit_tile(const TileArgs& t) {
  if (configured<Units> != t.rows * 64 + t.cols) configure<Units>(t.rows, t.cols);
  const int64_t c_row = t.c_row * 4, a_row = t.a_row * 4, b_k = t.b_k * 4;
  float* const lower = t.c + kUnitRows * t.c_row;
  if (t.add) {
    Units::template load<0>(t.c, c_row);
    if constexpr (N == 2) Units::template load<1>(t.c + kUnitRows, c_row);
    if constexpr (M == 2) Units::template load<2>(lower, c_row);
    if constexpr (M == 2 && N == 2) Units::template load<3>(lower + kUnitRows, c_row);
  } else {
    Units::template zero<0>();
    if constexpr (N == 2) Units::template zero<1>();
    if constexpr (M == 2) Units::template zero<2>();
    if constexpr (M == 2 && N == 2) Units::template zero<3>();
  }
  const float* b = t.b;
  const int64_t b_step = kUnitPairs * t.b_k;
  for (int64_t i = 0; i < t.stretches; ++i) {
    const float* a = t.a + (t.stretch_at ? t.stretch_at[i] : 0);
    int64_t k = t.k;
    for (; k >= kUnitPairs; k -= kUnitPairs, a += kUnitPairs, b += b_step) add_products<Units, M, N>(a, a_row, b, b_k);
    if (k > 0) add_last_products<Units, M, N>(t, a, b, k);
    b += k * t.b_k;
  }
  Units::template store<0>(t.c, c_row);
  if constexpr (N == 2) Units::template store<1>(t.c + kUnitRows, c_row);
  if constexpr (M == 2) Units::template store<2>(lower, c_row);
  if constexpr (M == 2 && N == 2) Units::template store<3>(lower + kUnitRows, c_row);
}

// ---- rows of A from columns

HWY_INLINE __m512i interleaved(__m256i even, __m256i odd) {
  return _mm512_or_si512(_mm512_cvtepu16_epi32(even), _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16));
}

// Transposes 16 vectors of 16 pairs.
HWY_INLINE void transpose(__m512i (&v)[16]) {
  __m512i w[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) w[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]), w[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    v[i] = _mm512_unpacklo_epi64(w[i], w[i + 2]), v[i + 1] = _mm512_unpackhi_epi64(w[i], w[i + 2]);
    v[i + 2] = _mm512_unpacklo_epi64(w[i + 1], w[i + 3]), v[i + 3] = _mm512_unpackhi_epi64(w[i + 1], w[i + 3]);
  }
  // v[4 i + j] has in its 128-bit block b the rows 4 i to 4 i + 3 of column 4 b + j.
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const __m512i a = _mm512_shuffle_i32x4(v[j], v[4 + j], 0x88), b = _mm512_shuffle_i32x4(v[8 + j], v[12 + j], 0x88);
    const __m512i c = _mm512_shuffle_i32x4(v[j], v[4 + j], 0xdd), d = _mm512_shuffle_i32x4(v[8 + j], v[12 + j], 0xdd);
    w[j] = _mm512_shuffle_i32x4(a, b, 0x88), w[8 + j] = _mm512_shuffle_i32x4(a, b, 0xdd);
    w[4 + j] = _mm512_shuffle_i32x4(c, d, 0x88), w[12 + j] = _mm512_shuffle_i32x4(c, d, 0xdd);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) v[i] = w[i];
}

// Neighbouring rows are neighbours in memory: 16 rows of up to 16 pairs at a time.
HWY_NOINLINE void pack_columns(const uint16_t* src, const PackArgs& p) {
  for (int64_t k = 0; k < p.depth; k += kUnitPairs) {
    const int64_t pairs = p.depth - k < kUnitPairs ? p.depth - k : kUnitPairs, size = p.k_size - 2 * k;
    const __mmask16 put = __mmask16((1u << pairs) - 1);
    for (int64_t r = 0; r < p.live; r += kUnitRows) {
      const int64_t rows = p.live - r < kUnitRows ? p.live - r : kUnitRows;
      const __mmask16 live = __mmask16((1u << rows) - 1);
      const uint16_t* from = src + 2 * k * p.k.stride + r;
      const auto line = [&](int64_t i) { return i < size ? _mm256_maskz_loadu_epi16(live, from + i * p.k.stride) : _mm256_setzero_si256(); };
      __m512i v[16];
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) v[i] = interleaved(line(2 * i), line(2 * i + 1));
      transpose(v);
      float* const to = p.dst + r * p.width + k;
      for (int64_t i = 0; i < rows; ++i) _mm512_mask_storeu_epi32(to + i * p.width, put, v[i]);
    }
  }
}

HWY_NOINLINE void pack_any_rows(const uint16_t* src, const PackArgs& p) {
  for (int64_t r = 0; r < p.live; ++r) {
    const uint16_t* row = src + p.column(p.first_column + r);
    for (int64_t k = 0; k < p.depth; ++k) {
      const uint32_t low = row[p.k(p.first_k + 2 * k)], high = 2 * k + 1 < p.k_size ? row[p.k(p.first_k + 2 * k + 1)] : 0;
      const uint32_t pair = low | high << 16;
      __builtin_memcpy(p.dst + r * p.width + k, &pair, 4);
    }
  }
}

void pack_rows_of_pairs(const PackArgs& p) {
  const uint16_t* src = static_cast<const uint16_t*>(p.src);
  if (p.column.regular() && p.column.stride == 1 && p.k.regular()) return pack_columns(src + p.first_column + p.first_k * p.k.stride, p);
  pack_any_rows(src, p);
}

}  // namespace
}  // namespace ridge::cpu
HWY_POP_ATTRIBUTES

namespace ridge::cpu {
namespace {

template <class Units>
MatmulKernels units_table() {
  MatmulKernels made = *pair_kernels(IsaTier::avx512bf16);
  made.writes_bf16 = false;
  made.tile_rows = made.narrow_rows = 2 * kUnitRows, made.tile_vectors = 2;
  made.flops_per_cycle = 512;
  made.depth = 256;
  made.k_grain = kUnitPairs;
  made.release = release_units<Units>;
  made.pack_rows = pack_rows_of_pairs;
  for (int rows = 1; rows <= 2 * kUnitRows; ++rows) {
    const bool two = rows > kUnitRows;
    made.packed[rows][1] = made.strided[rows][1] = two ? unit_tile<Units, 2, 1> : unit_tile<Units, 1, 1>;
    made.packed[rows][2] = made.strided[rows][2] = two ? unit_tile<Units, 2, 2> : unit_tile<Units, 1, 2>;
  }
  return made;
}

}  // namespace

const MatmulKernels* unit_kernels(IsaTier tier) {
  static const MatmulKernels table = isa_tier() == IsaTier::amx ? units_table<HardwareUnits>() : units_table<SimulatedUnits>();
  return tier == IsaTier::amx ? &table : nullptr;
}

}  // namespace ridge::cpu

#else

namespace ridge::cpu {

const MatmulKernels* unit_kernels(IsaTier) { return nullptr; }

}  // namespace ridge::cpu

#endif
