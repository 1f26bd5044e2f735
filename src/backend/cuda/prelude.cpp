#include "backend/cuda/prelude.h"

#include "backend/cuda/kernel.h"
#include "drivers/nvrtc.h"

namespace ridge::cuda {

// Instructions that C++ cannot say are in functions of their own, with a plain body for the simulator.
std::string_view prelude() {
  static constexpr std::string_view text = R"cuda(
typedef long long i64;
typedef unsigned long long u64;
typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned char u8;
#define RIDGE_INLINE __device__ __forceinline__
#ifdef RIDGE_SIMULATOR
#define RIDGE_CONSTANT
#else
#define RIDGE_CONSTANT __grid_constant__
#endif

// ---- half precision, as base/half.h ----
RIDGE_INLINE float bits_float(u32 u) { return __uint_as_float(u); }
RIDGE_INLINE u32 float_bits(float f) { return __float_as_uint(f); }
RIDGE_INLINE float bf16_to_f32(u16 h) { return bits_float((u32)h << 16); }
RIDGE_INLINE u16 f32_to_bf16(float f) {
#if !defined(RIDGE_SIMULATOR) && __CUDA_ARCH__ >= 800
  u16 h;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(f));
  return h;
#else
  u32 u = float_bits(f);
  if ((u & 0x7fffffffu) > 0x7f800000u) return (u16)((u >> 16) | 0x40);
  return (u16)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
#endif
}
RIDGE_INLINE float f16_to_f32(u16 h) {
#ifndef RIDGE_SIMULATOR
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
  return f;
#else
  u32 sign = (u32)(h & 0x8000) << 16, rest = h & 0x7fff;
  if (rest >= 0x7c00) return bits_float(sign | 0x7f800000u | (rest & 0x3ff) << 13 | (rest > 0x7c00 ? 0x400000u : 0u));
  if (rest < 0x400) return bits_float(sign | float_bits((float)rest * 0x1p-24f));
  return bits_float(sign | ((rest << 13) + 0x38000000u));
#endif
}
RIDGE_INLINE u16 f32_to_f16(float f) {
#ifndef RIDGE_SIMULATOR
  u16 h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
  return h;
#else
  u32 u = float_bits(f), sign = (u >> 16) & 0x8000, rest = u & 0x7fffffffu;
  if (rest > 0x7f800000u) return (u16)(sign | 0x7e00 | ((rest >> 13) & 0x3ff));
  if (rest >= 0x477ff000u) return (u16)(sign | 0x7c00);
  if (rest < 0x38800000u) return (u16)(sign | (float_bits(bits_float(rest) + 0x1p-1f) - 0x3f000000u));
  return (u16)(sign | ((rest + 0xfff + ((rest >> 13) & 1) - 0x38000000u) >> 13));
#endif
}
// Two at once, the first in the low half.
RIDGE_INLINE u32 f32_to_bf16x2(float low, float high) {
#if !defined(RIDGE_SIMULATOR) && __CUDA_ARCH__ >= 800
  u32 w;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(high), "f"(low));
  return w;
#else
  return (u32)f32_to_bf16(low) | (u32)f32_to_bf16(high) << 16;
#endif
}
RIDGE_INLINE u32 f32_to_f16x2(float low, float high) {
#if !defined(RIDGE_SIMULATOR) && __CUDA_ARCH__ >= 800
  u32 w;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(high), "f"(low));
  return w;
#else
  return (u32)f32_to_f16(low) | (u32)f32_to_f16(high) << 16;
#endif
}

// ---- element types as they lie in memory; in registers they are float, int or i64 ----
struct f16 { u16 bits; };
struct bf16 { u16 bits; };
struct truth { u8 bits; };
RIDGE_INLINE float widened(float x) { return x; }
RIDGE_INLINE float widened(bf16 x) { return bf16_to_f32(x.bits); }
RIDGE_INLINE float widened(f16 x) { return f16_to_f32(x.bits); }
RIDGE_INLINE int widened(int x) { return x; }
RIDGE_INLINE int widened(u8 x) { return x; }
RIDGE_INLINE int widened(truth x) { return x.bits; }
RIDGE_INLINE i64 widened(i64 x) { return x; }
RIDGE_INLINE void narrow(float& to, float x) { to = x; }
RIDGE_INLINE void narrow(bf16& to, float x) { to.bits = f32_to_bf16(x); }
RIDGE_INLINE void narrow(f16& to, float x) { to.bits = f32_to_f16(x); }
RIDGE_INLINE void narrow(int& to, int x) { to = x; }
RIDGE_INLINE void narrow(u8& to, int x) { to = (u8)x; }
RIDGE_INLINE void narrow(truth& to, int x) { to.bits = (u8)x; }
RIDGE_INLINE void narrow(i64& to, i64 x) { to = x; }
RIDGE_INLINE float bf16_round(float x) { return bf16_to_f32(f32_to_bf16(x)); }
RIDGE_INLINE float f16_round(float x) { return f16_to_f32(f32_to_f16(x)); }

