// Shared by attention's forward and backward kernels. A block's queries run along the vector lanes, and keys and features are rows, so softmax needs no
// horizontal step, and K and V are read in place, by broadcast.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "backend/cpu/attention_kernels.h"
#include "base/half.h"
#include "base/rng.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

// Included once per target.
#if defined(RIDGE_ATTENTION_TILES_SIMD_H) == defined(HWY_TARGET_TOGGLE)
#ifdef RIDGE_ATTENTION_TILES_SIMD_H
#undef RIDGE_ATTENTION_TILES_SIMD_H
#else
#define RIDGE_ATTENTION_TILES_SIMD_H
#endif

HWY_BEFORE_NAMESPACE();
namespace ridge::cpu {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

using F = hn::ScalableTag<float>;
using U = hn::ScalableTag<uint32_t>;
using Vec = hn::Vec<F>;
constexpr int kLanes = HWY_LANES(float);
constexpr int kVecs = 4;                                                   // query vectors in a block
constexpr int kQ = kVecs * kLanes;                                         // queries in a block
constexpr int kRows = HWY_TARGET == HWY_AVX3 || HWY_ARCH_ARM_A64 ? 8 : 4;  // rows in a register tile, two vectors wide
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kLog2e = 1.44269504f, kLn2 = 0.693147181f;

// 2^x within 2 ulp for x below 128: exactly 1 at 0, and 0 below 2^-126 (with AVX-512, if denormals are flushed); NaN propagates.
struct Exp2 {
  Vec c5, c4, c3, c2, c1, c0, magic, limit;
  HWY_INLINE explicit Exp2(const Exp2Table& t) {
    const F d;
    c5 = hn::Set(d, t.values[0]), c4 = hn::Set(d, t.values[1]), c3 = hn::Set(d, t.values[2]), c2 = hn::Set(d, t.values[3]);
    c1 = hn::Set(d, t.values[4]), c0 = hn::Set(d, t.values[5]), magic = hn::Set(d, t.values[6]), limit = hn::Set(d, t.values[7]);
  }
  // For f in [-1/2, 1/2].
  HWY_INLINE Vec small(Vec f) const {
    Vec p = hn::MulAdd(c5, f, c4);
    p = hn::MulAdd(p, f, c3);
    p = hn::MulAdd(p, f, c2);
    p = hn::MulAdd(p, f, c1);
    return hn::MulAdd(p, f, c0);
  }
  HWY_INLINE Vec operator()(Vec x) const {
#if HWY_TARGET == HWY_AVX3
    const Vec n = hn::Round(x);
    return Vec{_mm512_scalef_ps(small(hn::Sub(x, n)).raw, n.raw)};  // 0 for -inf as well
#else
    const F d;
    const hn::RebindToSigned<F> di;
    const Vec t = hn::Add(x, magic), p = small(hn::Sub(x, hn::Sub(t, magic)));
    const auto bits = hn::Add(hn::BitCast(di, p), hn::ShiftLeft<23>(hn::BitCast(di, t)));
    return hn::IfThenZeroElse(hn::Lt(x, limit), hn::BitCast(d, bits));
#endif
  }
};

// log2 of a normal positive number 2^e * m with m in [sqrt(1/2), sqrt(2)), by the series of atanh((m - 1) / (m + 1)).
HWY_INLINE Vec log2_lanes(Vec x) {
  const F d;
  const hn::RebindToSigned<F> di;
  const auto bits = hn::Sub(hn::BitCast(di, x), hn::Set(di, 0x3f3504f3));
  const auto e = hn::ShiftRight<23>(bits);
  const Vec m = hn::BitCast(d, hn::Sub(hn::BitCast(di, x), hn::ShiftLeft<23>(e)));
  const Vec s = hn::Div(hn::Sub(m, hn::Set(d, 1.0f)), hn::Add(m, hn::Set(d, 1.0f)));
  const Vec s2 = hn::Mul(s, s);
  Vec p = hn::Set(d, 2.0f / 9 * kLog2e);
  p = hn::MulAdd(p, s2, hn::Set(d, 2.0f / 7 * kLog2e));
  p = hn::MulAdd(p, s2, hn::Set(d, 2.0f / 5 * kLog2e));
  p = hn::MulAdd(p, s2, hn::Set(d, 2.0f / 3 * kLog2e));
  p = hn::MulAdd(p, s2, hn::Set(d, 2.0f * kLog2e));
  return hn::MulAdd(p, s, hn::ConvertTo(d, e));
}

// The factors of products: f32, or pairs of bf16 along the summed axis, each stored in place of one f32 in memory and registers.
enum class Arithmetic { f32, pairs };

// a * b + acc per element.
template <Arithmetic kArithmetic>
HWY_INLINE Vec multiply_add(Vec a, Vec b, Vec acc) {
#if HWY_TARGET == HWY_AVX3
  if constexpr (kArithmetic == Arithmetic::pairs) {
    // Highway's target lacks this instruction; only CPUs that have it get here.
    asm("vdpbf16ps %2, %1, %0" : "+v"(acc.raw) : "v"(a.raw), "v"(b.raw));
    return acc;
  }
#endif
  return hn::MulAdd(a, b, acc);
}

// One element in all lanes; pairs may be at any even address.
HWY_INLINE Vec broadcast(const float* p) {
  float x;
  __builtin_memcpy(&x, p, sizeof(x));
  return hn::Set(F(), x);
}

// acc[r][n] += sum over k of a(r, k) * b[k][n]. Either the rows of a are contiguous in k, or its columns are contiguous in r.
// Three rows share an address register, so that eight rows and the loop fit in the general-purpose registers.
template <bool kRowsContiguous, Arithmetic kArithmetic, int R, int N>
HWY_INLINE void multiply(const float* HWY_RESTRICT a, size_t stride, const float* HWY_RESTRICT b, size_t b_stride, size_t n, Vec (&acc)[R][N]) {
  const F d;
  const float *a3 = a + 3 * stride, *a6 = a + 6 * stride;
  for (size_t k = 0; k < n; ++k) {
    Vec w[N];
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) w[i] = hn::LoadU(d, b + i * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const float* row = r < 3 ? a : r < 6 ? a3 : a6;
      const Vec x = broadcast(kRowsContiguous ? row + size_t(r % 3) * stride : a + r);
#pragma GCC unroll 8
      for (int i = 0; i < N; ++i) acc[r][i] = multiply_add<kArithmetic>(x, w[i], acc[r][i]);
    }
    b += b_stride;
    if constexpr (kRowsContiguous) {
      ++a, ++a3, ++a6;
    } else {
      a += stride;
    }
  }
}

