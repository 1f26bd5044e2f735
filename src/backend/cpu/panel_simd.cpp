// Instructions of panel programs: the current value stays in registers from one to the next.
#include "base/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/panel_simd.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "backend/cpu/tile_handlers.h"

HWY_BEFORE_NAMESPACE();
namespace ridge::cpu {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

// Eight samples, so that a batch of 16 gives two threads whole vectors; or as many as a vector has.
using Eight = hn::CappedTag<float, 8>;
using Full = hn::ScalableTag<float>;

template <class D>
struct Functions {
  using V = hn::Vec<D>;
  static HWY_INLINE V value(float x) { return hn::Set(D(), x); }

  // exp(x) for x in [-104, 89], or exp(-x), within 1 ulp
  template <bool kNegative = false>
  static HWY_INLINE V exp_inside(V x) {
    constexpr float s = kNegative ? -1 : 1;
    const V n = hn::Round(hn::Mul(x, value(s * 1.44269504089f)));
    V r = hn::MulAdd(n, value(-s * 0.693145751953125f), x);  // 15 bits, so that n times this is exact
    r = hn::MulAdd(n, value(-s * 1.42860682e-6f), r);        // x less n ln 2, or plus it
    V q = hn::MulAdd(value(0.0013950615956f), r, value(s * 0.0083689533411f));
    q = hn::MulAdd(q, r, value(0.041666203889f));
    q = hn::MulAdd(q, r, value(s * 0.16666518309f));
    q = hn::MulAdd(q, r, value(0.50000000958f));
    q = hn::MulAdd(q, r, value(s));
    const V p = hn::MulAdd(q, r, value(1.f));
#if HWY_TARGET == HWY_AVX3
    if constexpr (sizeof(V) == 64) return V{_mm512_scalef_ps(p.raw, n.raw)};
    if constexpr (sizeof(V) == 32) return V{_mm256_scalef_ps(p.raw, n.raw)};
#else
    const hn::RebindToSigned<D> di;
    const auto whole = hn::ConvertTo(di, n), half = hn::ShiftRight<1>(whole);
    auto power = [&](auto k) HWY_ATTR { return hn::BitCast(D(), hn::ShiftLeft<23>(hn::Add(k, hn::Set(di, 127)))); };
    return hn::Mul(hn::Mul(p, power(half)), power(hn::Sub(whole, half)));
#endif
  }

  // The smaller and the larger of the two; a NaN in the second operand propagates.
  static HWY_INLINE V at_most(float limit, V x) {
#if HWY_TARGET == HWY_NEON
    return V{vminq_f32(value(limit).raw, x.raw)};
#else
    return hn::Min(value(limit), x);
#endif
  }
  static HWY_INLINE V at_least(float limit, V x) {
#if HWY_TARGET == HWY_NEON
    return V{vmaxq_f32(value(limit).raw, x.raw)};
#else
    return hn::Max(value(limit), x);
#endif
  }

  // x / y to about 1.5 ulp for y in [1, 2^127]
  static HWY_INLINE V divide_approx(V x, V y) {
#if HWY_TARGET == HWY_AVX3
    V r;
    if constexpr (sizeof(V) == 64) r = V{_mm512_rcp14_ps(y.raw)};
    if constexpr (sizeof(V) == 32) r = V{_mm256_rcp14_ps(y.raw)};
    return hn::Mul(x, hn::MulAdd(hn::NegMulAdd(y, r, value(1.f)), r, r));
#else
    return hn::Div(x, y);
#endif
  }

