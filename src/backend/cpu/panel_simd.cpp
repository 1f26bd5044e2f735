// Instructions of panel programs: the current value stays in registers from one to the next.
#include <array>
#include <utility>

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

// Functions of n vectors, an operation for all of them before the next one: then few operations wait in the core for what comes before them.
template <class D, int n>
struct Functions {
  using V = hn::Vec<D>;
  static HWY_INLINE V value(float x) { return hn::Set(D(), x); }
  template <class F>
  static HWY_INLINE void each(const F& f) {
#pragma GCC unroll 8
    for (int i = 0; i < n; ++i) f(i);
  }

  // y = exp(x) for x in [-104, 89], or exp(-x), within 1 ulp
  template <bool kNegative = false>
  static HWY_INLINE void exp_inside(const V* x, V* y) {
    constexpr float s = kNegative ? -1 : 1;
    V whole[n], r[n];
    each([&](int i) HWY_ATTR { whole[i] = hn::Mul(x[i], value(s * 1.44269504089f)); });
    each([&](int i) HWY_ATTR { whole[i] = hn::Round(whole[i]); });
    each([&](int i) HWY_ATTR { r[i] = hn::MulAdd(whole[i], value(-s * 0.693145751953125f), x[i]); });  // 15 bits, so that the product is exact
    each([&](int i) HWY_ATTR { r[i] = hn::MulAdd(whole[i], value(-s * 1.42860682e-6f), r[i]); });      // x less a multiple of ln 2, or plus it
    each([&](int i) HWY_ATTR { y[i] = hn::MulAdd(value(0.0013950615956f), r[i], value(s * 0.0083689533411f)); });
    for (float c : {0.041666203889f, s * 0.16666518309f, 0.50000000958f, s, 1.f}) each([&](int i) HWY_ATTR { y[i] = hn::MulAdd(y[i], r[i], value(c)); });
    each([&](int i) HWY_ATTR { y[i] = scaled(y[i], whole[i]); });
  }
  // x times 2 to the power of a whole number of at most 160
  static HWY_INLINE V scaled(V x, V power) {
#if HWY_TARGET == HWY_AVX3
    if constexpr (sizeof(V) == 64) return V{_mm512_scalef_ps(x.raw, power.raw)};
    if constexpr (sizeof(V) == 32) return V{_mm256_scalef_ps(x.raw, power.raw)};
#else
    const hn::RebindToSigned<D> di;
    const auto whole = hn::ConvertTo(di, power), half = hn::ShiftRight<1>(whole);
    auto two_to = [&](auto k) HWY_ATTR { return hn::BitCast(D(), hn::ShiftLeft<23>(hn::Add(k, hn::Set(di, 127)))); };
    return hn::Mul(hn::Mul(x, two_to(half)), two_to(hn::Sub(whole, half)));
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
  static HWY_INLINE void clamp(float least, float most, V* x) {
    each([&](int i) HWY_ATTR { x[i] = at_least(least, x[i]); });
    each([&](int i) HWY_ATTR { x[i] = at_most(most, x[i]); });
  }

  static HWY_INLINE void exp(V* x) {
    clamp(-104.f, 89.f, x);
    exp_inside(x, x);
  }
  // Within 3 ulp; below -87.34, where the exact value is denormal, at most the least normal number.
  static HWY_INLINE void sigmoid(V* x) {
    clamp(-87.34f, 87.34f, x);
    exp_inside<true>(x, x);
    each([&](int i) HWY_ATTR { x[i] = hn::Add(value(1.f), x[i]); });
    each([&](int i) HWY_ATTR { x[i] = hn::Div(value(1.f), x[i]); });
  }
  // Beyond 0.55 by the exponential, where little cancels; else by its series. Within 3 ulp.
  static HWY_INLINE void tanh(V* x) {
    V twice[n], far[n];
    each([&](int i) HWY_ATTR { twice[i] = at_most(10.f, hn::Abs(x[i])); });
    each([&](int i) HWY_ATTR { far[i] = hn::Add(twice[i], twice[i]); });
    exp_inside(far, far);
    each([&](int i) HWY_ATTR {
      far[i] = hn::Sub(value(1.f), hn::Div(value(2.f), hn::Add(far[i], value(1.f))));
      const V y = hn::Mul(x[i], x[i]);
      V q = value(0.000590027441f);
      for (float c : {-0.00145583438f, 0.00359212803f, -0.00886323552f, 0.0218694885f, -0.0539682540f, 0.133333333f, -0.333333333f})
        q = hn::MulAdd(q, y, value(c));
      const V near = hn::MulAdd(hn::Mul(x[i], y), q, x[i]);
      x[i] = hn::IfThenElse(hn::Gt(twice[i], value(0.55f)), hn::CopySign(far[i], x[i]), near);
    });
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

// A step is a function that calls the next one, with the current value of kCount vectors in registers.
template <class D, PanelForm form, int kLanes, int kCount>
struct Machine {
  using V = hn::Vec<D>;
  using F = Functions<D, kCount>;
  using Step = void (*)(const PanelStep*, const PanelPlace*, V, V, V, V, V, V, V, V);
  static constexpr int64_t kWidth = int64_t(hn::MaxLanes(D()));

  static void make_ready(std::span<const PanelInstr> program, const PanelSlot* slots, PanelStep* steps) {
    for (const PanelInstr& in : program)
      *steps++ = {reinterpret_cast<const void*>(kSteps[size_t(int(in.code) * kPanelKinds + int(in.kind))]), slots[in.slot], in.sum * kWidth * 4};
  }

  static HWY_INLINE void next(const PanelStep* in, const PanelPlace* at, V x0, V x1, V x2, V x3, V x4, V x5, V x6, V x7) {
    reinterpret_cast<Step>(in->run)(in, at, x0, x1, x2, x3, x4, x5, x6, x7);
  }

 private:
  template <PanelKind kind>
  static HWY_INLINE std::byte* place_of(const PanelStep& in, const PanelPlace& at) {
    if constexpr (kind == PanelKind::kept || kind == PanelKind::picked || kind == PanelKind::own) return in.slot.p;
    if constexpr (form == PanelForm::after) return in.slot.p + at.target * in.slot.n + at.lane * in.slot.l;
    if constexpr (kind == PanelKind::number || kind == PanelKind::numbers) return in.slot.p + at.lane * in.slot.l;
    if constexpr (kind == PanelKind::vector) return in.slot.p;
    return in.slot.p + at.sample + (kind == PanelKind::row ? in.slot.offsets[at.lane] : at.target * in.slot.n);
  }

  // op(u, operand of vector u)
  template <PanelKind kind, class Op>
  static HWY_INLINE void each(const PanelStep& in, const PanelPlace& at, const Op& op) {
    const D d;
    // Copies: stores of sums might change the originals.
    const std::byte* const p = place_of<kind>(in, at);
    const int32_t* const offsets = in.slot.offsets + at.lane * kLanes;
    const int64_t stride = form == PanelForm::lanes ? kLanes * 4 : in.slot.u;
    auto floats = [p](int64_t bytes) HWY_ATTR { return reinterpret_cast<const float*>(p + bytes); };
    V all = hn::Zero(d);
    if constexpr (kind == PanelKind::number) all = hn::Set(d, *floats(0));
    if constexpr (kind == PanelKind::vector) all = hn::LoadU(d, floats(0));
#pragma GCC unroll 8
    for (int u = 0; u < kCount; ++u) {
      if constexpr (kind == PanelKind::number || kind == PanelKind::vector) op(u, all);
      if constexpr (kind == PanelKind::numbers) op(u, numbers_of<kLanes>(d, floats(u * (form == PanelForm::lanes ? kLanes * 4 : stride))));
      if constexpr (kind == PanelKind::vectors) op(u, hn::LoadU(d, floats(u * stride)));
      if constexpr (kind == PanelKind::consecutive || kind == PanelKind::kept || kind == PanelKind::row) op(u, hn::LoadU(d, floats(u * kWidth * 4)));
      if constexpr (kind == PanelKind::own) op(u, hn::LoadU(d, floats(offsets[u * kLanes])));
      if constexpr (kind == PanelKind::picked) {
        const V first = hn::LoadU(d, floats(offsets[u * kLanes]));
        op(u, kLanes == 2 ? hn::OddEven(hn::LoadU(d, floats(offsets[u * kLanes + kLanes - 1])), first) : first);
      }
    }
  }

  template <PanelCode code>
  static HWY_INLINE V changed(V x, V y) {
    if constexpr (code == PanelCode::load) return y;
    if constexpr (code == PanelCode::add) return hn::Add(x, y);
    if constexpr (code == PanelCode::sub) return hn::Sub(x, y);
    if constexpr (code == PanelCode::sub_from) return hn::Sub(y, x);
    if constexpr (code == PanelCode::mul) return hn::Mul(x, y);
    if constexpr (code == PanelCode::div) return hn::Div(x, y);
    if constexpr (code == PanelCode::div_into) return hn::Div(y, x);
    if constexpr (code == PanelCode::neg) return hn::Neg(x);
    if constexpr (code == PanelCode::abs) return hn::Abs(x);
    if constexpr (code == PanelCode::sqrt) return hn::Sqrt(x);
    if constexpr (code == PanelCode::slope) return hn::Mul(x, hn::Sub(hn::Set(D(), 1.f), x));
    return x;
  }

  template <PanelCode code, PanelKind kind>
  static void step(const PanelStep* in, const PanelPlace* at, V x0, V x1, V x2, V x3, V x4, V x5, V x6, V x7) {
    const D d;
    V x[8] = {x0, x1, x2, x3, x4, x5, x6, x7};
    if constexpr (code == PanelCode::end) return;
    if constexpr (code == PanelCode::store || code == PanelCode::store_first) {
      std::byte* const p = place_of < form == PanelForm::after ? kind : PanelKind::kept > (*in, *at);
      const int64_t stride = in->slot.u;
#pragma GCC unroll 8
      for (int u = 0; u < kCount; ++u)
        code == PanelCode::store ? hn::StoreU(x[u], d, reinterpret_cast<float*>(p + u * kWidth * 4))
                                 : void(*reinterpret_cast<float*>(p + u * stride) = hn::GetLane(x[u]));
    } else if constexpr (code == PanelCode::sum || code == PanelCode::sum_product) {
      std::byte* const sums = reinterpret_cast<std::byte*>(at->sums) + in->sum;
      const int32_t* const into = form == PanelForm::lanes ? at->into + at->lane : nullptr;
      V chain[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
      auto add = [&](int u, V y) HWY_ATTR {
        auto more = [&](V sum) HWY_ATTR { return code == PanelCode::sum ? hn::Add(sum, x[u]) : hn::MulAdd(x[u], y, sum); };
        if constexpr (form == PanelForm::lanes) {
          float* const sum = reinterpret_cast<float*>(sums + into[u]);
          hn::Store(more(hn::Load(d, sum)), d, sum);
        } else {
          chain[u % 4] = more(chain[u % 4]);
        }
      };
      if constexpr (code == PanelCode::sum) {
#pragma GCC unroll 8
        for (int u = 0; u < kCount; ++u) add(u, x[u]);
      } else {
        each<kind>(*in, *at, add);
      }
      if constexpr (form != PanelForm::lanes) {
        float* const sum = reinterpret_cast<float*>(sums);
        hn::Store(hn::Add(hn::Load(d, sum), hn::Add(hn::Add(chain[0], chain[1]), hn::Add(chain[2], chain[3]))), d, sum);
      }
    } else if constexpr (has_operand(code)) {
      each<kind>(*in, *at, [&](int u, V y) HWY_ATTR { x[u] = changed<code>(x[u], y); });
    } else if constexpr (code == PanelCode::exp) {
      F::exp(x);
    } else if constexpr (code == PanelCode::tanh) {
      F::tanh(x);
    } else if constexpr (code == PanelCode::sigmoid) {
      F::sigmoid(x);
    } else {
#pragma GCC unroll 8
      for (int u = 0; u < kCount; ++u) x[u] = changed<code>(x[u], x[u]);
    }
    next(in + 1, at, x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7]);
  }

  static constexpr bool occurs(PanelCode code, PanelKind kind) {
    if (!has_operand(code)) return kind == PanelKind::vector;
    if (code == PanelCode::sum_product && form == PanelForm::after) return false;
    if (kind == PanelKind::number || kind == PanelKind::kept) return true;
    if (form == PanelForm::lanes) return kind == PanelKind::numbers || kind == PanelKind::vector || kind == PanelKind::picked || kind == PanelKind::own;
    if (form == PanelForm::samples) return kind == PanelKind::consecutive || kind == PanelKind::row;
    return kind < PanelKind::kept;
  }
  template <int i>
  static constexpr Step step_of() {
    constexpr PanelCode code = PanelCode(i / kPanelKinds);
    constexpr PanelKind kind = PanelKind(i % kPanelKinds);
    if constexpr (occurs(code, kind))
      return step<code, kind>;
    else
      return nullptr;
  }
  template <int... i>
  static constexpr std::array<Step, sizeof...(i)> all_steps(std::integer_sequence<int, i...>) {
    return {step_of<i>()...};
  }
  static constexpr auto kSteps = all_steps(std::make_integer_sequence<int, kPanelCodes * kPanelKinds>());
};

template <class D, PanelForm form, int kLanes>
void make_ready(std::span<const PanelInstr> program, const PanelSlot* slots, int64_t vectors, PanelStep* steps) {
  if constexpr (form != PanelForm::lanes) {
    switch (vectors) {
      case 1: return Machine<D, form, kLanes, 1>::make_ready(program, slots, steps);
      case 2: return Machine<D, form, kLanes, 2>::make_ready(program, slots, steps);
      case 4: return Machine<D, form, kLanes, 4>::make_ready(program, slots, steps);
    }
  }
  Machine<D, form, kLanes, 8>::make_ready(program, slots, steps);
}

template <class D>
void run_steps(const PanelStep* steps, const PanelPlace& place) {
  const hn::Vec<D> x = hn::Zero(D());
  Machine<D, PanelForm::after, 1, 8>::next(steps, &place, x, x, x, x, x, x, x, x);  // all machines' steps begin alike
}

template <class D, PanelForm form, int kLanes>
PanelHandlers handlers_of() {
  return {make_ready<D, form, kLanes>, run_steps<D>, int64_t(hn::MaxLanes(D())) / kLanes};
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
PanelSamples vectors_of_samples() {
  return {handlers_of<D, PanelForm::samples, 1>(), add_totals<D>};
}

#if HWY_TARGET == HWY_AVX3
void spread(const float* rows, float* twice, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const __m512i x = _mm512_cvtepu32_epi64(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows + 8 * i)));
    _mm512_storeu_si512(twice + 16 * i, _mm512_or_si512(x, _mm512_slli_epi64(x, 32)));
  }
}

void fold(const float* sums, float* totals, int64_t targets, int64_t n) {
  for (int64_t t = 0; t < targets; ++t, sums += kPanelSums * 16 * n)
    for (int64_t i = 0; i < n; ++i, totals += 8) {
      const __m512 x = _mm512_loadu_ps(sums + 16 * i), both = _mm512_add_ps(x, _mm512_permute_ps(x, 0xb1));
      const __m512 all = _mm512_add_ps(both, _mm512_loadu_ps(sums + 16 * (n + i)));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(totals), _mm512_cvtepi64_epi32(_mm512_castps_si512(all)));
    }
}

PanelLanes vectors_of_lanes() { return {handlers_of<Full, PanelForm::lanes, 2>(), 2, spread, fold}; }
#else
void fold(const float* sums, float* totals, int64_t targets, int64_t n) {
  const int64_t bytes = n * int64_t(hn::MaxLanes(Eight())) * 4;
  for (int64_t t = 0; t < targets; ++t) __builtin_memcpy(totals + t * bytes / 4, sums + t * kPanelSums * bytes / 4, size_t(bytes));
}

PanelLanes vectors_of_lanes() { return {handlers_of<Eight, PanelForm::lanes, 1>(), 1, nullptr, fold}; }
#endif

}  // namespace

void fill_panels(TileHandlers& t) {
  t.panel_lanes = vectors_of_lanes();
  t.panel_samples[0] = vectors_of_samples<Eight>(), t.panel_samples[1] = vectors_of_samples<Full>();
  t.panel_after = handlers_of<Eight, PanelForm::after, 1>();
}

}  // namespace HWY_NAMESPACE
}  // namespace ridge::cpu
HWY_AFTER_NAMESPACE();