template <int R, int N>
HWY_INLINE void set_zero(Vec (&acc)[R][N]) {
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) acc[r][i] = hn::Zero(F());
}

// f32 rows to read, in place or copied to scratch.
struct Rows {
  const float* p;
  int64_t stride;
};

inline float to_float(DType t, const void* base, int64_t i) {
  if (t == DType::f32) return static_cast<const float*>(base)[i];
  const uint16_t h = static_cast<const uint16_t*>(base)[i];
  return t == DType::bf16 ? bf16_to_f32(h) : f16_to_f32(h);
}

// Reads [rows][cols] of any storage type and strides as f32. Rows are copied unless they are f32 and contiguous and, if `whole` asks that vectors can be read
// past the last column, a multiple of the lanes long.
inline Rows fetch(DType t, const std::byte* src, int64_t offset, int64_t row, int64_t col, int64_t rows, int64_t cols, bool whole, float* dst, int64_t padded) {
  const F d;
  if (t == DType::f32 && (col == 1 || cols == 1) && (!whole || cols % kLanes == 0)) return {reinterpret_cast<const float*>(src) + offset, row};
  for (int64_t i = 0; i < rows; ++i, offset += row) {
    float* to = dst + i * padded;
    int64_t c = 0;
    if (t != DType::f32 && col == 1) {
      const uint16_t* from = reinterpret_cast<const uint16_t*>(src) + offset;
      const hn::Rebind<uint16_t, F> d16;
      const hn::Rebind<hwy::float16_t, F> df16;
      for (; c + kLanes <= cols; c += kLanes) {
        const auto h = hn::LoadU(d16, from + c);
        hn::StoreU(t == DType::bf16 ? hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(U(), h))) : hn::PromoteTo(d, hn::BitCast(df16, h)), d, to + c);
      }
    }
    for (; c < cols; ++c) to[c] = to_float(t, src, offset + c * col);
    for (; c < padded; ++c) to[c] = 0;
  }
  return {dst, padded};
}