// ---- memory: V elements at once; the address is a multiple of V elements or of 16 bytes ----
template <int kBytes> struct Words { static const int count = kBytes / 4; u32 w[kBytes / 4]; };
template <> struct Words<1> { static const int count = 1; u32 w[1]; };
template <> struct Words<2> { static const int count = 1; u32 w[1]; };

// kFixed: nobody writes there while the kernel runs, so that the read may be moved before stores.
template <bool kFixed, class T> RIDGE_INLINE T read(const void* p) { return kFixed ? __ldg((const T*)p) : *(const T*)p; }
template <bool kFixed, int kBytes> RIDGE_INLINE void read_words(Words<kBytes>& to, const void* p) {
  if constexpr (kBytes >= 16) {
#pragma unroll
    for (int k = 0; k < kBytes / 16; ++k) {
      uint4 q = read<kFixed, uint4>((const uint4*)p + k);
      to.w[4 * k] = q.x, to.w[4 * k + 1] = q.y, to.w[4 * k + 2] = q.z, to.w[4 * k + 3] = q.w;
    }
  } else if constexpr (kBytes == 8) {
    uint2 q = read<kFixed, uint2>(p);
    to.w[0] = q.x, to.w[1] = q.y;
  } else if constexpr (kBytes == 4) {
    to.w[0] = read<kFixed, u32>(p);
  } else if constexpr (kBytes == 2) {
    to.w[0] = read<kFixed, u16>(p);
  } else {
    to.w[0] = read<kFixed, u8>(p);
  }
}

RIDGE_INLINE void write_16(void* p, uint4 q, bool streaming) {
#ifndef RIDGE_SIMULATOR
  if (streaming) asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(q.x), "r"(q.y), "r"(q.z), "r"(q.w) : "memory");
  else
#endif
    *(uint4*)p = q;
}
template <int kBytes> RIDGE_INLINE void write_words(void* p, const Words<kBytes>& from, bool streaming) {
#pragma unroll
  for (int k = 0; k < kBytes / 16; ++k)
    write_16((uint4*)p + k, make_uint4(from.w[4 * k], from.w[4 * k + 1], from.w[4 * k + 2], from.w[4 * k + 3]), streaming);
}
template <> RIDGE_INLINE void write_words<8>(void* p, const Words<8>& from, bool) { *(uint2*)p = make_uint2(from.w[0], from.w[1]); }
template <> RIDGE_INLINE void write_words<4>(void* p, const Words<4>& from, bool) { *(u32*)p = from.w[0]; }
template <> RIDGE_INLINE void write_words<2>(void* p, const Words<2>& from, bool) { *(u16*)p = (u16)from.w[0]; }
template <> RIDGE_INLINE void write_words<1>(void* p, const Words<1>& from, bool) { *(u8*)p = (u8)from.w[0]; }

// Element k of words that hold elements of the pointer's type.
RIDGE_INLINE float element(const u32* w, int k, const float*) { return bits_float(w[k]); }
RIDGE_INLINE float element(const u32* w, int k, const bf16*) { return bits_float(k & 1 ? w[k / 2] & 0xffff0000u : w[k / 2] << 16); }
RIDGE_INLINE float element(const u32* w, int k, const f16*) { return f16_to_f32((u16)(w[k / 2] >> (k & 1) * 16)); }
RIDGE_INLINE int element(const u32* w, int k, const int*) { return (int)w[k]; }
RIDGE_INLINE int element(const u32* w, int k, const u8*) { return (int)(w[k / 4] >> (k & 3) * 8 & 255); }
RIDGE_INLINE int element(const u32* w, int k, const truth*) { return (int)(w[k / 4] >> (k & 3) * 8 & 255); }
RIDGE_INLINE i64 element(const u32* w, int k, const i64*) { return (i64)((u64)w[2 * k] | (u64)w[2 * k + 1] << 32); }

