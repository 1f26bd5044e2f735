// Elementwise handlers of the tile interpreter.
#include "base/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/tile_simd.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "backend/cpu/tile_simd.h"
#include "backend/cpu/widen_simd.h"

HWY_BEFORE_NAMESPACE();
namespace ridge::cpu {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;
using math::D;
using math::DI;
using math::M;
using math::set;
using math::V;

// Real functions are found in math_simd.h by name.
enum class Trait { none, real, truth, logic, no_gradient };
constexpr Trait trait_of(Op op) {
  switch (op) {
#define RIDGE_OP(name, arity, trait, ...) \
  case Op::name: return Trait::trait;
    RIDGE_ELEMENTWISE_OPS(RIDGE_OP)
#undef RIDGE_OP
    default: return Trait::none;
  }
}

// Functions so long that a second copy for the tail would only add code.
constexpr bool is_heavy(Op op) { return (trait_of(op) == Trait::real && op != Op::sqrt && op != Op::rsqrt) || op == Op::pow || op == Op::mod; }

HWY_INLINE V from_mask(M m) { return hn::BitCast(D(), hn::And(hn::BitCast(DI(), hn::VecFromMask(D(), m)), hn::Set(DI(), 1))); }
HWY_INLINE M is_true(V v) { return hn::RebindMask(D(), hn::Ne(hn::BitCast(DI(), v), hn::Zero(DI()))); }
HWY_INLINE M nonzero(V v) { return hn::Ne(v, set(0.f)); }

// The result has the sign of the divisor. Exact for |a / b| < 2^22; scalar beyond.
HWY_INLINE V modulo(V a, V b) {
  V q = hn::Div(a, b);
  M easy = hn::And(hn::Lt(hn::Abs(q), set(0x1p22f)), hn::And(hn::Lt(hn::Abs(b), set(0x1p125f)), hn::Gt(hn::Abs(b), set(0x1p-100f))));
#if HWY_TARGET == HWY_SSE4
  easy = hn::And(easy, hn::FirstN(D(), 0));  // no fused multiply-add: the remainder below would be rounded twice
#endif
  V r = hn::NegMulAdd(hn::Trunc(q), b, a);  // exact or off by one divisor, because the quotient is rounded
  r = hn::IfThenElse(hn::Ge(hn::Abs(r), hn::Abs(b)), hn::Sub(r, hn::CopySign(b, r)), r);
  M wrong = hn::And(nonzero(r), hn::Lt(hn::Mul(hn::CopySign(set(1.f), r), hn::CopySign(set(1.f), b)), set(0.f)));
  r = hn::IfThenElse(wrong, hn::Add(r, b), r);
  return math::patch(
      r, hn::Not(easy),
      [](float u, float v) {
        float m = std::fmod(u, v);
        return m != 0 && (m < 0) != (v < 0) ? m + v : m;
      },
      a, b);
}

template <Op op>
HWY_INLINE V apply(V a) {
  if constexpr (op == Op::neg) return hn::Neg(a);
  if constexpr (op == Op::abs) return hn::Abs(a);
  if constexpr (op == Op::sign) return hn::IfThenElse(hn::Or(hn::Eq(a, set(0.f)), hn::IsNaN(a)), a, hn::CopySign(set(1.f), a));
  if constexpr (op == Op::relu) return hn::IfThenElseZero(hn::Not(hn::Le(a, set(0.f))), a);
  if constexpr (op == Op::floor) return hn::Floor(a);
  if constexpr (op == Op::ceil) return hn::Ceil(a);
  if constexpr (op == Op::round) return hn::Round(a);
  if constexpr (op == Op::is_finite) return from_mask(hn::IsFinite(a));
  if constexpr (op == Op::logical_not) return from_mask(hn::Eq(a, set(0.f)));
#define RIDGE_CALL_real(name) \
  if constexpr (op == Op::name) return math::name(a);
#define RIDGE_CALL_none(name)
#define RIDGE_CALL_truth(name)
#define RIDGE_CALL_logic(name)
#define RIDGE_CALL_no_gradient(name)
#define RIDGE_OP(name, arity, trait, ...) RIDGE_CALL_##trait(name)
  RIDGE_ELEMENTWISE_OPS(RIDGE_OP)
#undef RIDGE_OP
#undef RIDGE_CALL_real
#undef RIDGE_CALL_none
#undef RIDGE_CALL_truth
#undef RIDGE_CALL_logic
#undef RIDGE_CALL_no_gradient
}

template <Op op>
HWY_INLINE V apply(V a, V b) {
  if constexpr (op == Op::add) return hn::Add(a, b);
  if constexpr (op == Op::sub) return hn::Sub(a, b);
  if constexpr (op == Op::mul) return hn::Mul(a, b);
  if constexpr (op == Op::div) return hn::Div(a, b);
  if constexpr (op == Op::pow) return math::pow(a, b);
  if constexpr (op == Op::minimum) return minimum(a, b);
  if constexpr (op == Op::maximum) return maximum(a, b);
  if constexpr (op == Op::mod) return modulo(a, b);
  if constexpr (op == Op::equal) return from_mask(hn::Eq(a, b));
  if constexpr (op == Op::not_equal) return from_mask(hn::Not(hn::Eq(a, b)));  // NaN differs from everything, including itself
  if constexpr (op == Op::less) return from_mask(hn::Lt(a, b));
  if constexpr (op == Op::less_equal) return from_mask(hn::Le(a, b));
  if constexpr (op == Op::greater) return from_mask(hn::Gt(a, b));
  if constexpr (op == Op::greater_equal) return from_mask(hn::Ge(a, b));
  if constexpr (op == Op::logical_and) return from_mask(hn::And(nonzero(a), nonzero(b)));
  if constexpr (op == Op::logical_or) return from_mask(hn::Or(nonzero(a), nonzero(b)));
  if constexpr (op == Op::logical_xor) return from_mask(hn::Xor(nonzero(a), nonzero(b)));
}

template <Op op>
HWY_INLINE V apply(V a, V b, V c) {
  if constexpr (op == Op::select) return hn::IfThenElse(is_true(a), b, c);
  if constexpr (op == Op::clamp) return minimum(maximum(a, b), c);
}

// Functions that are computed for several vectors together.
constexpr bool has_together(Op op) { return op == Op::gelu_tanh || op == Op::gelu_tanh_grad; }
constexpr int kTogether = HWY_TARGET == HWY_AVX3 ? 8 : 4;

template <Op op>
HWY_INLINE void apply_together(V* x) {
  using All = math::Together<kTogether>;
  if constexpr (op == Op::gelu_tanh) All::gelu_tanh(x);
  if constexpr (op == Op::gelu_tanh_grad) All::gelu_tanh_grad(x);
}

template <Op op, int kArity, int kPattern>
void run_f32(const TileInstr& in, const TileFrame& f, int64_t rows, int64_t cols) {
  const D d;
  const int64_t n = int64_t(hn::Lanes(d));
  const TileSlot *sd = f.slots + in.d, *sa = f.slots + in.a, *sb = kArity > 1 ? f.slots + in.b : sa, *sc = kArity > 2 ? f.slots + in.c : sa;
  constexpr bool kA = kPattern & 1, kB = kPattern & 2, kC = kPattern & 4;
  const bool narrow = kNarrows && can_narrow(op) && in.narrow;
  if (kPattern == 0 && rows > 1 && sd->row == cols * (narrow ? 2 : 4) && sa->row == cols * 4 && sb->row == cols * 4 && sc->row == cols * 4)
    cols *= rows, rows = 1;
  std::byte *pd = sd->p, *pa = sa->p, *pb = sb->p, *pc = sc->p;
  for (int64_t r = 0; r < rows; ++r, pd += sd->row, pa += sa->row, pb += sb->row, pc += sc->row) {
    float* out = reinterpret_cast<float*>(pd);
    const float *a = reinterpret_cast<float*>(pa), *b = reinterpret_cast<float*>(pb), *c = reinterpret_cast<float*>(pc);
    const V va = kA ? set(*a) : hn::Zero(d), vb = kB ? set(*b) : hn::Zero(d), vc = kC ? set(*c) : hn::Zero(d);
    auto point = [&](int64_t i, auto load) HWY_ATTR {
      if constexpr (kArity == 1) return apply<op>(kA ? va : load(a + i));
      if constexpr (kArity == 2) return apply<op>(kA ? va : load(a + i), kB ? vb : load(b + i));
      if constexpr (kArity == 3) return apply<op>(kA ? va : load(a + i), kB ? vb : load(b + i), kC ? vc : load(c + i));
    };
    if (narrow) {
      narrow_row_native(reinterpret_cast<uint16_t*>(pd), cols, point);
      continue;
    }
    const bool stream = in.stream && is_aligned(out);
    int64_t i = 0;
    if constexpr (has_together(op) && kPattern == 0)
      if (!stream)
        for (; i + kTogether * n <= cols; i += kTogether * n) {
          V x[kTogether];
#pragma GCC unroll 8
          for (int v = 0; v < kTogether; ++v) x[v] = hn::LoadU(d, a + i + v * n);
          apply_together<op>(x);
#pragma GCC unroll 8
          for (int v = 0; v < kTogether; ++v) hn::StoreU(x[v], d, out + i + v * n);
        }
    if constexpr (is_heavy(op)) {
      for (; i < cols; i += n) {
        const int64_t live = cols - i;
        V y = point(i, [&](const float* p) HWY_ATTR { return live >= n ? hn::LoadU(d, p) : load_tail(d, p, live); });
        if (HWY_UNLIKELY(live < n)) {
          store_tail(y, d, out + i, live);
        } else if (stream) {
          hn::Stream(y, d, out + i);
        } else {
          hn::StoreU(y, d, out + i);
        }
      }
    } else {
      auto whole = [&](const float* p) HWY_ATTR { return hn::LoadU(d, p); };
      if (stream) {
        for (; i + n <= cols; i += n) hn::Stream(point(i, whole), d, out + i);
      } else {
        for (; i + n <= cols; i += n) hn::StoreU(point(i, whole), d, out + i);
      }
      if (i < cols) store_tail(point(i, [&](const float* p) HWY_ATTR { return load_tail(d, p, cols - i); }), d, out + i, cols - i);
    }
  }
}

#if HWY_TARGET == HWY_AVX3
// Functions that networks use between products.
constexpr bool has_joined(Op op) {
  return has_together(op) || op == Op::gelu_erf || op == Op::gelu_erf_grad || op == Op::silu || op == Op::silu_grad || op == Op::tanh || op == Op::sigmoid;
}

// A function of one operand in one pass with what surrounds it; see TileJoin.
template <Op op>
void run_joined(const TileInstr& in, const TileFrame& f, int64_t rows, int64_t cols) {
  const D d;
  constexpr int64_t n = 16;
  const TileSlot *sd = f.slots + in.d, *sa = f.slots + in.a, *sb = f.slots + in.b, *sc = f.slots + in.c;
  const bool wide = in.join & kWide, store = in.join & kRoundStore, times = in.join & kTimes, round = in.join & kRoundTimes, narrow = in.narrow;
  for (int64_t r = 0; r < rows; ++r) {
    const float *a = reinterpret_cast<const float*>(sa->p + r * sa->row), *b = times ? reinterpret_cast<const float*>(sb->p + r * sb->row) : nullptr;
    const uint16_t* half = reinterpret_cast<const uint16_t*>(a);
    uint16_t* stored = store ? reinterpret_cast<uint16_t*>(sc->p + r * sc->row) : nullptr;
    float* out = reinterpret_cast<float*>(sd->p + r * sd->row);
    uint16_t* narrowed = reinterpret_cast<uint16_t*>(out);
    const bool stream = in.stream && is_aligned(out);
    int64_t i = 0;
    if constexpr (has_together(op)) {
      const auto all = [&](const auto& act) HWY_ATTR {
#pragma GCC unroll 8
        for (int v = 0; v < kTogether; ++v) act(v, i + v * n);
      };
      for (; i + kTogether * n <= cols && !stream; i += kTogether * n) {
        V x[kTogether];
        if (wide)
          all([&](int v, int64_t at) HWY_ATTR { x[v] = wide::load_bf16(d, half + at); });
        else
          all([&](int v, int64_t at) HWY_ATTR { x[v] = hn::LoadU(d, a + at); });
        if (store) all([&](int v, int64_t at) HWY_ATTR { narrow_native(x[v], stored + at), x[v] = wide::load_bf16(d, stored + at); });
        apply_together<op>(x);
        if (times && round)
          all([&](int v, int64_t at) HWY_ATTR { x[v] = hn::Mul(x[v], round_native(hn::LoadU(d, b + at))); });
        else if (times)
          all([&](int v, int64_t at) HWY_ATTR { x[v] = hn::Mul(x[v], hn::LoadU(d, b + at)); });
        if (narrow)
          all([&](int v, int64_t at) HWY_ATTR { narrow_native(x[v], narrowed + at); });
        else
          all([&](int v, int64_t at) HWY_ATTR { hn::StoreU(x[v], d, out + at); });
      }
    }
    for (; i < cols; i += n) {
      const int64_t live = std::min(n, cols - i);
      const bool whole = live == n;
      V x;
      if (wide) {
        uint16_t part[n] = {};
        if (!whole) std::memcpy(part, half + i, size_t(live) * 2);
        x = wide::load_bf16(d, whole ? half + i : part);
      } else {
        x = whole ? hn::LoadU(d, a + i) : load_tail(d, a + i, live);
      }
      if (store) {
        if (whole)
          narrow_native(x, stored + i);
        else
          narrow_slowly(x, stored + i, live);
        x = round_native(x);
      }
      V y = apply<op>(x);
      if (times) {
        const V z = whole ? hn::LoadU(d, b + i) : load_tail(d, b + i, live);
        y = hn::Mul(y, round ? round_native(z) : z);
      }
      if (!whole && narrow)
        narrow_slowly(y, narrowed + i, live);
      else if (!whole)
        store_tail(y, d, out + i, live);
      else if (narrow)
        narrow_native(y, narrowed + i);
      else if (stream)
        hn::Stream(y, d, out + i);
      else
        hn::StoreU(y, d, out + i);
    }
  }
}

// A value that passes through bf16 is added to another: a residual connection.
void add_rounded(const TileInstr& in, const TileFrame& f, int64_t rows, int64_t cols) {
  const D d;
  const TileSlot *sd = f.slots + in.d, *sa = f.slots + in.a, *sb = f.slots + in.b;
  for (int64_t r = 0; r < rows; ++r) {
    const float *a = reinterpret_cast<const float*>(sa->p + r * sa->row), *b = reinterpret_cast<const float*>(sb->p + r * sb->row);
    float* out = reinterpret_cast<float*>(sd->p + r * sd->row);
    const auto point = [&](int64_t i, auto load) HWY_ATTR { return hn::Add(load(a + i), round_native(load(b + i))); };
    if (in.narrow) {
      narrow_row_native(reinterpret_cast<uint16_t*>(out), cols, point);
      continue;
    }
    const auto whole = [&](const float* p) HWY_ATTR { return hn::LoadU(d, p); };
    int64_t i = 0;
    if (in.stream && is_aligned(out)) {
      for (; i + 16 <= cols; i += 16) hn::Stream(point(i, whole), d, out + i);
    } else {
      for (; i + 16 <= cols; i += 16) hn::StoreU(point(i, whole), d, out + i);
    }
    if (i < cols) store_tail(point(i, [&](const float* p) HWY_ATTR { return load_tail(d, p, cols - i); }), d, out + i, cols - i);
  }
}
#endif

// Divides by one value with its reciprocal, then corrects with the quotient's remainder. As exact as a division, except for quotients near the limits of the
// range, at a third of the cost.
struct Divisor {
  V b, inverse;
  bool easy;
  HWY_INLINE explicit Divisor(float divisor) : b(set(divisor)), inverse(hn::Div(set(1.f), b)) {
    const float size = std::fabs(divisor);
    easy = kQuick && size > 0x1p-100f && size < 0x1p100f;
  }
  HWY_INLINE V operator()(V x) const {
    if (HWY_UNLIKELY(!easy)) return hn::Div(x, b);
    V q = hn::Mul(x, inverse), better = hn::MulAdd(hn::NegMulAdd(q, b, x), inverse, q);
    return hn::IfThenElse(hn::IsNaN(better), q, better);  // infinities
  }
  static constexpr bool kQuick = HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_NEON;  // targets with fused multiply-add
};

void divide_by_row(const TileInstr& in, const TileFrame& f, int64_t rows, int64_t cols) {
  const D d;
  const int64_t n = int64_t(hn::Lanes(d));
  const TileSlot *sd = f.slots + in.d, *sa = f.slots + in.a, *sb = f.slots + in.b;
  for (int64_t r = 0; r < rows; ++r) {
    float* out = reinterpret_cast<float*>(sd->p + r * sd->row);
    const float* a = reinterpret_cast<float*>(sa->p + r * sa->row);
    const bool stream = in.stream && is_aligned(out);
    const Divisor quotient(*reinterpret_cast<float*>(sb->p + r * sb->row));
    if (kNarrows && in.narrow) {
      narrow_row_native(reinterpret_cast<uint16_t*>(out), cols, [&](int64_t i, auto load) HWY_ATTR { return quotient(load(a + i)); });
      continue;
    }
    int64_t i = 0;
    if (stream) {
      for (; i + n <= cols; i += n) hn::Stream(quotient(hn::LoadU(d, a + i)), d, out + i);
    } else {
      for (; i + n <= cols; i += n) hn::StoreU(quotient(hn::LoadU(d, a + i)), d, out + i);
    }
    if (i < cols) store_tail(quotient(load_tail(d, a + i, cols - i)), d, out + i, cols - i);
  }
}

// One AdamW step, rounded after every operation like the passes that it replaces. Results may overwrite their inputs.
void update(const TileInstr& in, const TileFrame& f, int64_t rows, int64_t cols) {
  const D d;
  const int64_t n = int64_t(hn::Lanes(d));
  const TileUpdate& u = *static_cast<const TileUpdate*>(in.aux);
  auto factor = [&](int k) HWY_ATTR { return *reinterpret_cast<const float*>(f.slots[u.factors[size_t(k)]].p); };
  const V scale = set(factor(0)), k1 = set(factor(1)), k2 = set(factor(2)), k3 = set(factor(3)), shrink = set(factor(4)), rate = set(factor(5)),
          eps = set(factor(7));
  const Divisor by_root(factor(6));
  const bool good = *reinterpret_cast<const int32_t*>(f.slots[u.good].p) != 0;
  for (int64_t r = 0; r < rows; ++r) {
    auto row = [&](uint32_t slot) { return reinterpret_cast<float*>(f.slots[slot].p + r * f.slots[slot].row); };
    float* const out[] = {row(u.out[0]), row(u.out[1]), row(u.out[2])};
    const float* const from[] = {row(u.in[0]), row(u.in[1]), row(u.in[2]), row(u.in[3])};
    auto point = [&](int64_t i, auto load, auto store) HWY_ATTR {
      const V p = load(from[0] + i), m = load(from[1] + i), v = load(from[2] + i), g = hn::Mul(load(from[3] + i), scale);
      const V m1 = hn::Add(m, hn::Mul(hn::Sub(g, m), k1)), v1 = hn::Add(hn::Mul(v, k2), hn::Mul(hn::Mul(g, k3), g));
      const V p1 = hn::Sub(hn::Mul(p, shrink), hn::Div(hn::Mul(m1, rate), hn::Add(by_root(hn::Sqrt(v1)), eps)));
      store(good ? p1 : p, out[0] + i), store(good ? m1 : m, out[1] + i), store(good ? v1 : v, out[2] + i);
    };
    int64_t i = 0;
    constexpr int64_t kAhead = 512;  // elements; memory is the bottleneck
    for (; i + n <= cols; i += n) {
      for (const float* p : from) __builtin_prefetch(p + i + kAhead);
      point(
          i, [&](const float* p) HWY_ATTR { return hn::LoadU(d, p); }, [&](V x, float* p) HWY_ATTR { hn::StoreU(x, d, p); });
    }
    if (i < cols)
      point(
          i, [&](const float* p) HWY_ATTR { return load_tail(d, p, cols - i); }, [&](V x, float* p) HWY_ATTR { store_tail(x, d, p, cols - i); });
  }
}

// Integers: plain loops that the compiler vectorises; arithmetic wraps around.
template <class T>
T wrap(std::make_unsigned_t<T> u) {
  return T(u);
}

template <class T>
T power(T base, T exponent) {
  using U = std::make_unsigned_t<T>;
  if (exponent < 0) return base == 1 ? 1 : base == -1 ? (exponent & 1 ? -1 : 1) : 0;
  U result = 1, b = U(base);
  for (U e = U(exponent); e; e >>= 1, b *= b)
    if (e & 1) result *= b;
  return T(result);
}

template <Op op, class T>
HWY_INLINE auto apply_int(T a, T b) {
  using U = std::make_unsigned_t<T>;
  if constexpr (op == Op::neg)
    return wrap<T>(U(0) - U(a));
  else if constexpr (op == Op::abs)
    return a < 0 ? wrap<T>(U(0) - U(a)) : a;
  else if constexpr (op == Op::sign)
    return T((a > 0) - (a < 0));
  else if constexpr (op == Op::relu)
    return a > 0 ? a : T(0);
  else if constexpr (op == Op::floor || op == Op::ceil || op == Op::round)
    return a;
  else if constexpr (op == Op::is_finite)
    return int32_t(1);
  else if constexpr (op == Op::logical_not)
    return int32_t(a == 0);
  else if constexpr (op == Op::add)
    return wrap<T>(U(a) + U(b));
  else if constexpr (op == Op::sub)
    return wrap<T>(U(a) - U(b));
  else if constexpr (op == Op::mul)
    return wrap<T>(U(a) * U(b));
  else if constexpr (op == Op::div)
    return b == 0 ? T(0) : b == -1 ? wrap<T>(U(0) - U(a)) : T(a / b);
  else if constexpr (op == Op::mod) {
    T r = b == 0 || b == -1 ? T(0) : T(a % b);
    return r != 0 && (r < 0) != (b < 0) ? T(r + b) : r;
  } else if constexpr (op == Op::pow)
    return power(a, b);
  else if constexpr (op == Op::minimum)
    return a < b ? a : b;
  else if constexpr (op == Op::maximum)
    return a > b ? a : b;
  else if constexpr (op == Op::equal)
    return int32_t(a == b);
  else if constexpr (op == Op::not_equal)
    return int32_t(a != b);
  else if constexpr (op == Op::less)
    return int32_t(a < b);
  else if constexpr (op == Op::less_equal)
    return int32_t(a <= b);
  else if constexpr (op == Op::greater)
    return int32_t(a > b);
  else if constexpr (op == Op::greater_equal)
    return int32_t(a >= b);
  else if constexpr (op == Op::logical_and)
    return int32_t(a != 0 && b != 0);
  else if constexpr (op == Op::logical_or)
    return int32_t(a != 0 || b != 0);
  else if constexpr (op == Op::logical_xor)
    return int32_t((a != 0) != (b != 0));
}

template <Op op, class T>
constexpr bool has_int = !std::is_void_v<decltype(apply_int<op, T>(T(), T()))>;

template <Op op, class T, int kArity, int kPattern>
void run_int(const TileInstr& in, const TileFrame& f, int64_t rows, int64_t cols) {
  using Out = decltype(apply_int<op, T>(T(), T()));
  constexpr bool unary = kArity == 1;  // the second slot belongs to another node and must not be read
  const TileSlot *sd = f.slots + in.d, *sa = f.slots + in.a, *sb = f.slots + in.b;
  for (int64_t r = 0; r < rows; ++r) {
    Out* out = reinterpret_cast<Out*>(sd->p + r * sd->row);
    const T *a = reinterpret_cast<T*>(sa->p + r * sa->row), *b = reinterpret_cast<T*>(sb->p + r * sb->row);
    const T a0 = kPattern & 1 ? *a : T(0), b0 = !unary && kPattern & 2 ? *b : T(0);
    for (int64_t i = 0; i < cols; ++i) out[i] = apply_int<op, T>(kPattern & 1 ? a0 : a[i], unary || kPattern & 2 ? b0 : b[i]);
  }
}

template <Op op, class T, int kPattern>
void run_int3(const TileInstr& in, const TileFrame& f, int64_t rows, int64_t cols) {
  using A = std::conditional_t<op == Op::select, int32_t, T>;
  const TileSlot *sd = f.slots + in.d, *sa = f.slots + in.a, *sb = f.slots + in.b, *sc = f.slots + in.c;
  for (int64_t r = 0; r < rows; ++r) {
    T* out = reinterpret_cast<T*>(sd->p + r * sd->row);
    const A* a = reinterpret_cast<A*>(sa->p + r * sa->row);
    const T *b = reinterpret_cast<T*>(sb->p + r * sb->row), *c = reinterpret_cast<T*>(sc->p + r * sc->row);
    const A a0 = *a;
    const T b0 = *b, c0 = *c;
    for (int64_t i = 0; i < cols; ++i) {
      A x = kPattern & 1 ? a0 : a[i];
      T y = kPattern & 2 ? b0 : b[i], z = kPattern & 4 ? c0 : c[i];
      if constexpr (op == Op::select) {
        out[i] = x != 0 ? y : z;
      } else {
        out[i] = std::min(std::max(x, y), z);
      }
    }
  }
}

// Seed, counter and lane; one Philox block per element.
template <int kPattern>
void random_at(const TileInstr& in, const TileFrame& f, int64_t rows, int64_t cols) {
  const DU du;
  const int64_t n = int64_t(hn::Lanes(du));
  const TileSlot *sd = f.slots + in.d, *sa = f.slots + in.a, *sb = f.slots + in.b, *sc = f.slots + in.c;
  for (int64_t r = 0; r < rows; ++r) {
    float* out = reinterpret_cast<float*>(sd->p + r * sd->row);
    const std::byte *a = sa->p + r * sa->row, *b = sb->p + r * sb->row, *c = sc->p + r * sc->row;
    for (int64_t i = 0; i < cols; i += n) {
      const int64_t live = std::min(n, cols - i);
      auto halves = [&](bool one, const std::byte* from, VU& low, VU& high) HWY_ATTR {
        HWY_ALIGN uint32_t part[2 * hn::MaxLanes(DU())] = {};
        if (one) {
          std::memcpy(part, from, 8);
          low = hn::Set(du, part[0]), high = hn::Set(du, part[1]);
        } else if (live == n) {
          hn::LoadInterleaved2(du, reinterpret_cast<const uint32_t*>(from + 8 * i), low, high);
        } else {
          std::memcpy(part, from + 8 * i, size_t(live) * 8);
          hn::LoadInterleaved2(du, part, low, high);
        }
      };
      VU k0, k1, words[4];
      halves(kPattern & 1, a, k0, k1);
      halves(kPattern & 2, b, words[0], words[1]);
      halves(kPattern & 4, c, words[2], words[3]);
      philox_rounds(k0, k1, words);
      if (live == n) {
        hn::StoreU(uniform_of(words[0]), D(), out + i);
      } else {
        store_tail(uniform_of(words[0]), D(), out + i, live);
      }
    }
  }
}

template <Op op, int kArity, int kPattern>
void set_pattern(TileHandlers& t) {
  auto& row = t.op[int(op)];
  if constexpr (op == Op::random_at)
    row[2][kPattern] = random_at<kPattern>;
  else
    row[0][kPattern] = run_f32<op, kArity, kPattern>;
  if constexpr (op == Op::random_at) {
  } else if constexpr (kArity == 3) {
    row[1][kPattern] = op == Op::select ? row[0][kPattern] : run_int3<op, int32_t, kPattern>;
    row[2][kPattern] = run_int3<op, int64_t, kPattern>;
  } else if constexpr (has_int<op, int32_t>) {
    row[1][kPattern] = run_int<op, int32_t, kArity, kPattern>;
    row[2][kPattern] = run_int<op, int64_t, kArity, kPattern>;
  }
}

template <Op op, int kArity>
void set_op(TileHandlers& t) {
  if constexpr (op == Op::cast)
    return;  // casts have their own table
  else {
    set_pattern<op, kArity, 0>(t);
#if HWY_TARGET == HWY_AVX3
    if constexpr (kArity == 1 && has_joined(op)) t.joined[int(op)] = run_joined<op>;
#endif
    if constexpr (kArity >= 2) set_pattern<op, kArity, 1>(t), set_pattern<op, kArity, 2>(t);
    if constexpr (kArity == 3) {
      set_pattern<op, kArity, 3>(t), set_pattern<op, kArity, 4>(t), set_pattern<op, kArity, 5>(t), set_pattern<op, kArity, 6>(t);
    }
  }
}

}  // namespace

void fill_elementwise(TileHandlers& t) {
  t.lanes = int(hn::Lanes(D()));
#define RIDGE_OP(name, arity, ...) set_op<Op::name, arity>(t);
  RIDGE_ELEMENTWISE_OPS(RIDGE_OP)
#undef RIDGE_OP
  if (Divisor::kQuick) t.op[int(Op::div)][0][2] = divide_by_row;
#if HWY_TARGET == HWY_AVX3
  t.add_rounded = add_rounded;
#endif
  t.update = update;
}

}  // namespace HWY_NAMESPACE
}  // namespace ridge::cpu
HWY_AFTER_NAMESPACE();