// ---- pairs

// Rows of contiguous bf16 features as rows of pairs.
inline Rows pair_rows(const std::byte* src, int64_t offset, int64_t row) {
  return {reinterpret_cast<const float*>(reinterpret_cast<const uint16_t*>(src) + offset), row / 2};
}

// dst[i / 2][c] = the pair (src[i][c], src[i + 1][c]); an odd last row is paired with zero.
HWY_NOINLINE Rows interleave_rows(const std::byte* src, int64_t offset, int64_t row, int64_t rows, int64_t cols, float* HWY_RESTRICT dst, int64_t padded) {
  const U u;
  const hn::Rebind<uint16_t, U> d16;
  const uint16_t* from = reinterpret_cast<const uint16_t*>(src) + offset;
  uint32_t* to = reinterpret_cast<uint32_t*>(dst);
  for (int64_t i = 0; i < rows; i += 2, from += 2 * row, to += padded) {
    const bool both = i + 1 < rows;
    int64_t c = 0;
    for (; c + kLanes <= cols; c += kLanes) {
      auto pair = hn::PromoteTo(u, hn::LoadU(d16, from + c));
      if (both) pair = hn::Or(pair, hn::ShiftLeft<16>(hn::PromoteTo(u, hn::LoadU(d16, from + row + c))));
      hn::StoreU(pair, u, to + c);
    }
    for (; c < cols; ++c) to[c] = from[c] | (both ? uint32_t(from[row + c]) << 16 : 0u);
    for (; c < padded; ++c) to[c] = 0;
  }
  return {dst, padded};
}

// Rounds each lane to bf16, to nearest even; the result is in the upper half of the lane.
HWY_INLINE hn::Vec<U> rounded(Vec x) {
  const U u;
  const auto bits = hn::BitCast(u, x);
  return hn::Add(hn::Add(bits, hn::Set(u, 0x7fffu)), hn::And(hn::ShiftRight<16>(bits), hn::Set(u, 1u)));  // values that are not finite do not matter here
}

// Pairs the lanes of two rows.
HWY_INLINE hn::Vec<U> paired(hn::Vec<U> low, hn::Vec<U> high) { return hn::Or(hn::ShiftRight<16>(low), hn::And(high, hn::Set(U(), 0xffff0000u))); }

