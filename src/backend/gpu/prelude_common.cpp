#include "backend/gpu/prelude_common.h"

namespace ridge::gpu {

std::string_view elements_prelude() {
  return R"gpu(// ---- element types as they lie in memory; in registers they are float, int or i64 ----
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

)gpu";
}

std::string_view random_prelude() {
  return R"gpu(// ---- randomness as a function, as base/rng.h ----
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

)gpu";
}

std::string_view arithmetic_prelude() {
  return R"gpu(RIDGE_INLINE int maximum(int a, int b) { return a > b ? a : b; }
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
)gpu";
}

std::string_view functions_prelude() {
  return R"gpu(// The smaller and the larger of the two; NaN as the second operand stays.
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
)gpu";
}

std::string_view joins_prelude() {
  return R"gpu(template <class T> RIDGE_INLINE Arg<T> exchanged(Arg<T> x, int mask) { return arg_at(exchanged(x.value, mask), exchanged(x.at, mask)); }
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
)gpu";
}

}  // namespace ridge::gpu