template <int V> RIDGE_INLINE void pack(u32* w, const float* x, const float*) {
#pragma unroll
  for (int k = 0; k < V; ++k) w[k] = float_bits(x[k]);
}
template <int V> RIDGE_INLINE void pack(u32* w, const float* x, const bf16*) {
  if constexpr (V == 1) w[0] = f32_to_bf16(x[0]);
#pragma unroll
  for (int k = 0; k < V / 2; ++k) w[k] = f32_to_bf16x2(x[2 * k], x[2 * k + 1]);
}
template <int V> RIDGE_INLINE void pack(u32* w, const float* x, const f16*) {
  if constexpr (V == 1) w[0] = f32_to_f16(x[0]);
#pragma unroll
  for (int k = 0; k < V / 2; ++k) w[k] = f32_to_f16x2(x[2 * k], x[2 * k + 1]);
}
template <int V> RIDGE_INLINE void pack(u32* w, const int* x, const int*) {
#pragma unroll
  for (int k = 0; k < V; ++k) w[k] = (u32)x[k];
}
template <int V> RIDGE_INLINE void pack_bytes(u32* w, const int* x) {
#pragma unroll
  for (int k = 0; k < (V + 3) / 4; ++k) w[k] = 0;
#pragma unroll
  for (int k = 0; k < V; ++k) w[k / 4] |= (u32)(x[k] & 255) << (k & 3) * 8;
}
template <int V> RIDGE_INLINE void pack(u32* w, const int* x, const u8*) { pack_bytes<V>(w, x); }
template <int V> RIDGE_INLINE void pack(u32* w, const int* x, const truth*) { pack_bytes<V>(w, x); }
template <int V> RIDGE_INLINE void pack(u32* w, const i64* x, const i64*) {
#pragma unroll
  for (int k = 0; k < V; ++k) w[2 * k] = (u32)x[k], w[2 * k + 1] = (u32)((u64)x[k] >> 32);
}

// Without kAligned the address is a multiple of one element only.
template <int V, bool kAligned = true, bool kFixed = false, class S, class T> RIDGE_INLINE void load(T (&to)[V], const S* p, bool live) {
  if (!kAligned) {
#pragma unroll
    for (int k = 0; k < V; ++k) to[k] = live ? widened(p[k]) : 0;
    return;
  }
  typedef Words<V * (int)sizeof(S)> W;
  W w;
#pragma unroll
  for (int k = 0; k < W::count; ++k) w.w[k] = 0;
  if (live) read_words<kFixed>(w, p);
#pragma unroll
  for (int k = 0; k < V; ++k) to[k] = element(w.w, k, p);
}
// Also leaves the elements in shared memory, where later passes over the row find them.
template <int V, bool kAligned, class S, class T> RIDGE_INLINE void load_and_keep(T (&to)[V], const S* p, S* keep, bool live) {
  if (!kAligned) {
    S zero = S();
#pragma unroll
    for (int k = 0; k < V; ++k) keep[k] = live ? p[k] : zero, to[k] = widened(keep[k]);
    return;
  }
  typedef Words<V * (int)sizeof(S)> W;
  W w;
#pragma unroll
  for (int k = 0; k < W::count; ++k) w.w[k] = 0;
  if (live) read_words<false>(w, p);
  write_words(keep, w, false);
#pragma unroll
  for (int k = 0; k < V; ++k) to[k] = element(w.w, k, p);
}
template <int V, bool kAligned = true, class S, class T> RIDGE_INLINE void store(S* p, const T (&from)[V], bool live, bool streaming) {
  if (!kAligned) {
#pragma unroll
    for (int k = 0; k < V; ++k)
      if (live) narrow(p[k], from[k]);
    return;
  }
  typedef Words<V * (int)sizeof(S)> W;
  W w;
  pack<V>(w.w, from, p);
  if (live) write_words(p, w, streaming);
}
template <class S> RIDGE_INLINE auto load_one(const S* p, bool live) -> decltype(widened(*p)) {
  decltype(widened(*p)) x = 0;
  if (live) x = widened(*p);
  return x;
}
template <class S, class T> RIDGE_INLINE void store_one(S* p, T x, bool live) {
  if (live) narrow(*p, x);
}
template <int V, class T> RIDGE_INLINE void spread(T (&to)[V], T x) {
#pragma unroll
  for (int k = 0; k < V; ++k) to[k] = x;
}

