// Elementary functions on f32 vectors, accurate to 1 or 2 ulp, 3 where noted. NaN, infinities and zeros behave as in the C library; denormal results may be
// flushed. Compiled per Highway target: include after hwy/highway.h, outside any namespace.
#if defined(RIDGE_MATH_SIMD_H) == defined(HWY_TARGET_TOGGLE)
#ifdef RIDGE_MATH_SIMD_H
#undef RIDGE_MATH_SIMD_H
#else
#define RIDGE_MATH_SIMD_H
#endif

#include <cmath>
#include <limits>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace ridge::cpu {
namespace HWY_NAMESPACE {
namespace math {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using DI = hn::RebindToSigned<D>;
using V = hn::Vec<D>;
using M = hn::Mask<D>;

HWY_INLINE V set(float x) { return hn::Set(D(), x); }
HWY_INLINE V sqrt(V x) { return hn::Sqrt(x); }
HWY_INLINE V rsqrt(V x) { return hn::Div(set(1.f), hn::Sqrt(x)); }

// The smaller and the larger of the two; a NaN in the second operand propagates.
HWY_INLINE V at_most(V limit, V x) {
#if HWY_TARGET == HWY_NEON
  return V{vminq_f32(limit.raw, x.raw)};
#else
  return hn::Min(limit, x);
#endif
}
HWY_INLINE V at_least(V limit, V x) {
#if HWY_TARGET == HWY_NEON
  return V{vmaxq_f32(limit.raw, x.raw)};
#else
  return hn::Max(limit, x);
#endif
}

template <class... C>
HWY_INLINE V poly(V x, float last, C... rest) {  // highest coefficient first
  V p = set(last);
  ((p = hn::MulAdd(p, x, set(rest))), ...);
  return p;
}

// v * 2^n for integral n with |n| <= 160
HWY_INLINE V scale(V v, V n) {
#if HWY_TARGET == HWY_AVX3
  return V{_mm512_scalef_ps(v.raw, n.raw)};
#else
  const DI di;
  auto whole = hn::ConvertTo(di, n);
  auto half = hn::ShiftRight<1>(whole);
  auto power = [&](auto k) HWY_ATTR { return hn::BitCast(D(), hn::ShiftLeft<23>(hn::Add(k, hn::Set(di, 127)))); };
  return hn::Mul(hn::Mul(v, power(half)), power(hn::Sub(whole, half)));
#endif
}

// Nearest multiple of ln 2: x = n ln 2 + r, |r| <= ln 2 / 2
struct Reduced {
  V n, r;
};
HWY_INLINE Reduced reduce_ln2(V x) {
  V n = hn::Round(hn::Mul(x, set(1.44269504089f)));
  V r = hn::NegMulAdd(n, set(0.693145751953125f), x);  // 15 bits, so that n times this is exact
  return {n, hn::NegMulAdd(n, set(1.42860682e-6f), r)};
}

HWY_INLINE V exp(V x) {
  x = at_most(set(89.f), at_least(set(-104.f), x));
  Reduced k = reduce_ln2(x);
  V q = poly(k.r, 0.0013950615956f, 0.0083689533411f, 0.041666203889f, 0.16666518309f, 0.50000000958f);
  return scale(hn::Add(hn::MulAdd(hn::Mul(k.r, k.r), q, k.r), set(1.f)), k.n);
}

// A cheaper exp within 3 ulp; 0 below 1.7e-38. The low bits of t are n + 126, which shifted give 2^(n - 1). The polynomial is twice exp's, so that n = 128 does
// not overflow early.
HWY_INLINE V exp_approx(V x) {
  x = at_most(set(89.f), at_least(set(-87.3f), x));
  V t = hn::MulAdd(x, set(1.44269504089f), set(0x1.8p23f + 126)), n = hn::Sub(t, set(0x1.8p23f + 126));
  V r = hn::NegMulAdd(n, set(0.69314718056f), x);
  V q = poly(r, 2 * 0.00829031504f, 2 * 0.04189793020f, 2 * 0.16667635739f, 2 * 0.49999150634f, 2 * 0.99999970198f, 2.f);
  return hn::Mul(q, hn::BitCast(D(), hn::ShiftLeft<23>(hn::BitCast(DI(), t))));
}

HWY_INLINE V expm1(V x0) {
  V x = at_most(set(89.f), at_least(set(-18.f), x0));
  Reduced k = reduce_ln2(x);
  V q = poly(k.r, 0.00019914332615f, 0.0013941101322f, 0.0083332727804f, 0.041666353554f, 0.16666666818f, 0.50000000467f);
  V p = hn::MulAdd(hn::Mul(k.r, k.r), q, k.r);
  V s = scale(set(0.5f), k.n);  // half of 2^n, because 2^n itself may overflow
  V y = hn::MulAdd(s, p, hn::Sub(s, set(0.5f)));
  return hn::CopySign(hn::Add(y, y), x0);
}

// The mantissa in [sqrt 1/2, sqrt 2) and the exponent of a positive finite x.
struct Split {
  V m, e;
};
HWY_INLINE Split split(V x) {
  const DI di;
  M tiny = hn::Lt(x, set(0x1p-126f));
  x = hn::IfThenElse(tiny, hn::Mul(x, set(0x1p24f)), x);
  auto bits = hn::BitCast(di, x);
  auto e = hn::ShiftRight<23>(hn::Sub(bits, hn::Set(di, 0x3f3504f3)));
  V m = hn::BitCast(D(), hn::Sub(bits, hn::ShiftLeft<23>(e)));
  return {m, hn::Sub(hn::ConvertTo(D(), e), hn::IfThenElseZero(tiny, set(24.f)))};
}

HWY_INLINE V log(V x) {
  Split k = split(x);
  V z = hn::Sub(k.m, set(1.f)), y = hn::Mul(z, z);
  V p = poly(z, 0.069153980446f, -0.11789781479f, 0.11872948695f, -0.12384352038f, 0.14218662729f, -0.16669250764f, 0.20002226356f, -0.24999986595f,
             0.33333310444f);
  V r = hn::MulAdd(hn::Mul(y, z), p, hn::Mul(k.e, set(1.42860682e-6f)));
  r = hn::Add(z, hn::MulAdd(y, set(-0.5f), r));
  r = hn::MulAdd(k.e, set(0.693145751953125f), r);
  const float inf = std::numeric_limits<float>::infinity();
  r = hn::IfThenElse(hn::Gt(x, set(0.f)), r, set(std::numeric_limits<float>::quiet_NaN()));
  r = hn::IfThenElse(hn::Eq(x, set(0.f)), set(-inf), r);
  return hn::IfThenElse(hn::Eq(x, set(inf)), x, r);
}

HWY_INLINE V log1p(V x) {
  V u = hn::Add(set(1.f), x);
  V lost = hn::Div(hn::Sub(x, hn::Sub(u, set(1.f))), u);  // rounding error of u
  M ordinary = hn::And(hn::Gt(u, set(0.f)), hn::Lt(u, set(std::numeric_limits<float>::infinity())));
  V y = hn::Add(log(u), hn::IfThenElseZero(ordinary, lost));
  return hn::IfThenElse(hn::Eq(x, set(0.f)), x, y);
}

// x / y to about 1.5 ulp for y in [1, 2^127]
HWY_INLINE V divide_approx(V x, V y) {
#if HWY_TARGET == HWY_AVX3
  V r{_mm512_rcp14_ps(y.raw)};
  return hn::Mul(x, hn::MulAdd(hn::NegMulAdd(y, r, set(1.f)), r, r));
#else
  return hn::Div(x, y);
#endif
}

// Within 3 ulp, as tanh; 0 where the exact value is denormal.
HWY_INLINE V sigmoid(V x) {
  V least = set(-87.336f), y = divide_approx(set(1.f), hn::Add(set(1.f), exp(hn::Neg(at_least(least, x)))));
  return hn::IfThenZeroElse(hn::Lt(x, least), y);
}

HWY_INLINE V tanh(V x) {
  V a = at_most(set(10.f), hn::Abs(x));
  V e = expm1(hn::Add(a, a));
  return hn::CopySign(divide_approx(e, hn::Add(e, set(2.f))), x);
}

HWY_INLINE V softplus(V x) { return hn::Add(at_least(set(0.f), x), log1p(exp(hn::Neg(hn::Abs(x))))); }

HWY_INLINE V erf(V x) {
  V a = at_most(set(4.f), hn::Abs(x)), y = hn::Mul(a, a);
  V small = hn::Mul(x, poly(y, 7.8538775316e-5f, -0.00080101982624f, 0.0051883281864f, -0.026853812191f, 0.11283585155f, -0.37612625825f, 1.1283791657f));
  V l = poly(a, -2.1686530148e-5f, 0.00044133251431f, -0.0042045423189f, 0.025208202905f, -0.10841849022f, -0.63321997602f, -1.1295783812f,
             0.00018803082227f);  // log(erfc(a)) on [0.98, 4]
  V large = hn::CopySign(hn::Sub(set(1.f), exp(l)), x);
  return hn::IfThenElse(hn::Gt(a, set(1.f)), large, small);  // NaN takes the small branch and propagates
}

// Probability that a standard normal variable exceeds |x|, with a relative error of a few ulp
HWY_INLINE V normal_tail(V x) {
  V t = at_most(set(9.6f), hn::Mul(hn::Abs(x), set(0.70710678119f)));
  V u = hn::Div(set(2.f), hn::Add(set(2.f), t));
  V g = poly(u, -0.05432498222f, 0.26010481493f, -0.43291831763f, 0.21031208761f, 0.025647307882f, 0.17692381035f, 0.25118904763f, 0.28082172366f,
             0.28225191606f, -7.4390645137e-6f);
  // exp(-t^2), corrected for the rounding of |x|^2 / 2: t is itself rounded, so x is squared instead
  V a = at_most(set(13.6f), hn::Abs(x)), half = hn::Mul(a, set(0.5f));
  V square = hn::Mul(half, a), rest = hn::MulSub(half, a, square);
  V e = exp(hn::Neg(square));
  return hn::Mul(hn::Mul(set(0.5f), g), hn::NegMulAdd(e, rest, e));
}

HWY_INLINE V gelu_erf(V x) {
  V tail = normal_tail(x);
  V above = hn::IfThenElse(hn::Gt(x, set(13.f)), x, hn::NegMulAdd(x, tail, x));  // infinity times a zero tail would be NaN
  return hn::IfThenElse(hn::Lt(x, set(0.f)), hn::Mul(x, tail), above);
}

HWY_INLINE V gelu_erf_grad(V x) {
  V tail = normal_tail(x);
  V cdf = hn::IfThenElse(hn::Lt(x, set(0.f)), tail, hn::Sub(set(1.f), tail));
  V c = at_most(set(15.f), at_least(set(-15.f), x));
  V density = hn::Mul(set(0.39894228040f), exp(hn::Mul(hn::Mul(c, set(-0.5f)), c)));
  return hn::MulAdd(c, density, cdf);
}

// 2^z with z = -2 log2(e) sqrt(2/pi) (c + 0.044715 c^3); |z| stays below 126 for |c| <= 10
HWY_INLINE V gelu_power(V c, V square) {
  V z = hn::Mul(c, hn::MulAdd(square, set(-0.10294323958f), set(-2.30220819814f)));
  V n = hn::Round(z), f = hn::Sub(z, n);
  V q = poly(f, 0.00015353244873f, 0.0013399000979f, 0.0096184386334f, 0.05550332171f, 0.24022647897f, 0.69314720298f);
  return scale(hn::MulAdd(f, q, set(1.f)), n);
}

// x / (1 + 2^z); beyond |x| = 10 this is x or 0.
HWY_INLINE V gelu_tanh(V x) {
  V above = at_least(set(-10.f), x), c = at_most(set(10.f), above);
  return divide_approx(above, hn::Add(set(1.f), gelu_power(c, hn::Mul(c, c))));
}

// With s = 1 / (1 + 2^z): s + x z' s (1 - s), with 1 - s computed as 2^z s to avoid cancellation.
HWY_INLINE V gelu_tanh_grad(V x) {
  V c = at_most(set(10.f), at_least(set(-10.f), x)), square = hn::Mul(c, c), e = gelu_power(c, square);
  V s = divide_approx(set(1.f), hn::Add(set(1.f), e)), slope = hn::MulAdd(square, set(3 * 0.07135481283f), set(1.59576912161f));
  V y = hn::MulAdd(hn::Mul(hn::Mul(c, slope), s), hn::Mul(e, s), s);
  return hn::IfThenZeroElse(hn::Lt(x, set(-10.f)), y);
}

// The same functions of several vectors, an operation at a time: a core's scheduler holds too few instructions to overlap whole functions, which are long
// chains.
template <int N>
struct Together {
  template <class F>
  static HWY_INLINE void each(const F& f) {
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) f(i);
  }
  // f = 2^z of gelu_power from z, which it overwrites.
  static HWY_INLINE void power(V* z, V* f) {
    V n[N];
    each([&](int i) HWY_ATTR { n[i] = hn::Round(z[i]); });
    each([&](int i) HWY_ATTR { z[i] = hn::Sub(z[i], n[i]); });
    each([&](int i) HWY_ATTR { f[i] = hn::MulAdd(set(0.00015353244873f), z[i], set(0.0013399000979f)); });
    for (float c : {0.0096184386334f, 0.05550332171f, 0.24022647897f, 0.69314720298f}) each([&](int i) HWY_ATTR { f[i] = hn::MulAdd(f[i], z[i], set(c)); });
    each([&](int i) HWY_ATTR { f[i] = hn::MulAdd(z[i], f[i], set(1.f)); });
    each([&](int i) HWY_ATTR { f[i] = scale(f[i], n[i]); });
  }
  // x / y as divide_approx; y is overwritten.
  static HWY_INLINE void divide(V* x, V* y) {
#if HWY_TARGET == HWY_AVX3
    V r[N];
    each([&](int i) HWY_ATTR { r[i] = V{_mm512_rcp14_ps(y[i].raw)}; });
    each([&](int i) HWY_ATTR { y[i] = hn::NegMulAdd(y[i], r[i], set(1.f)); });
    each([&](int i) HWY_ATTR { y[i] = hn::MulAdd(y[i], r[i], r[i]); });
    each([&](int i) HWY_ATTR { x[i] = hn::Mul(x[i], y[i]); });
#else
    each([&](int i) HWY_ATTR { x[i] = hn::Div(x[i], y[i]); });
#endif
  }
  static HWY_INLINE void gelu_tanh(V* x) {
    V c[N], t[N];
    each([&](int i) HWY_ATTR { x[i] = at_least(set(-10.f), x[i]); });
    each([&](int i) HWY_ATTR { c[i] = at_most(set(10.f), x[i]); });
    each([&](int i) HWY_ATTR { t[i] = hn::Mul(c[i], c[i]); });
    each([&](int i) HWY_ATTR { t[i] = hn::MulAdd(t[i], set(-0.10294323958f), set(-2.30220819814f)); });
    each([&](int i) HWY_ATTR { c[i] = hn::Mul(c[i], t[i]); });
    power(c, t);
    each([&](int i) HWY_ATTR { t[i] = hn::Add(set(1.f), t[i]); });
    divide(x, t);
  }
  static HWY_INLINE void gelu_tanh_grad(V* x) {
    V c[N], t[N], s[N];
    each([&](int i) HWY_ATTR { c[i] = at_most(set(10.f), at_least(set(-10.f), x[i])); });
    each([&](int i) HWY_ATTR { t[i] = hn::Mul(c[i], c[i]); });
    each([&](int i) HWY_ATTR { s[i] = hn::Mul(c[i], hn::MulAdd(t[i], set(3 * 0.07135481283f), set(1.59576912161f))); });
    each([&](int i) HWY_ATTR { t[i] = hn::MulAdd(t[i], set(-0.10294323958f), set(-2.30220819814f)); });
    each([&](int i) HWY_ATTR { c[i] = hn::Mul(c[i], t[i]); });
    power(c, t);
    each([&](int i) HWY_ATTR { c[i] = hn::Add(set(1.f), t[i]); });
    V one[N];
    each([&](int i) HWY_ATTR { one[i] = set(1.f); });
    divide(one, c);
    each([&](int i) HWY_ATTR { s[i] = hn::Mul(s[i], one[i]); });
    each([&](int i) HWY_ATTR { t[i] = hn::Mul(t[i], one[i]); });
    each([&](int i) HWY_ATTR { s[i] = hn::MulAdd(s[i], t[i], one[i]); });
    each([&](int i) HWY_ATTR { x[i] = hn::IfThenZeroElse(hn::Lt(x[i], set(-10.f)), s[i]); });
  }
};

// sigmoid(x) and 1 - sigmoid(x), both without cancellation (the second is 0 where the first is)
struct Logistic {
  V s, rest;
};
HWY_INLINE Logistic logistic(V x) {
  V e = exp(hn::Neg(x)), s = hn::Div(set(1.f), hn::Add(set(1.f), e));
  return {s, hn::Mul(at_most(set(3e38f), e), s)};
}

HWY_INLINE V silu(V x) { return hn::Div(x, hn::Add(set(1.f), exp(hn::Neg(x)))); }

HWY_INLINE V silu_grad(V x) {
  Logistic k = logistic(x);
  V c = at_most(set(1e4f), at_least(set(-1e4f), x));
  return hn::Mul(k.s, hn::MulAdd(c, k.rest, set(1.f)));
}

// Recomputes the lanes where `rare` holds with the scalar function.
template <class F, class... In>
HWY_INLINE V patch(V y, M rare, F f, In... in) {
  if (HWY_LIKELY(hn::AllFalse(D(), rare))) return y;
  constexpr size_t kLanes = 64;
  HWY_ALIGN float out[kLanes], args[sizeof...(in)][kLanes], flag[kLanes];
  const D d;
  hn::Store(y, d, out);
  hn::Store(hn::IfThenElseZero(rare, set(1.f)), d, flag);
  size_t k = 0;
  (hn::Store(in, d, args[k++]), ...);
  for (size_t i = 0; i < hn::Lanes(d); ++i) {
    if (flag[i] == 0) continue;
    if constexpr (sizeof...(in) == 1) {
      out[i] = f(args[0][i]);
    } else {
      out[i] = f(args[0][i], args[1][i]);
    }
  }
  return hn::Load(d, out);
}

// sin(x + quarter * pi / 2)
template <int kQuarter>
HWY_INLINE V sine(V x) {
  const DI di;
  V n = hn::Round(hn::Mul(x, set(0.63661977237f)));
  // pi / 2 in pieces of 11 bits, so that n times a piece is exact up to the limit below
  V r = hn::NegMulAdd(n, set(1.5703125f), x);
  r = hn::NegMulAdd(n, set(4.837512969970703125e-4f), r);
  r = hn::NegMulAdd(n, set(7.5495336204767227e-8f), r);
  r = hn::NegMulAdd(n, set(2.5633441515945188e-12f), r);
  V y = hn::Mul(r, r);
  V s = hn::MulAdd(hn::Mul(r, y), poly(y, 2.7182408627e-6f, -0.00019839327598f, 0.0083333293641f, -0.16666666641f), r);
  V c = hn::MulAdd(hn::Mul(y, y), poly(y, -2.7209700155e-7f, 2.4799513897e-5f, -0.0013888883732f, 0.041666666623f), hn::MulAdd(y, set(-0.5f), set(1.f)));
  auto quadrant = hn::Add(hn::ConvertTo(di, n), hn::Set(di, kQuarter));
  M odd = hn::RebindMask(D(), hn::Eq(hn::And(quadrant, hn::Set(di, 1)), hn::Set(di, 1)));
  V sign = hn::BitCast(D(), hn::ShiftLeft<30>(hn::And(quadrant, hn::Set(di, 2))));
  V value = hn::Xor(hn::IfThenElse(odd, c, s), sign);
  return patch(
      value, hn::Not(hn::Le(hn::Abs(x), set(8000.f))), [](float t) { return float(kQuarter ? std::cos(double(t)) : std::sin(double(t))); }, x);
}
HWY_INLINE V sin(V x) { return sine<0>(x); }
HWY_INLINE V cos(V x) { return sine<1>(x); }

// 2^((log2(m) + e) * b) in double; returns the significand and stores the exponent in *n
template <class DD, class VD = hn::Vec<DD>>
HWY_INLINE VD pow_core(DD d, VD m, VD e, VD b, VD* n) {
  auto c = [&](double x) HWY_ATTR { return hn::Set(d, x); };
  VD s = hn::Div(hn::Sub(m, c(1.0)), hn::Add(m, c(1.0))), y = hn::Mul(s, s);
  VD p = c(2.885390081777926815 / 17);
  for (int k = 15; k >= 1; k -= 2) p = hn::MulAdd(p, y, c(2.885390081777926815 / k));
  VD t = hn::Mul(b, hn::MulAdd(p, s, e));
  t = hn::Min(hn::Max(t, c(-300.0)), c(300.0));
  *n = hn::Round(t);
  VD f = hn::Mul(hn::Sub(t, *n), c(0.693147180559945309));
  VD q = c(1.0 / 39916800);
  const double inverse[] = {1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040, 1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5, 1.0, 1.0};
  for (double k : inverse) q = hn::MulAdd(q, f, c(k));
  return q;
}

HWY_INLINE V pow(V a, V b) {
  const D d;
  const hn::Repartition<double, D> dd;
  const hn::Half<D> dh;
  V size = hn::Abs(a);
  Split k = split(size);
  hn::Vec<decltype(dd)> n0, n1;
  auto p0 = pow_core(dd, hn::PromoteTo(dd, hn::LowerHalf(dh, k.m)), hn::PromoteTo(dd, hn::LowerHalf(dh, k.e)), hn::PromoteTo(dd, hn::LowerHalf(dh, b)), &n0);
  auto p1 = pow_core(dd, hn::PromoteTo(dd, hn::UpperHalf(dh, k.m)), hn::PromoteTo(dd, hn::UpperHalf(dh, k.e)), hn::PromoteTo(dd, hn::UpperHalf(dh, b)), &n1);
  V n = hn::Combine(d, hn::DemoteTo(dh, n1), hn::DemoteTo(dh, n0));
  n = hn::Min(hn::Max(n, set(-160.f)), set(160.f));
  V y = scale(hn::Combine(d, hn::DemoteTo(dh, p1), hn::DemoteTo(dh, p0)), n);
  // a negative base: an odd exponent gives a negative result, a fractional one NaN
  V half = hn::Mul(b, set(0.5f));
  M whole = hn::Eq(hn::Floor(b), b), odd = hn::And(whole, hn::Not(hn::Eq(hn::Floor(half), half)));
  V sign = hn::IfThenElseZero(odd, hn::And(a, hn::SignBit(d)));
  y = hn::Or(y, sign);
  y = hn::IfThenElse(hn::And(hn::Lt(a, set(0.f)), hn::Not(whole)), set(std::numeric_limits<float>::quiet_NaN()), y);
  const float inf = std::numeric_limits<float>::infinity();
  M usual = hn::And(hn::And(hn::Gt(size, set(0.f)), hn::Lt(size, set(inf))), hn::Lt(hn::Abs(b), set(inf)));
  return patch(
      y, hn::Not(usual), [](float u, float v) { return float(std::pow(u, v)); }, a, b);
}

}  // namespace math
}  // namespace HWY_NAMESPACE
}  // namespace ridge::cpu
HWY_AFTER_NAMESPACE();
#endif