// Writes n contiguous floats to a row of any storage type and feature stride.
inline void put(DType t, std::byte* dst, int64_t offset, int64_t col, const float* from, int64_t n) {
  const F d;
  int64_t c = 0;
  if (t == DType::f32) {
    float* to = reinterpret_cast<float*>(dst) + offset;
    if (col == 1) {
      for (; c + kLanes <= n; c += kLanes) hn::StoreU(hn::LoadU(d, from + c), d, to + c);
    }
    for (; c < n; ++c) to[c * col] = from[c];
    return;
  }
  uint16_t* to = reinterpret_cast<uint16_t*>(dst) + offset;
  if (col == 1 && t == DType::bf16) {
    const hn::Rebind<uint16_t, F> d16;
    const U u;
    for (; c + kLanes <= n; c += kLanes) {
      const Vec x = hn::LoadU(d, from + c);
      const auto bits = hn::BitCast(u, x), high = hn::ShiftRight<16>(bits);
      const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(u, 0x7fffu)), hn::And(high, hn::Set(u, 1u))));
      const auto h = hn::IfThenElse(hn::RebindMask(u, hn::IsNaN(x)), hn::Or(high, hn::Set(u, 0x40u)), rounded);
      const hn::Rebind<int32_t, F> i32;
      hn::StoreU(hn::DemoteTo(d16, hn::BitCast(i32, h)), d16, to + c);
    }
  }
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2 || HWY_ARCH_ARM_A64
  if (col == 1 && t == DType::f16) {
    const hn::Rebind<hwy::float16_t, F> df16;
    const hn::Rebind<uint16_t, F> d16;
    for (; c + kLanes <= n; c += kLanes) hn::StoreU(hn::BitCast(d16, hn::DemoteTo(df16, hn::LoadU(d, from + c))), d16, to + c);
  }
#endif
  for (; c < n; ++c) to[c * col] = t == DType::bf16 ? f32_to_bf16(from[c]) : f32_to_f16(from[c]);
}

// Loads a vector of 128-bit blocks, each four rows below the previous one; transposing four such vectors within blocks gives four columns.
template <class D>
HWY_INLINE hn::Vec<D> load_blocks(D d, const float* p, size_t step) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    return hn::LoadU(d, p);
  } else {
    const hn::Half<D> half;
    return hn::Combine(d, load_blocks(half, p + hn::MaxLanes(half) / 4 * step, step), load_blocks(half, p, step));
  }
}

template <class D>
HWY_INLINE void store_blocks(D d, hn::Vec<D> v, float* p, size_t step) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    hn::StoreU(v, d, p);
  } else {
    const hn::Half<D> half;
    store_blocks(half, hn::LowerHalf(half, v), p, step);
    store_blocks(half, hn::UpperHalf(half, v), p + hn::MaxLanes(half) / 4 * step, step);
  }
}

HWY_INLINE void transpose_blocks(Vec (&a)[4]) {
  const F d;
  const hn::RepartitionToWide<U> w;
  const U u;
  const auto lo01 = hn::BitCast(w, hn::InterleaveLower(d, a[0], a[1])), lo23 = hn::BitCast(w, hn::InterleaveLower(d, a[2], a[3]));
  const auto hi01 = hn::BitCast(w, hn::InterleaveUpper(d, a[0], a[1])), hi23 = hn::BitCast(w, hn::InterleaveUpper(d, a[2], a[3]));
  a[0] = hn::BitCast(d, hn::BitCast(u, hn::InterleaveLower(w, lo01, lo23)));
  a[1] = hn::BitCast(d, hn::BitCast(u, hn::InterleaveUpper(w, lo01, lo23)));
  a[2] = hn::BitCast(d, hn::BitCast(u, hn::InterleaveLower(w, hi01, hi23)));
  a[3] = hn::BitCast(d, hn::BitCast(u, hn::InterleaveUpper(w, hi01, hi23)));
}