// ---- bad indices: the first one is told ----
struct Fault { int raised, pad; i64 value, limit, position; };
__device__ __noinline__ void raise_fault(Fault* fault, i64 value, i64 limit, i64 position) {
  if (atomicCAS(&fault->raised, 0, 1) == 0) fault->value = value, fault->limit = limit, fault->position = position;
}
RIDGE_INLINE i64 checked_index(i64 index, i64 size, bool live, Fault* fault) {
  if (index >= 0 && index < size) return index;
  if (live) raise_fault(fault, index, size, -1);
  return 0;
}
RIDGE_INLINE float checked_class(i64 value, i64 limit, i64 position, bool live, Fault* fault) {
  if (value >= 0 && value < limit) return 0.f;
  if (live) raise_fault(fault, value, limit, position);
  return bits_float(0x7fc00000u);
}

// ---- randomness as a function, as base/rng.h ----
RIDGE_INLINE uint4 philox(u64 seed, u32 step, u32 stream, u64 block) {
  u32 c0 = (u32)block, c1 = (u32)(block >> 32), c2 = step, c3 = stream, k0 = (u32)seed, k1 = (u32)(seed >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    u64 p0 = (u64)0xD2511F53u * c0, p1 = (u64)0xCD9E8D57u * c2;
    u32 n0 = (u32)(p1 >> 32) ^ c1 ^ k0, n2 = (u32)(p0 >> 32) ^ c3 ^ k1;
    c1 = (u32)p1, c3 = (u32)p0, c0 = n0, c2 = n2;
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  return make_uint4(c0, c1, c2, c3);
}
RIDGE_INLINE u32 random_word(i64 seed, i64 step, u32 stream, u64 index) {
  uint4 w = philox((u64)seed, (u32)step, stream, index / 4);
  u32 k = (u32)index & 3;
  return k < 2 ? (k ? w.y : w.x) : (k == 2 ? w.z : w.w);
}
// V words of consecutive elements.
template <int V> RIDGE_INLINE void random_words(u32 (&to)[V], i64 seed, i64 step, u32 stream, u64 index) {
  if (V % 4 == 0 && index % 4 == 0) {
#pragma unroll
    for (int k = 0; k < V / 4; ++k) {
      uint4 w = philox((u64)seed, (u32)step, stream, index / 4 + k);
      to[4 * k] = w.x, to[4 * k + 1] = w.y, to[4 * k + 2] = w.z, to[4 * k + 3] = w.w;
    }
  } else {
#pragma unroll 1
    for (int k = 0; k < V; ++k) {
      u32 w = random_word(seed, step, stream, index + k);
#pragma unroll
      for (int l = 0; l < V; ++l)
        if (l == k) to[l] = w;
    }
  }
}
RIDGE_INLINE float uniform_of(u32 word) { return (float)(word >> 8) * 0x1p-24f; }

// ---- arithmetic of one element, as the CPU does it ----
RIDGE_INLINE float maximum(float a, float b) {
#if !defined(RIDGE_SIMULATOR) && __CUDA_ARCH__ >= 800
  float m;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(m) : "f"(a), "f"(b));
  return m;
#else
  return a > b || a != a ? a : b;
#endif
}
RIDGE_INLINE float minimum(float a, float b) {
#if !defined(RIDGE_SIMULATOR) && __CUDA_ARCH__ >= 800
  float m;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(m) : "f"(a), "f"(b));
  return m;
#else
  return a < b || a != a ? a : b;
