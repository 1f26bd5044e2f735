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
#if HWY_TARGET == HWY_AVX3
    one_and_exp_of_negative(x);
#else
    exp_inside<true>(x, x);
    each([&](int i) HWY_ATTR { x[i] = hn::Add(value(1.f), x[i]); });
#endif
    each([&](int i) HWY_ATTR { x[i] = hn::Div(value(1.f), x[i]); });
  }
#if HWY_TARGET == HWY_AVX3
  // 1 + exp(-x) for x in [-87.34, 87.34]. The exponential is 2^(k / 16) · exp(r), its first factor from a table: two multiply-adds fewer than a longer
  // polynomial.
  static HWY_INLINE void one_and_exp_of_negative(V* x) {
    constexpr float kRound = 12582912.f;  // after its addition, the lowest bits of a sum are those of k
    V k[n], r[n], y[n];
    each([&](int i) HWY_ATTR { k[i] = hn::MulAdd(x[i], value(-23.083120654f), value(kRound)); });
    each([&](int i) HWY_ATTR { r[i] = hn::Sub(k[i], value(kRound)); });
    each([&](int i) HWY_ATTR { x[i] = hn::NegMulSub(r[i], value(0.0433216988f), x[i]); });
    each([&](int i) HWY_ATTR { r[i] = hn::MulAdd(r[i], value(1.19040895e-10f), x[i]); });  // -x less a multiple of ln 2 / 16
    each([&](int i) HWY_ATTR { k[i] = two_to_sixteenths(k[i]); });
    each([&](int i) HWY_ATTR { y[i] = hn::MulAdd(r[i], value(0.16666667f), value(0.5f)); });
    each([&](int i) HWY_ATTR { x[i] = hn::Mul(r[i], r[i]); });
    each([&](int i) HWY_ATTR { y[i] = hn::MulAdd(x[i], y[i], r[i]); });  // exp(r) - 1
    each([&](int i) HWY_ATTR { x[i] = hn::Add(k[i], value(1.f)); });
    each([&](int i) HWY_ATTR { x[i] = hn::MulAdd(k[i], y[i], x[i]); });
  }
  // 2^(k / 16) from the bits of a whole number k. Entry j is 2^(j / 16) less the bits that the shift leaves of j.
  static HWY_INLINE V two_to_sixteenths(V bits) {
    alignas(64) static constexpr uint32_t kTable[16] = {0x3f800000, 0x3f7daac3, 0x3f7b95c2, 0x3f79c3d3, 0x3f7837f0, 0x3f76f532, 0x3f75fed7, 0x3f75583f,
                                                        0x3f7504f3, 0x3f7508a4, 0x3f75672a, 0x3f76248c, 0x3f7744fd, 0x3f78ccdf, 0x3f7ac0c7, 0x3f7d257d};
    if constexpr (sizeof(V) == 64) {
      const __m512i k = _mm512_castps_si512(bits.raw), part = _mm512_permutexvar_epi32(k, _mm512_load_si512(kTable));
      return V{_mm512_castsi512_ps(_mm512_add_epi32(part, _mm512_slli_epi32(k, 19)))};
    } else {
      const auto half = [&](int i) HWY_ATTR { return _mm256_load_si256(reinterpret_cast<const __m256i*>(kTable + i)); };
      const __m256i k = _mm256_castps_si256(bits.raw), part = _mm256_permutex2var_epi32(half(0), k, half(8));
      return V{_mm256_castsi256_ps(_mm256_add_epi32(part, _mm256_slli_epi32(k, 19)))};
    }
  }
#endif
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

// Two lanes in a vector are interleaved. Two targets are its halves.
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