  static HWY_INLINE V exp(V x) { return exp_inside(at_most(89.f, at_least(-104.f, x))); }
  // Within 3 ulp; below -87.34, where the exact value is denormal, at most the least normal number.
  static HWY_INLINE V sigmoid(V x) { return divide_approx(value(1.f), hn::Add(value(1.f), exp_inside<true>(at_most(87.34f, at_least(-87.34f, x))))); }
  // Beyond 0.55 by the exponential, where little cancels; else by its series. Within 3 ulp.
  static HWY_INLINE V tanh(V x) {
    const V a = at_most(10.f, hn::Abs(x)), e = exp_inside(hn::Add(a, a));
    const V far = hn::Sub(value(1.f), divide_approx(value(2.f), hn::Add(e, value(1.f))));
    const V y = hn::Mul(x, x);
    V q = value(0.000590027441f);
    for (float c : {-0.00145583438f, 0.00359212803f, -0.00886323552f, 0.0218694885f, -0.0539682540f, 0.133333333f, -0.333333333f})
      q = hn::MulAdd(q, y, value(c));
    const V near = hn::MulAdd(hn::Mul(x, y), q, x);
    return hn::IfThenElse(hn::Gt(a, value(0.55f)), hn::CopySign(far, x), near);
  }
};

// Two lanes in a vector are interleaved.
template <int kLanes, class D>
HWY_INLINE hn::Vec<D> numbers_of(D d, const float* p) {
  if constexpr (kLanes == 2) {
    const hn::Repartition<double, D> pairs;
    double pair;
    __builtin_memcpy(&pair, p, 8);
    return hn::BitCast(d, hn::Set(pairs, pair));
  } else {
    return hn::Set(d, *p);
  }
}

template <class D, int kCount, int kLanes>
void run_vectors(const std::vector<PanelInstr>& program, const PanelFrame& frame, int64_t target, int64_t lane, int64_t sample) {
  using V = hn::Vec<D>;
  using F = Functions<D>;
  const D d;
  constexpr int64_t kWidth = int64_t(hn::MaxLanes(D()));
  V x[kCount];
#pragma GCC unroll 8
  for (int u = 0; u < kCount; ++u) x[u] = hn::Zero(d);
  // The lanes of the last vector that are summed: of two, perhaps only the first.
  const auto last = hn::Not(hn::And(hn::RebindMask(d, hn::TestBit(hn::Iota(hn::RebindToSigned<D>(), 0), hn::Set(hn::RebindToSigned<D>(), 1))),
                                    hn::Gt(hn::Set(d, frame.halves ? 1.f : 0.f), hn::Zero(d))));
  const PanelInstr* const end = program.data() + program.size();
  for (const PanelInstr* in = program.data(); in != end; ++in) {
    const PanelSlot& slot = frame.slots[in->slot];
    std::byte* p = slot.p + target * slot.n + lane * slot.l + sample * slot.s;
    auto at = [&](int64_t bytes) HWY_ATTR { return reinterpret_cast<float*>(p + bytes); };
    // op(u, operand of vector u)
    auto each = [&](auto op) HWY_ATTR {
      switch (in->kind) {
        case PanelKind::number: {
          const V y = hn::Set(d, *at(0));
#pragma GCC unroll 8
          for (int u = 0; u < kCount; ++u) op(u, y);
          break;
        }
        case PanelKind::numbers:
#pragma GCC unroll 8
          for (int u = 0; u < kCount; ++u) op(u, numbers_of<kLanes>(d, at(u * slot.u)));
          break;
        case PanelKind::vector: {
          const V y = hn::LoadU(d, at(0));
#pragma GCC unroll 8
          for (int u = 0; u < kCount; ++u) op(u, y);
          break;
        }
        case PanelKind::vectors:
#pragma GCC unroll 8
          for (int u = 0; u < kCount; ++u) op(u, hn::LoadU(d, at(u * slot.u)));
          break;
        case PanelKind::row: p += slot.offsets[lane]; [[fallthrough]];
        case PanelKind::consecutive:
#pragma GCC unroll 8
          for (int u = 0; u < kCount; ++u) op(u, hn::LoadU(d, at(u * kWidth * 4)));
          break;
        case PanelKind::picked: {
          const int32_t* const offset = slot.offsets + lane * kLanes;
#pragma GCC unroll 8
          for (int u = 0; u < kCount; ++u) {
            const V first = hn::LoadU(d, at(offset[u * kLanes]));
            op(u, kLanes == 2 ? hn::OddEven(hn::LoadU(d, at(offset[u * kLanes + kLanes - 1])), first) : first);
          }
          break;
        }
      }
    };
    auto binary = [&](auto op) HWY_ATTR { each([&](int u, V b) HWY_ATTR { x[u] = op(x[u], b); }); };
    auto unary = [&](auto op) HWY_ATTR {
#pragma GCC unroll 8
      for (int u = 0; u < kCount; ++u) x[u] = op(x[u]);
    };
    // Two chains, in an order that depends on the count only.
    auto add_to_sum = [&](V even, V odd) HWY_ATTR {
      float* sum = frame.sums + in->sum * kWidth;
      hn::Store(hn::Add(hn::Load(d, sum), hn::Add(even, odd)), d, sum);
    };
    switch (in->code) {
      case PanelCode::load: binary([](V, V b) HWY_ATTR { return b; }); break;
      case PanelCode::add: binary([](V a, V b) HWY_ATTR { return hn::Add(a, b); }); break;
      case PanelCode::sub: binary([](V a, V b) HWY_ATTR { return hn::Sub(a, b); }); break;
      case PanelCode::sub_from: binary([](V a, V b) HWY_ATTR { return hn::Sub(b, a); }); break;
      case PanelCode::mul: binary([](V a, V b) HWY_ATTR { return hn::Mul(a, b); }); break;
      case PanelCode::div: binary([](V a, V b) HWY_ATTR { return hn::Div(a, b); }); break;
      case PanelCode::div_into: binary([](V a, V b) HWY_ATTR { return hn::Div(b, a); }); break;
      case PanelCode::neg: unary([](V a) HWY_ATTR { return hn::Neg(a); }); break;
      case PanelCode::abs: unary([](V a) HWY_ATTR { return hn::Abs(a); }); break;
      case PanelCode::sqrt: unary([](V a) HWY_ATTR { return hn::Sqrt(a); }); break;
      case PanelCode::exp: unary([](V a) HWY_ATTR { return F::exp(a); }); break;
      case PanelCode::tanh: unary([](V a) HWY_ATTR { return F::tanh(a); }); break;
      case PanelCode::sigmoid: unary([](V a) HWY_ATTR { return F::sigmoid(a); }); break;
      case PanelCode::sum: {
        V even = hn::Zero(d), odd = even;
#pragma GCC unroll 8
        for (int u = 0; u < kCount; ++u) {
          const V term = kLanes == 2 && u == kCount - 1 ? hn::IfThenElseZero(last, x[u]) : x[u];
          u % 2 ? odd = hn::Add(odd, term) : even = hn::Add(even, term);
        }
        add_to_sum(even, odd);
        break;
      }
      case PanelCode::sum_product: {
        V even = hn::Zero(d), odd = even;
        each([&](int u, V b) HWY_ATTR {
          V& to = u % 2 ? odd : even;
          const V more = hn::MulAdd(x[u], b, to);
          to = kLanes == 2 && u == kCount - 1 ? hn::IfThenElse(last, more, to) : more;
        });
        add_to_sum(even, odd);
        break;
      }
      case PanelCode::store:
#pragma GCC unroll 8
        for (int u = 0; u < kCount; ++u) hn::StoreU(x[u], d, at(u * kWidth * 4));
        break;
      case PanelCode::store_first:
#pragma GCC unroll 8
        for (int u = 0; u < kCount; ++u) *at(u * slot.u) = hn::GetLane(x[u]);
        break;
    }
  }
}

template <class D, int kLanes>
void run_panel(const std::vector<PanelInstr>& program, const PanelFrame& frame, int64_t target, int64_t lane, int64_t sample, int64_t count) {
  switch (count) {
    case 1: return run_vectors<D, 1, kLanes>(program, frame, target, lane, sample);
    case 2: return run_vectors<D, 2, kLanes>(program, frame, target, lane, sample);
    case 3: return run_vectors<D, 3, kLanes>(program, frame, target, lane, sample);
    case 4: return run_vectors<D, 4, kLanes>(program, frame, target, lane, sample);
    case 5: return run_vectors<D, 5, kLanes>(program, frame, target, lane, sample);
    case 6: return run_vectors<D, 6, kLanes>(program, frame, target, lane, sample);
    case 7: return run_vectors<D, 7, kLanes>(program, frame, target, lane, sample);
    default: return run_vectors<D, 8, kLanes>(program, frame, target, lane, sample);
  }
}

template <class D>
void add_totals(float* sums, float* totals, int64_t n) {
  const D d;
  for (int64_t i = 0; i < n; ++i) {
    float* const sum = sums + i * int64_t(hn::MaxLanes(d));
    totals[i] += hn::GetLane(hn::SumOfLanes(d, hn::Load(d, sum)));
    hn::Store(hn::Zero(d), d, sum);
  }
}

template <class D>
PanelHandlers handlers_of() {
  return {run_panel<D, 1>, add_totals<D>, int64_t(hn::MaxLanes(D()))};
}

#if HWY_TARGET == HWY_AVX3
void spread(const float* rows, float* twice, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const __m512i x = _mm512_cvtepu32_epi64(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows + 8 * i)));
    _mm512_storeu_si512(twice + 16 * i, _mm512_or_si512(x, _mm512_slli_epi64(x, 32)));
  }
}

void fold(const float* sums, float* totals, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const __m512 x = _mm512_loadu_ps(sums + 16 * i), both = _mm512_add_ps(x, _mm512_permute_ps(x, 0xb1));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(totals + 8 * i), _mm512_cvtepi64_epi32(_mm512_castps_si512(both)));
  }
}

PanelLanes vectors_of_lanes() { return {run_panel<Full, 2>, 2, spread, fold}; }
#else
void fold(const float* sums, float* totals, int64_t n) { __builtin_memcpy(totals, sums, size_t(n) * hn::MaxLanes(Eight()) * 4); }

PanelLanes vectors_of_lanes() { return {run_panel<Eight, 1>, 1, nullptr, fold}; }
#endif

}  // namespace

void fill_panels(TileHandlers& t) { t.panel[0] = handlers_of<Eight>(), t.panel[1] = handlers_of<Full>(), t.panel_lanes = vectors_of_lanes(); }

}  // namespace HWY_NAMESPACE
}  // namespace ridge::cpu
HWY_AFTER_NAMESPACE();
