// Pairs of cheap operations in one pass over a block.
#include "base/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/tile_pair_simd.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "backend/cpu/tile_simd.h"

HWY_BEFORE_NAMESPACE();
namespace ridge::cpu {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;
using math::D;
using math::set;
using math::V;

template <int kFirst>
HWY_INLINE V first(V a, V b) {
  if constexpr (kPairFirst[kFirst] == Op::add) return hn::Add(a, b);
  if constexpr (kPairFirst[kFirst] == Op::sub) return hn::Sub(a, b);
  if constexpr (kPairFirst[kFirst] == Op::mul) return hn::Mul(a, b);
  if constexpr (kPairFirst[kFirst] == Op::maximum) return maximum(a, b);
  if constexpr (kPairFirst[kFirst] == Op::minimum) return minimum(a, b);
}

template <PairSecond op>
HWY_INLINE V second(V t, V c) {
  if constexpr (op == PairSecond::add) return hn::Add(t, c);
  if constexpr (op == PairSecond::sub) return hn::Sub(t, c);
  if constexpr (op == PairSecond::sub_from) return hn::Sub(c, t);
  if constexpr (op == PairSecond::mul) return hn::Mul(t, c);
  if constexpr (op == PairSecond::maximum) return maximum(t, c);
  if constexpr (op == PairSecond::minimum) return minimum(t, c);
  if constexpr (op == PairSecond::neg) return hn::Neg(t);
  if constexpr (op == PairSecond::relu) return hn::IfThenElseZero(hn::Not(hn::Le(t, set(0.f))), t);
  if constexpr (op == PairSecond::exp) return math::exp(t);
}

constexpr bool has_operand(PairSecond op) { return op < PairSecond::neg; }

template <int kFirst, PairSecond op, int kPattern>
void run_pair(const TileInstr& in, const TileFrame& f, int64_t rows, int64_t cols) {
  const D d;
  const int64_t n = int64_t(hn::Lanes(d));
  const TileSlot *sd = f.slots + in.d, *sa = f.slots + in.a, *sb = f.slots + in.b, *sc = has_operand(op) ? f.slots + in.c : sa;
  constexpr bool kB = kPattern & 1, kC = kPattern & 2;
  const bool narrow = kNarrows && can_narrow(kPairFirst[kFirst]) && (op <= PairSecond::mul || op == PairSecond::relu) && in.narrow;
  if (kPattern == 0 && rows > 1 && sd->row == cols * (narrow ? 2 : 4) && sa->row == cols * 4 && sb->row == cols * 4 && sc->row == cols * 4)
    cols *= rows, rows = 1;
  std::byte *pd = sd->p, *pa = sa->p, *pb = sb->p, *pc = sc->p;
  for (int64_t r = 0; r < rows; ++r, pd += sd->row, pa += sa->row, pb += sb->row, pc += sc->row) {
    float* out = reinterpret_cast<float*>(pd);
    const float *a = reinterpret_cast<float*>(pa), *b = reinterpret_cast<float*>(pb), *c = reinterpret_cast<float*>(pc);
    const V vb = kB ? set(*b) : hn::Zero(d), vc = kC ? set(*c) : hn::Zero(d);
    auto point = [&](int64_t i, auto load) HWY_ATTR {
      V t = first<kFirst>(load(a + i), kB ? vb : load(b + i));
      if constexpr (has_operand(op)) return second<op>(t, kC ? vc : load(c + i));
      return second<op>(t, t);
    };
    if (narrow) {
      narrow_row_native(reinterpret_cast<uint16_t*>(pd), cols, point);
      continue;
    }
    auto whole = [&](const float* p) HWY_ATTR { return hn::LoadU(d, p); };
    int64_t i = 0;
    if (in.stream && is_aligned(out)) {
      for (; i + n <= cols; i += n) hn::Stream(point(i, whole), d, out + i);
    } else {
      for (; i + n <= cols; i += n) hn::StoreU(point(i, whole), d, out + i);
    }
    if (i < cols) store_tail(point(i, [&](const float* p) HWY_ATTR { return load_tail(d, p, cols - i); }), d, out + i, cols - i);
  }
}

template <int kPattern>
void scale_shift(const TileInstr& in, const TileFrame& f, int64_t rows, int64_t cols) {
  const D d;
  const int64_t n = int64_t(hn::Lanes(d));
  const TileSlot *sd = f.slots + in.d, *sa = f.slots + in.a, *sb = f.slots + in.b, *sc = f.slots + in.c, *se = f.slots + in.e;
  constexpr bool kB = kPattern & 1, kC = kPattern & 2, kE = kPattern & 4;
  for (int64_t r = 0; r < rows; ++r) {
    auto row = [&](const TileSlot* s) { return reinterpret_cast<const float*>(s->p + r * s->row); };
    float* out = reinterpret_cast<float*>(sd->p + r * sd->row);
    const float *a = row(sa), *b = row(sb), *c = row(sc), *e = row(se);
    const V vb = kB ? set(*b) : hn::Zero(d), vc = kC ? set(*c) : hn::Zero(d), ve = kE ? set(*e) : hn::Zero(d);
    auto point = [&](int64_t i, auto load)
                     HWY_ATTR { return hn::Add(hn::Mul(hn::Mul(load(a + i), kB ? vb : load(b + i)), kC ? vc : load(c + i)), kE ? ve : load(e + i)); };
    if (kNarrows && in.narrow) {
      narrow_row_native(reinterpret_cast<uint16_t*>(sd->p + r * sd->row), cols, point);
      continue;
    }
    auto whole = [&](const float* p) HWY_ATTR { return hn::LoadU(d, p); };
    int64_t i = 0;
    if (in.stream && is_aligned(out)) {
      for (; i + n <= cols; i += n) hn::Stream(point(i, whole), d, out + i);
    } else {
      for (; i + n <= cols; i += n) hn::StoreU(point(i, whole), d, out + i);
    }
    if (i < cols) store_tail(point(i, [&](const float* p) HWY_ATTR { return load_tail(d, p, cols - i); }), d, out + i, cols - i);
  }
}

// Without fused multiply-add, exp_approx loses five bits far from 0.
HWY_INLINE V quick_exp(V x) { return HWY_TARGET == HWY_SSE4 ? math::exp(x) : math::exp_approx(x); }

template <bool kPerRow>
void exp_sum(const TileInstr& in, const TileFrame& f, int64_t rows, int64_t cols) {
  const D d;
  const int64_t n = int64_t(hn::Lanes(d));
  const TileSlot *sd = f.slots + in.d, *sa = f.slots + in.a, *sb = f.slots + in.b;
  float* sums = reinterpret_cast<float*>(f.slots[in.e].p);
  for (int64_t r = 0; r < rows; ++r) {
    float* out = reinterpret_cast<float*>(sd->p + r * sd->row);
    const float *a = reinterpret_cast<const float*>(sa->p + r * sa->row), *b = reinterpret_cast<const float*>(sb->p + r * sb->row);
    const V vb = kPerRow ? set(*b) : hn::Zero(d);
    auto point = [&](int64_t i) HWY_ATTR {
      if (in.ahead) __builtin_prefetch(reinterpret_cast<const std::byte*>(a + i) + in.ahead, 0, 2);
      V y = quick_exp(hn::Sub(hn::LoadU(d, a + i), kPerRow ? vb : hn::LoadU(d, b + i)));
      hn::StoreU(y, d, out + i);
      return y;
    };
    V s0 = hn::Zero(d), s1 = s0;
    int64_t i = 0;
    for (; i + 2 * n <= cols; i += 2 * n) {
      s0 = hn::Add(s0, point(i));
      s1 = hn::Add(s1, point(i + n));
    }
    for (; i < cols; i += n) {
      const int64_t live = std::min(n, cols - i);
      V y = quick_exp(hn::Sub(load_tail(d, a + i, live), kPerRow ? vb : load_tail(d, b + i, live)));
      store_tail(y, d, out + i, live);
      s0 = hn::Add(s0, hn::IfThenElseZero(hn::FirstN(d, size_t(live)), y));
    }
    sums[r] += hn::GetLane(hn::SumOfLanes(d, hn::Add(s0, s1)));
  }
}

template <int kFirst, PairSecond op>
void set_pair(TileHandlers& t) {
  auto& row = t.pair[kFirst][int(op)];
  if constexpr (op == PairSecond::exp && kPairFirst[kFirst] != Op::sub)
    return;
  else {
    row[0] = run_pair<kFirst, op, 0>, row[1] = run_pair<kFirst, op, 1>;
    if constexpr (has_operand(op)) row[2] = run_pair<kFirst, op, 2>, row[3] = run_pair<kFirst, op, 3>;
  }
}

template <int kFirst>
void set_first(TileHandlers& t) {
  set_pair<kFirst, PairSecond::add>(t), set_pair<kFirst, PairSecond::sub>(t), set_pair<kFirst, PairSecond::sub_from>(t);
  set_pair<kFirst, PairSecond::mul>(t), set_pair<kFirst, PairSecond::maximum>(t), set_pair<kFirst, PairSecond::minimum>(t);
  set_pair<kFirst, PairSecond::neg>(t), set_pair<kFirst, PairSecond::relu>(t), set_pair<kFirst, PairSecond::exp>(t);
}

}  // namespace

void fill_pairs(TileHandlers& t) {
  set_first<0>(t), set_first<1>(t), set_first<2>(t), set_first<3>(t), set_first<4>(t);
  t.scale_shift[0] = scale_shift<0>, t.scale_shift[1] = scale_shift<1>, t.scale_shift[2] = scale_shift<2>, t.scale_shift[3] = scale_shift<3>;
  t.scale_shift[4] = scale_shift<4>, t.scale_shift[5] = scale_shift<5>, t.scale_shift[6] = scale_shift<6>, t.scale_shift[7] = scale_shift<7>;
  t.exp_sum[0] = exp_sum<false>, t.exp_sum[1] = exp_sum<true>;
}

}  // namespace HWY_NAMESPACE
}  // namespace ridge::cpu
HWY_AFTER_NAMESPACE();