// dst[c][i] = factor * src[i][c], or the same bits if not scaled. Lanes past n repeat the last row, which is harmless: their results are not stored.
template <bool kScaled = true>
HWY_NOINLINE void transpose_in(Rows src, int64_t n, int64_t cols, float factor, float* HWY_RESTRICT dst) {
  const F d;
  const Vec f = hn::Set(d, factor);
  const size_t stride = size_t(src.stride);
  for (int64_t i0 = 0; i0 < n; i0 += kLanes) {
    const float* rows = src.p + i0 * src.stride;
    int64_t c = 0;
    if (i0 + kLanes <= n) {
      for (; c + 4 <= cols; c += 4) {
        Vec a[4];
#pragma GCC unroll 4
        for (int r = 0; r < 4; ++r) a[r] = load_blocks(d, rows + c + size_t(r) * stride, 4 * stride);
        transpose_blocks(a);
#pragma GCC unroll 4
        for (int r = 0; r < 4; ++r) hn::Store(kScaled ? hn::Mul(a[r], f) : a[r], d, dst + (c + r) * kQ + i0);
      }
    }
    for (; c < cols; ++c)
      for (int64_t i = 0; i < kLanes; ++i) {
        const float* from = rows + std::min(i, n - 1 - i0) * src.stride + c;
        if constexpr (kScaled)
          dst[c * kQ + i0 + i] = *from * factor;
        else
          std::memcpy(dst + c * kQ + i0 + i, from, sizeof(float));
      }
  }
}

// The reverse: out[i][c] = factor[i] * src[c][i] for i < n, in the storage type. `rows` holds one block in f32.
HWY_NOINLINE void transpose_out(const float* HWY_RESTRICT src, const float* HWY_RESTRICT factor, int64_t n, int64_t cols, DType t, std::byte* out,
                                int64_t offset, const AttentionDesc::Strides& strides, float* rows, int64_t padded) {
  const F d;
  const bool direct = t == DType::f32 && strides[3] == 1;
  float* to = direct ? reinterpret_cast<float*>(out) + offset : rows;
  const int64_t stride = direct ? strides[2] : padded;
  for (int64_t i0 = 0; i0 < n; i0 += kLanes) {
    const Vec f = hn::Load(d, factor + i0);
    const int64_t live = std::min<int64_t>(kLanes, n - i0);
    int64_t c = 0;
    if (live == kLanes) {
      for (; c + 4 <= cols; c += 4) {
        Vec a[4];
#pragma GCC unroll 8
        for (int r = 0; r < 4; ++r) a[r] = hn::Mul(hn::Load(d, src + (c + r) * kQ + i0), f);
        transpose_blocks(a);
#pragma GCC unroll 8
        for (int r = 0; r < 4; ++r) store_blocks(d, a[r], to + (i0 + r) * stride + c, size_t(4 * stride));
      }
    }
    for (; c < cols; ++c)
      for (int64_t i = i0; i < i0 + live; ++i) to[i * stride + c] = src[c * kQ + i] * factor[i];
  }
  if (!direct)
    for (int64_t i = 0; i < n; ++i) put(t, out, offset + i * strides[2], strides[3], rows + i * padded, cols);
}

// Philox for a vector of 64-bit block numbers, given as low and high halves.
HWY_INLINE void philox_lanes(RandomKey key, hn::Vec<U> low, hn::Vec<U> high, hn::Vec<U> (&c)[4]) {
  const U u;
  const hn::RepartitionToWide<U> w;
  c[0] = low, c[1] = high, c[2] = hn::Set(u, key.step), c[3] = hn::Set(u, key.stream);
  uint32_t k0 = uint32_t(key.seed), k1 = uint32_t(key.seed >> 32);
  const auto m0 = hn::Set(u, 0xD2511F53u), m1 = hn::Set(u, 0xCD9E8D57u);
  for (int round = 0; round < 10; ++round) {
    const auto even0 = hn::MulEven(c[0], m0), odd0 = hn::MulEven(hn::BitCast(u, hn::ShiftRight<32>(hn::BitCast(w, c[0]))), m0);
    const auto even1 = hn::MulEven(c[2], m1), odd1 = hn::MulEven(hn::BitCast(u, hn::ShiftRight<32>(hn::BitCast(w, c[2]))), m1);
    const auto high0 = hn::OddEven(hn::BitCast(u, odd0), hn::BitCast(u, hn::ShiftRight<32>(even0)));
    const auto high1 = hn::OddEven(hn::BitCast(u, odd1), hn::BitCast(u, hn::ShiftRight<32>(even1)));
    const auto low0 = hn::OddEven(hn::BitCast(u, hn::ShiftLeft<32>(odd0)), hn::BitCast(u, even0));
    const auto low1 = hn::OddEven(hn::BitCast(u, hn::ShiftLeft<32>(odd1)), hn::BitCast(u, even1));
    const auto n0 = hn::Xor(hn::Xor(high1, c[1]), hn::Set(u, k0)), n2 = hn::Xor(hn::Xor(high0, c[3]), hn::Set(u, k1));
    c[0] = n0, c[1] = low1, c[2] = n2, c[3] = low0;
    k0 += 0x9E3779B9, k1 += 0xBB67AE85;
  }
}