#endif
}
RIDGE_INLINE int maximum(int a, int b) { return a > b ? a : b; }
RIDGE_INLINE int minimum(int a, int b) { return a < b ? a : b; }
RIDGE_INLINE i64 maximum(i64 a, i64 b) { return a > b ? a : b; }
RIDGE_INLINE i64 minimum(i64 a, i64 b) { return a < b ? a : b; }
RIDGE_INLINE float add(float a, float b) { return a + b; }
RIDGE_INLINE int add(int a, int b) { return (int)((u32)a + (u32)b); }
RIDGE_INLINE i64 add(i64 a, i64 b) { return (i64)((u64)a + (u64)b); }
RIDGE_INLINE float sub(float a, float b) { return a - b; }
RIDGE_INLINE int sub(int a, int b) { return (int)((u32)a - (u32)b); }
RIDGE_INLINE i64 sub(i64 a, i64 b) { return (i64)((u64)a - (u64)b); }
RIDGE_INLINE float mul(float a, float b) { return a * b; }
RIDGE_INLINE int mul(int a, int b) { return (int)((u32)a * (u32)b); }
RIDGE_INLINE i64 mul(i64 a, i64 b) { return (i64)((u64)a * (u64)b); }
RIDGE_INLINE float div(float a, float b) { return a / b; }
RIDGE_INLINE int div(int a, int b) { return b == 0 ? 0 : b == -1 ? (int)(0u - (u32)a) : a / b; }
RIDGE_INLINE i64 div(i64 a, i64 b) { return b == 0 ? 0 : b == -1 ? (i64)(0ull - (u64)a) : a / b; }
template <class T> RIDGE_INLINE T whole_mod(T a, T b) {
  T r = b == 0 || b == -1 ? 0 : a % b;
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
RIDGE_INLINE int mod(int a, int b) { return whole_mod(a, b); }
RIDGE_INLINE i64 mod(i64 a, i64 b) { return whole_mod(a, b); }
RIDGE_INLINE float mod(float a, float b) {
  float r = fmodf(a, b);
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
template <class T, class U> RIDGE_INLINE T whole_power(T base, T exponent) {
  if (exponent < 0) return base == 1 ? 1 : base == -1 ? (exponent & 1 ? -1 : 1) : 0;
  U result = 1, b = (U)base;
  for (U e = (U)exponent; e; e >>= 1, b *= b)
    if (e & 1) result *= b;
  return (T)result;
}
RIDGE_INLINE int power(int a, int b) { return whole_power<int, u32>(a, b); }
RIDGE_INLINE i64 power(i64 a, i64 b) { return whole_power<i64, u64>(a, b); }
RIDGE_INLINE float power(float a, float b) { return powf(a, b); }
// A quotient by a divisor that many share: the reciprocal's product with its remainder added back.
struct Divisor { float value, inverse; bool easy; };
RIDGE_INLINE Divisor divisor(float b) {
  Divisor d;
  d.value = b, d.inverse = 1.f / b, d.easy = fabsf(b) > 0x1p-100f && fabsf(b) < 0x1p100f;
  return d;
}
RIDGE_INLINE float div(float a, const Divisor& d) {
  if (!d.easy) return a / d.value;
  float q = a * d.inverse, better = fmaf(fmaf(-q, d.value, a), d.inverse, q);
  return better != better ? q : better;
}
RIDGE_INLINE float neg(float a) { return -a; }
RIDGE_INLINE int neg(int a) { return (int)(0u - (u32)a); }
RIDGE_INLINE i64 neg(i64 a) { return (i64)(0ull - (u64)a); }
RIDGE_INLINE float size_of_value(float a) { return fabsf(a); }
RIDGE_INLINE int size_of_value(int a) { return a < 0 ? neg(a) : a; }
RIDGE_INLINE i64 size_of_value(i64 a) { return a < 0 ? neg(a) : a; }
RIDGE_INLINE float sign(float a) { return a == 0.f || a != a ? a : copysignf(1.f, a); }
RIDGE_INLINE int sign(int a) { return (a > 0) - (a < 0); }
RIDGE_INLINE i64 sign(i64 a) { return (a > 0) - (a < 0); }
RIDGE_INLINE float relu(float a) { return a <= 0.f ? 0.f : a; }
RIDGE_INLINE int relu(int a) { return a > 0 ? a : 0; }
RIDGE_INLINE i64 relu(i64 a) { return a > 0 ? a : 0; }
RIDGE_INLINE float round_even(float a) { return rintf(a); }
RIDGE_INLINE int finite(float a) { return (float_bits(a) & 0x7f800000u) != 0x7f800000u; }
RIDGE_INLINE float inverse_root(float a) { return 1.f / sqrtf(a); }
RIDGE_INLINE float near_quotient(float a, float b) {  // within 2 ulp for b in [1, 2^126]
#ifndef RIDGE_SIMULATOR
  float q;
  asm("div.approx.f32 %0, %1, %2;" : "=f"(q) : "f"(a), "f"(b));
  return q;
#else
  return a / b;
#endif
}
// exp of what lies below a row's maximum: the error is less than an ulp of 1, for a fraction of the cost.
RIDGE_INLINE float exp_below(float x) {
#ifndef RIDGE_SIMULATOR
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.44269504f));
  return y;
#else
  return exp2f(x * 1.44269504f);
#endif
}
// The smaller and the larger of the two; NaN as the second operand stays.
RIDGE_INLINE float at_most(float limit, float x) { return x > limit ? limit : x; }
RIDGE_INLINE float at_least(float limit, float x) { return x < limit ? limit : x; }
RIDGE_INLINE float sigmoid(float x) { return 1.f / (1.f + expf(-x)); }
RIDGE_INLINE float softplus(float x) { return at_least(0.f, x) + log1pf(expf(-fabsf(x))); }
RIDGE_INLINE float silu(float x) {
  float c = at_least(-104.f, x);
  return x < -80.f ? c * expf(c) : x / (1.f + expf(-x));
}
RIDGE_INLINE float silu_grad(float x) {
  float e = expf(-x), s = 1.f / (1.f + e), c = at_most(1e4f, at_least(-1e4f, x));
  return s * fmaf(c, at_most(3e38f, e) * s, 1.f);
}
// 2^z with z = -2 log2(e) sqrt(2/pi) (c + 0.044715 c^3), which stays within 126 for |c| <= 10
RIDGE_INLINE float gelu_power(float c, float square) { return exp2f(c * fmaf(square, -0.10294323958f, -2.30220819814f)); }
RIDGE_INLINE float gelu_tanh(float x) {
  float above = at_least(-10.f, x), c = at_most(10.f, above);
  return near_quotient(above, 1.f + gelu_power(c, c * c));
}
RIDGE_INLINE float gelu_tanh_grad(float x) {
  float c = at_most(10.f, at_least(-10.f, x)), square = c * c, e = gelu_power(c, square);
  float s = near_quotient(1.f, 1.f + e), slope = fmaf(square, 3 * 0.07135481283f, 1.59576912161f);
  float y = fmaf(c * slope * s, e * s, s);
  return x < -10.f ? 0.f : y;
}
// Probability that a standard normal is above |x|
RIDGE_INLINE float normal_tail(float x) { return 0.5f * erfcf(0.70710678119f * fabsf(x)); }
RIDGE_INLINE float gelu_erf(float x) {
  float tail = normal_tail(x);
  return x < 0.f ? at_least(-15.f, x) * tail : x > 13.f ? x : fmaf(-x, tail, x);
}
RIDGE_INLINE float gelu_erf_grad(float x) {
  float tail = normal_tail(x), cdf = x < 0.f ? tail : 1.f - tail, c = at_most(15.f, at_least(-15.f, x));
  return fmaf(c, 0.39894228040f * expf(c * -0.5f * c), cdf);
}
// Floating to integer drops the fraction; what does not fit goes to the nearest end of i64 before it wraps, NaN to 0.
RIDGE_INLINE i64 whole(float v) {
  if (v != v) return 0;
  if (v >= 0x1p63f) return 0x7fffffffffffffffll;
  if (v < -0x1p63f) return -0x7fffffffffffffffll - 1;
  return (i64)v;
}