template <int kTargets, class D>
HWY_INLINE hn::Vec<D> numbers_of_targets(D d, const std::byte* p, int64_t stride) {
  const float* const first = reinterpret_cast<const float*>(p);
  if constexpr (kTargets == 2) {
    const hn::Half<D> half;
    return hn::Combine(d, hn::Set(half, *reinterpret_cast<const float*>(p + stride)), hn::Set(half, *first));
  } else {
    return hn::Set(d, *first);
  }
}
template <int kTargets, class D>
HWY_INLINE hn::Vec<D> vectors_of_targets(D d, const std::byte* p, int64_t stride) {
  const float* const first = reinterpret_cast<const float*>(p);
  if constexpr (kTargets == 2) {
    const hn::Half<D> half;
    return hn::Combine(d, hn::LoadU(half, reinterpret_cast<const float*>(p + stride)), hn::LoadU(half, first));
  } else {
    return hn::LoadU(d, first);
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
    const int64_t stride = in.slot.u;
    auto floats = [p](int64_t bytes) HWY_ATTR { return reinterpret_cast<const float*>(p + bytes); };
    constexpr int kTargets = form == PanelForm::after ? kLanes : 1;
    V all = hn::Zero(d);
    if constexpr (kind == PanelKind::number) all = hn::Set(d, *floats(0));
    if constexpr (kind == PanelKind::vector) all = vectors_of_targets<kTargets>(d, p, 0);
#pragma GCC unroll 8
    for (int u = 0; u < kCount; ++u) {
      if constexpr (kind == PanelKind::number || kind == PanelKind::vector) op(u, all);
      if constexpr (kind == PanelKind::numbers && form == PanelForm::lanes) op(u, numbers_of<kLanes>(d, floats(u * kLanes * 4)));
      if constexpr (kind == PanelKind::numbers && form != PanelForm::lanes) op(u, numbers_of_targets<kTargets>(d, p + u * kTargets * stride, stride));
      if constexpr (kind == PanelKind::vectors) op(u, vectors_of_targets<kTargets>(d, p + u * kTargets * stride, stride));
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
    } else if constexpr (code == PanelCode::sum_pair) {
      if constexpr (form == PanelForm::lanes) add_pairs(*in, *at, x);
    } else if constexpr (code == PanelCode::scale) {
      const float* const numbers = in->slot.numbers + at->lane * kLanes * 2;
      each<kind>(*in, *at, [&](int u, V y) HWY_ATTR {
        const float* const number = numbers + u * kLanes * 2;
        x[u] = hn::Mul(hn::Sub(y, numbers_of<kLanes>(d, number)), numbers_of<kLanes>(d, number + kLanes));
      });
    } else if constexpr (code == PanelCode::sum_both) {
      if constexpr (form == PanelForm::lanes) add_both(*in, *at, x);
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

  static HWY_INLINE void add_pairs(const PanelStep& in, const PanelPlace& at, const V* x) {
    const D d;
    const int32_t *const offsets = in.slot.offsets + at.lane * kLanes, *const into = at.into + at.lane;
    const float* const numbers = in.slot.numbers + at.lane * kLanes * 2;
    std::byte *const states = in.slot.p, *const sums = reinterpret_cast<std::byte*>(at.sums) + in.sum;
#pragma GCC unroll 8
    for (int u = 0; u < kCount; ++u) {
      const float* const number = numbers + u * kLanes * 2;
      auto state = [&](int lane) HWY_ATTR { return reinterpret_cast<const float*>(states + offsets[u * kLanes + lane]); };
      V y;
      if constexpr (kLanes == 2) {
        const V first = hn::Mul(numbers_of<2>(d, number), hn::LoadU(d, state(0))), second = hn::Mul(numbers_of<2>(d, number + 2), hn::LoadU(d, state(1)));
        y = hn::Add(hn::OddEven(hn::DupEven(second), first), hn::OddEven(second, hn::DupOdd(first)));
      } else {
        y = hn::Add(hn::Mul(hn::Set(d, number[0]), hn::LoadU(d, state(0))), hn::Mul(hn::Set(d, number[1]), hn::LoadU(d, state(0) + kWidth)));
      }
      float* const sum = reinterpret_cast<float*>(sums + into[u]);
      hn::Store(hn::MulAdd(x[u], y, hn::Load(d, sum)), d, sum);
    }
  }

  static HWY_INLINE void add_both(const PanelStep& in, const PanelPlace& at, const V* x) {
    const D d;
    const int32_t* const into = at.into + at.lane;
    const float* const numbers = in.slot.numbers + at.lane * kLanes * 2;
    std::byte* const sums = reinterpret_cast<std::byte*>(at.sums) + in.sum;
#pragma GCC unroll 8
    for (int u = 0; u < kCount; ++u) {
      const float* const number = numbers + u * kLanes * 2;
      float* const sum = reinterpret_cast<float*>(sums + into[u]);
      if constexpr (kLanes == 2) {
        const V first = hn::MulAdd(hn::DupEven(x[u]), numbers_of<2>(d, number), hn::Load(d, sum));
        hn::Store(hn::MulAdd(hn::DupOdd(x[u]), numbers_of<2>(d, number + 2), first), d, sum);
      } else {
        hn::Store(hn::MulAdd(x[u], hn::Set(d, number[0]), hn::Load(d, sum)), d, sum);
        hn::Store(hn::MulAdd(x[u], hn::Set(d, number[1]), hn::Load(d, sum + kWidth)), d, sum + kWidth);
      }
    }
  }

  static constexpr bool occurs(PanelCode code, PanelKind kind) {
    if (!has_operand(code)) return kind == PanelKind::vector;
    if (code == PanelCode::sum_product && form == PanelForm::after) return false;
    if (code == PanelCode::scale) return form == PanelForm::lanes && (kind == PanelKind::picked || kind == PanelKind::own);
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
  const __m512i pairs = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
  for (int64_t i = 0; i < n; ++i) _mm512_storeu_ps(twice + 16 * i, _mm512_permutexvar_ps(pairs, _mm512_castps256_ps512(_mm256_loadu_ps(rows + 8 * i))));
}

void join(const float* u, const float* v, float* both, int64_t n) {
  const __m512i turns = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  auto load = [](const float* p) HWY_ATTR { return _mm512_castps256_ps512(_mm256_loadu_ps(p)); };
  for (int64_t i = 0; i < n; ++i) _mm512_storeu_ps(both + 16 * i, _mm512_permutex2var_ps(load(u + 8 * i), turns, load(v + 8 * i)));
}

void fold(const float* sums, float* totals, int64_t targets, int64_t n, int64_t both) {
  const int64_t vectors = n - both;
  for (int64_t t = 0; t < targets; ++t, sums += kPanelSums * 16 * vectors) {
    auto put = [&](int64_t total, __m512i even)
                   HWY_ATTR { _mm256_storeu_si256(reinterpret_cast<__m256i*>(totals + 8 * (total * targets + t)), _mm512_cvtepi64_epi32(even)); };
    for (int64_t i = 0; i < vectors; ++i) {
      const __m512 x = _mm512_loadu_ps(sums + 16 * i), single = _mm512_loadu_ps(sums + 16 * (vectors + i));
      if (i < both) {
        const __m512i all = _mm512_castps_si512(_mm512_add_ps(x, single));
        put(2 * i, all), put(2 * i + 1, _mm512_srli_epi64(all, 32));
      } else {
        put(both + i, _mm512_castps_si512(_mm512_add_ps(_mm512_add_ps(x, _mm512_permute_ps(x, 0xb1)), single)));
      }
    }
  }
}

PanelLanes vectors_of_lanes() { return {handlers_of<Full, PanelForm::lanes, 2>(), handlers_of<Full, PanelForm::after, 2>(), 2, spread, join, fold}; }
#else
void join(const float* u, const float* v, float* both, int64_t n) {
  const size_t width = hn::MaxLanes(Eight());
  for (int64_t i = 0; i < n; ++i, u += width, v += width, both += 2 * width) __builtin_memcpy(both, u, width * 4), __builtin_memcpy(both + width, v, width * 4);
}

void fold(const float* sums, float* totals, int64_t targets, int64_t n, int64_t) {
  const int64_t width = int64_t(hn::MaxLanes(Eight()));
  for (int64_t t = 0; t < targets; ++t, sums += kPanelSums * width * n)
    for (int64_t i = 0; i < n; ++i) __builtin_memcpy(totals + width * (i * targets + t), sums + width * i, size_t(width * 4));
}

PanelLanes vectors_of_lanes() { return {handlers_of<Eight, PanelForm::lanes, 1>(), handlers_of<Eight, PanelForm::after, 1>(), 1, nullptr, join, fold}; }
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