// The inputs of a unit other than q, k and v, resolved once.
struct Context {
  const AttentionArgs& args;
  Worker& worker;
  float* scratch;
  AttentionScratch at;
  int64_t keys;   // number of valid keys
  int64_t shift;  // causal: query i sees keys up to i + shift
  RandomKey random;
  uint64_t base = 0;  // first element index of this batch
  float* part(int64_t offset) const { return scratch + offset; }

  Context(const AttentionArgs& a, Worker& w, int64_t summed)
      : args(a), worker(w), scratch(reinterpret_cast<float*>(w.scratch)), at(a.padded, summed), keys(a.desc.keys) {
    if (a.length) keys = std::clamp<int64_t>(*w.at<int64_t>(a.length), 0, keys);
    shift = keys - a.desc.queries;
    if (a.seed) {
      random = {uint64_t(*w.at<int64_t>(a.seed)), uint32_t(*w.at<int64_t>(a.step)), a.desc.stream};
      base = uint64_t(*w.at<int64_t>(a.base));
    }
  }
  const std::byte* data(Ref r) const { return worker.at<const std::byte>(r); }

  // Keys visible to at least one query below `query_end`.
  int64_t visible(int64_t query_end) const { return args.desc.causal ? std::clamp<int64_t>(query_end + shift, 0, keys) : keys; }
};

// Prefetches the rows that the next block will read or write, a few at a time while this block computes. Rows are strided and each page holds little of a head,
// so the hardware prefetcher does not predict them.
struct Ahead {
  struct Operand {
    const std::byte* first;
    int64_t stride, rows;  // bytes
  } operands[8];
  int count = 0;
  int64_t bytes = 0, per_step = 1;

  void add(const Context& x, Ref r, const AttentionDesc::Strides& s, int64_t b, int64_t h, int64_t i, int64_t rows) {
    if (rows <= 0) return;
    const int64_t size = size_of(x.args.desc.dtype);
    bytes = x.args.desc.dim * size;
    operands[count++] = {x.data(r) + (b * s[0] + h * s[1] + i * s[2]) * size, s[2] * size, rows};
  }
  void spread(int64_t steps) {
    for (int i = 0; i < count; ++i) per_step = std::max(per_step, (operands[i].rows + steps - 1) / std::max<int64_t>(steps, 1));
  }
  HWY_INLINE void step(int64_t at) const {
    for (int i = 0; i < count; ++i)
      for (int64_t row = at * per_step; row < std::min((at + 1) * per_step, operands[i].rows); ++row)
        for (int64_t c = 0; c < bytes; c += 64) hwy::Prefetch(operands[i].first + row * operands[i].stride + c);
  }
};

// A block of queries of one head against a block of keys.
struct Block {
  int64_t b, h, i0, n;     // queries
  int64_t k0 = 0, nk = 0;  // keys
  int64_t first = 0;       // the first lane that sees key 0 of the block; lane i sees key j if i >= first + j
  int vectors() const { return int((n + kLanes - 1) / kLanes); }
  // Keys of the block that vector v sees, and the first vector and lane that see key j.
  int64_t limit(int v) const { return std::clamp<int64_t>((v + 1) * kLanes - first, 0, nk); }
  int64_t lane_of(int64_t j) const { return std::max<int64_t>(0, first + j); }
  int vector_of(int64_t j) const { return int(lane_of(j) / kLanes); }
  // Whether some lane of vector v does not see all of the R keys from j on.
  bool cuts(int64_t j, int R, int v) const { return first + j + R - 1 > v * kLanes; }
};