// ---- reductions: joins do not depend on the order for extremes; sums are joined in an order that the shape gives ----
template <class T> struct Arg { T value; i64 at; };
template <class T> RIDGE_INLINE T lowest();
template <> RIDGE_INLINE float lowest<float>() { return bits_float(0xff800000u); }
template <> RIDGE_INLINE int lowest<int>() { return -2147483647 - 1; }
template <> RIDGE_INLINE i64 lowest<i64>() { return -0x7fffffffffffffffll - 1; }
template <class T> RIDGE_INLINE T highest();
template <> RIDGE_INLINE float highest<float>() { return bits_float(0x7f800000u); }
template <> RIDGE_INLINE int highest<int>() { return 2147483647; }
template <> RIDGE_INLINE i64 highest<i64>() { return 0x7fffffffffffffffll; }
struct Sum {
  template <class T> static RIDGE_INLINE T join(T a, T x) { return add(a, x); }
  template <class T> static RIDGE_INLINE void clear(T& a) { a = 0; }
};
struct Product {
  template <class T> static RIDGE_INLINE T join(T a, T x) { return mul(a, x); }
  template <class T> static RIDGE_INLINE void clear(T& a) { a = 1; }
};
struct Max {
  template <class T> static RIDGE_INLINE T join(T a, T x) { return maximum(a, x); }
  template <class T> static RIDGE_INLINE void clear(T& a) { a = lowest<T>(); }
};
struct Min {
  template <class T> static RIDGE_INLINE T join(T a, T x) { return minimum(a, x); }
  template <class T> static RIDGE_INLINE void clear(T& a) { a = highest<T>(); }
};
// NaN before numbers, then the extreme, then the first of equals.
template <class T> RIDGE_INLINE Arg<T> first_arg(Arg<T> a, Arg<T> x, bool beats) {
  bool nan_a = a.value != a.value, nan_x = x.value != x.value;
  bool tie = nan_a ? nan_x : x.value == a.value;
  return (nan_a ? false : nan_x || beats) || (tie && x.at < a.at) ? x : a;
}
struct ArgMax {
  template <class T> static RIDGE_INLINE Arg<T> join(Arg<T> a, Arg<T> x) { return first_arg(a, x, x.value > a.value); }
  template <class T> static RIDGE_INLINE void clear(Arg<T>& a) { a.value = lowest<T>(), a.at = highest<i64>(); }
};
struct ArgMin {
  template <class T> static RIDGE_INLINE Arg<T> join(Arg<T> a, Arg<T> x) { return first_arg(a, x, x.value < a.value); }
  template <class T> static RIDGE_INLINE void clear(Arg<T>& a) { a.value = highest<T>(), a.at = highest<i64>(); }
};
template <class T> RIDGE_INLINE Arg<T> arg_at(T value, i64 at) {
  Arg<T> a;
  a.value = value, a.at = at;
  return a;
}
template <class T> RIDGE_INLINE T exchanged(T x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
template <class T> RIDGE_INLINE Arg<T> exchanged(Arg<T> x, int mask) { return arg_at(exchanged(x.value, mask), exchanged(x.at, mask)); }
// Over kLanes neighbouring lanes (a power of two); every lane gets the result.
template <class J, int kLanes, class A> RIDGE_INLINE A joined_lanes(A a) {
#pragma unroll
  for (int mask = 1; mask < kLanes; mask *= 2) a = J::join(a, exchanged(a, mask));
  return a;
}
// V accumulators of one thread.
template <class J, int V, class A> RIDGE_INLINE A joined_vector(const A (&a)[V]) {
  A b[V];
#pragma unroll
  for (int k = 0; k < V; ++k) b[k] = a[k];
#pragma unroll
  for (int step = 1; step < V; step *= 2)
#pragma unroll
    for (int k = 0; k + step < V; k += 2 * step) b[k] = J::join(b[k], b[k + step]);
  return b[0];
}
// Over a block of kThreads: put, __syncthreads(), get. The array holds one place per warp.
template <class J, class A> RIDGE_INLINE void put_joined(A* places, A a) {
  a = joined_lanes<J, 32>(a);
  if ((threadIdx.x & 31) == 0) places[threadIdx.x / 32] = a;
}
template <class J, int kThreads, class A> RIDGE_INLINE A get_joined(const A* places) {
  A a;
  J::clear(a);
  if ((threadIdx.x & 31) < kThreads / 32) a = places[threadIdx.x & 31];
  return joined_lanes<J, 32>(a);
}
RIDGE_INLINE float sum_of_warp(float x) { return joined_lanes<Sum, 32>(x); }
RIDGE_INLINE float max_of_warp(float x) { return joined_lanes<Max, 32>(x); }
)cuda";
  return text;
}

std::string compile_text(const Nvrtc& nvrtc, const KernelText& text, const std::string& target) {
  return nvrtc.compile(text.entry, std::string(prelude()) + text.body, target);
}

}  // namespace ridge::cuda