// A block's mask in additive form, [key][query]; null if there is no mask.
inline const float* bias_tile(const Context& x, const Block& k) {
  const AttentionDesc& desc = x.args.desc;
  if (desc.mask == AttentionDesc::Mask::none) return nullptr;
  const auto& s = desc.mask_strides;
  const int64_t offset = k.b * s[0] + k.h * s[1] + k.i0 * s[2] + k.k0 * s[3];
  const int64_t rows = s[2] == 0 ? 1 : k.n;
  float* copy = x.part(x.at.rows);
  Rows from;
  if (desc.mask == AttentionDesc::Mask::additive) {
    from = fetch(DType::f32, x.data(x.args.mask), offset, s[2], s[3], rows, k.nk, false, copy, kAttentionKeys);
  } else {
    const uint8_t* may = x.worker.at<const uint8_t>(x.args.mask) + offset;
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < k.nk; ++j) copy[i * kAttentionKeys + j] = may[i * s[2] + j * s[3]] ? 0.0f : -kInf;
    from = {copy, kAttentionKeys};
  }
  if (rows == 1) from.stride = 0;
  transpose_in(from, k.n, k.nk, 1.0f, x.part(x.at.bias));
  return x.part(x.at.bias);
}

// 0 or 1 / (1 - p) for each element of a block, [key][query]; null without dropout. Rows of the tile of random words are whole Philox blocks; a lane whose
// first element is not at the start of a Philox block takes its words up to three rows later.
inline const float* keep_tile(const Context& x, const Block& k) {
  const AttentionDesc& desc = x.args.desc;
  if (!x.args.seed) return nullptr;
  const F d;
  const U u;
  uint32_t* words = reinterpret_cast<uint32_t*>(x.part(x.at.words));
  float* out = x.part(x.at.keep);
  const Vec limit = hn::Set(d, float(desc.dropout)), kept = hn::Set(d, float(1 / (1 - desc.dropout)));
  for (int v = 0; v < k.vectors(); ++v) {
    HWY_ALIGN uint32_t low[kLanes], high[kLanes], phase[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      const int64_t query = k.i0 + std::min<int64_t>(v * kLanes + i, k.n - 1);
      const uint64_t index = x.base + uint64_t((k.b * desc.heads + k.h) * desc.queries + query) * uint64_t(desc.keys) + uint64_t(k.k0);
      low[i] = uint32_t(index >> 2), high[i] = uint32_t(index >> 34), phase[i] = uint32_t(index & 3);
    }
    const auto low0 = hn::Load(u, low), high0 = hn::Load(u, high), shift = hn::Load(u, phase);
    const int64_t rows = k.nk + 3;
    for (int64_t t = 0; 4 * t < rows; ++t) {
      const auto at = hn::Add(low0, hn::Set(u, uint32_t(t)));
      const auto carry = hn::IfThenElseZero(hn::Lt(at, low0), hn::Set(u, 1u));
      hn::Vec<U> c[4];
      philox_lanes(x.random, at, hn::Add(high0, carry), c);
      for (int w = 0; w < 4; ++w) hn::Store(c[w], u, words + (4 * t + w) * kLanes);
    }
    const auto is1 = hn::Eq(shift, hn::Set(u, 1u)), is2 = hn::Eq(shift, hn::Set(u, 2u)), is3 = hn::Eq(shift, hn::Set(u, 3u));
    for (int64_t j = 0; j < k.nk; ++j) {
      const uint32_t* from = words + j * kLanes;
      auto word = hn::Load(u, from);
      word = hn::IfThenElse(is1, hn::Load(u, from + kLanes), word);
      word = hn::IfThenElse(is2, hn::Load(u, from + 2 * kLanes), word);
      word = hn::IfThenElse(is3, hn::Load(u, from + 3 * kLanes), word);
      const hn::RebindToSigned<F> di;
      const Vec uniform = hn::Mul(hn::ConvertTo(d, hn::BitCast(di, hn::ShiftRight<8>(word))), hn::Set(d, 0x1p-24f));
      hn::Store(hn::IfThenElseZero(hn::Ge(uniform, limit), kept), d, out + j * kQ + v * kLanes);
    }
  }
  return out;
}

// acc_t[c][lanes of v, v + 1] (+)= sum over the block's keys of rows[key][c] * tile[key][lanes]; each vector stops at its own last key. The previous value is
// dropped, added, or added times a factor per lane.
enum class Start { zero, add, scale };

template <int R, bool kTwo, Start kStart, Arithmetic kArithmetic>
HWY_INLINE void sum_rows_tile(const float* rows, size_t stride, const float* tile, int64_t n0, int64_t n1, const float* factor, float* out) {
  const F d;
  constexpr int N = kTwo ? 2 : 1;
  Vec acc[R][N];
  if constexpr (kStart == Start::zero) {
    set_zero(acc);
  } else {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int i = 0; i < N; ++i) {
        acc[r][i] = hn::Load(d, out + r * kQ + i * kLanes);
        if (kStart == Start::scale) acc[r][i] = hn::Mul(acc[r][i], hn::Load(d, factor + i * kLanes));
      }
  }
  multiply<false, kArithmetic>(rows, stride, tile, kQ, size_t(n0), acc);
  if constexpr (kTwo) {
    if (n1 > n0) {
      Vec last[R][1];
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) last[r][0] = acc[r][1];
      multiply<false, kArithmetic>(rows + n0 * stride, stride, tile + n0 * kQ + kLanes, kQ, size_t(n1 - n0), last);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) acc[r][1] = last[r][0];
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) hn::Store(acc[r][i], d, out + r * kQ + i * kLanes);
}

template <int R, Start kStart, Arithmetic kArithmetic>
HWY_INLINE void sum_rows_tiles(Rows rows, const float* tile, const Block& k, int64_t c, const float* factor, float* out) {
  const auto limit = [&](int v) { return kArithmetic == Arithmetic::pairs ? (k.limit(v) + 1) / 2 : k.limit(v); };
  for (int v = 0; v < k.vectors(); v += 2) {
    const float *t = tile + v * kLanes, *f = factor + v * kLanes;
    float* o = out + c * kQ + v * kLanes;
    if (v + 1 < k.vectors()) {
      sum_rows_tile<R, true, kStart, kArithmetic>(rows.p + c, size_t(rows.stride), t, limit(v), limit(v + 1), f, o);
    } else {
      sum_rows_tile<R, false, kStart, kArithmetic>(rows.p + c, size_t(rows.stride), t, limit(v), 0, f, o);
    }
  }
}

// With pairs, `rows` and `tile` hold pairs of keys.
template <Start kStart, Arithmetic kArithmetic>
HWY_NOINLINE void sum_rows(Rows rows, const float* tile, const Block& k, int64_t cols, const float* factor, float* out) {
  int64_t c = 0;
  for (; c + kRows <= cols; c += kRows) sum_rows_tiles<kRows, kStart, kArithmetic>(rows, tile, k, c, factor, out);
  for (; c + 4 <= cols; c += 4) sum_rows_tiles<4, kStart, kArithmetic>(rows, tile, k, c, factor, out);
  for (; c < cols; ++c) sum_rows_tiles<1, kStart, kArithmetic>(rows, tile, k, c, factor, out);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ridge::cpu
HWY_AFTER_NAMESPACE();

#endif  // once per target
