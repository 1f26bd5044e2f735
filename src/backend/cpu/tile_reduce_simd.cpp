// Reductions of the tile interpreter. Sums use several vector accumulators per block of columns, and blocks are added in order, so the error grows with the
// number of blocks rather than elements.
#include "base/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/tile_reduce_simd.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "backend/cpu/tile_simd.h"

HWY_BEFORE_NAMESPACE();
namespace ridge::cpu {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

template <TileReduce op>
HWY_INLINE V join(V a, V x) {
  if constexpr (op == TileReduce::sum) return hn::Add(a, x);
  if constexpr (op == TileReduce::max) return maximum(a, x);
  if constexpr (op == TileReduce::min) return minimum(a, x);
  if constexpr (op == TileReduce::prod) return hn::Mul(a, x);
}

template <TileReduce op, class T>
T join_scalar(T a, T x) {
  using U = std::conditional_t<std::is_same_v<T, float>, float, std::make_unsigned_t<std::conditional_t<std::is_same_v<T, float>, int, T>>>;
  if constexpr (op == TileReduce::sum) return T(U(a) + U(x));
  if constexpr (op == TileReduce::prod) return T(U(a) * U(x));
  if constexpr (op == TileReduce::max) return x > a || x != x ? x : a;
  if constexpr (op == TileReduce::min) return x < a || x != x ? x : a;
}

template <TileReduce op>
constexpr float identity() {
  constexpr float inf = std::numeric_limits<float>::infinity();
  return op == TileReduce::sum ? 0.f : op == TileReduce::prod ? 1.f : op == TileReduce::max ? -inf : inf;
}

// Loads `live` lanes and sets the rest to the identity.
template <TileReduce op>
HWY_INLINE V load_live(const float* p, int64_t live) {
  const D d;
  V v = load_tail(d, p, live);
  if constexpr (op == TileReduce::sum) return v;
  return hn::IfThenElse(hn::FirstN(d, size_t(live)), v, hn::Set(d, identity<op>()));
}

// Reduces the lanes of p as a tree without branches, combining halves.
template <TileReduce op, size_t kLanes>
HWY_INLINE float fold(const float* p) {
  if constexpr (kLanes == 1) {
    return *p;
  } else {
    const hn::FixedTag<float, kLanes / 2> half;
    auto a = hn::Load(half, p), b = hn::Load(half, p + kLanes / 2);
    HWY_ALIGN float part[kLanes / 2 < 4 ? 4 : kLanes / 2];
    if constexpr (op == TileReduce::prod) {
      hn::Store(hn::Mul(a, b), half, part);
    } else {
      auto best = op == TileReduce::max ? hn::Max(a, b) : hn::Min(a, b);
      hn::Store(hn::IfThenElse(hn::IsNaN(a), a, hn::IfThenElse(hn::IsNaN(b), b, best)), half, part);
    }
    return fold<op, kLanes / 2>(part);
  }
}

template <TileReduce op>
HWY_INLINE float across(V v) {
  const D d;
  if constexpr (op == TileReduce::sum) return hn::GetLane(hn::SumOfLanes(d, v));
  HWY_ALIGN float part[hn::MaxLanes(D())];
  hn::Store(v, d, part);
  return fold<op, hn::MaxLanes(D())>(part);
}

template <TileReduce op>
void row_reduce(const TileInstr& in, const TileFrame& f, int64_t rows, int64_t cols) {
  const D d;
  const int64_t n = int64_t(hn::Lanes(d));
  const TileSlot* a = f.slots + in.a;
  float* out = reinterpret_cast<float*>(f.slots[in.d].p);
  for (int64_t r = 0; r < rows; ++r) {
    const float* p = reinterpret_cast<const float*>(a->p + r * a->row);
    V s0 = hn::Set(d, identity<op>()), s1 = s0, s2 = s0, s3 = s0;
    int64_t i = 0;
    for (; i + 4 * n <= cols; i += 4 * n) {
      s0 = join<op>(s0, hn::LoadU(d, p + i));
      s1 = join<op>(s1, hn::LoadU(d, p + i + n));
      s2 = join<op>(s2, hn::LoadU(d, p + i + 2 * n));
      s3 = join<op>(s3, hn::LoadU(d, p + i + 3 * n));
    }
    for (; i + n <= cols; i += n) s0 = join<op>(s0, hn::LoadU(d, p + i));
    if (i < cols) s1 = join<op>(s1, load_live<op>(p + i, cols - i));
    float s = across<op>(join<op>(join<op>(s0, s1), join<op>(s2, s3)));
    out[r] = join_scalar<op>(out[r], s);
  }
}

template <TileReduce op, class T>
void row_reduce_int(const TileInstr& in, const TileFrame& f, int64_t rows, int64_t cols) {
  const TileSlot* a = f.slots + in.a;
  T* out = reinterpret_cast<T*>(f.slots[in.d].p);
  for (int64_t r = 0; r < rows; ++r) {
    const T* p = reinterpret_cast<const T*>(a->p + r * a->row);
    T s = out[r];
    for (int64_t i = 0; i < cols; ++i) s = join_scalar<op>(s, p[i]);
    out[r] = s;
  }
}

void row_dot(const TileInstr& in, const TileFrame& f, int64_t rows, int64_t cols) {
  const D d;
  const int64_t n = int64_t(hn::Lanes(d));
  const TileSlot *sa = f.slots + in.a, *sb = f.slots + in.b;
  float* out = reinterpret_cast<float*>(f.slots[in.d].p);
  for (int64_t r = 0; r < rows; ++r) {
    const float *a = reinterpret_cast<const float*>(sa->p + r * sa->row), *b = reinterpret_cast<const float*>(sb->p + r * sb->row);
    auto product = [&](int64_t i) HWY_ATTR { return hn::Mul(hn::LoadU(d, a + i), hn::LoadU(d, b + i)); };
    V s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
    int64_t i = 0;
    for (; i + 4 * n <= cols; i += 4 * n) {
      s0 = hn::Add(s0, product(i));
      s1 = hn::Add(s1, product(i + n));
      s2 = hn::Add(s2, product(i + 2 * n));
      s3 = hn::Add(s3, product(i + 3 * n));
    }
    for (; i + n <= cols; i += n) s0 = hn::Add(s0, product(i));
    if (i < cols) s1 = hn::Add(s1, hn::Mul(load_tail(d, a + i, cols - i), load_tail(d, b + i, cols - i)));
    out[r] += hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3))));
  }
}

// Sums the block's rows first and then adds them to the previous result. Strips of four vectors read whole cache lines in sequence; every column is summed from
// the top in one accumulator, whichever strip it is in.
template <TileReduce op>
void column_reduce(const TileInstr& in, const TileFrame& f, int64_t rows, int64_t cols) {
  const D d;
  const int64_t n = int64_t(hn::Lanes(d));
  const TileSlot* a = f.slots + in.a;
  float* out = reinterpret_cast<float*>(f.slots[in.d].p);
  int64_t i = 0;
  for (; i + 4 * n <= cols; i += 4 * n) {
    const std::byte* p = a->p + i * 4;
    V s0 = hn::Set(d, identity<op>()), s1 = s0, s2 = s0, s3 = s0;
    for (int64_t r = 0; r < rows; ++r, p += a->row) {
      const float* x = reinterpret_cast<const float*>(p);
      s0 = join<op>(s0, hn::LoadU(d, x));
      s1 = join<op>(s1, hn::LoadU(d, x + n));
      s2 = join<op>(s2, hn::LoadU(d, x + 2 * n));
      s3 = join<op>(s3, hn::LoadU(d, x + 3 * n));
    }
    hn::StoreU(join<op>(hn::LoadU(d, out + i), s0), d, out + i);
    hn::StoreU(join<op>(hn::LoadU(d, out + i + n), s1), d, out + i + n);
    hn::StoreU(join<op>(hn::LoadU(d, out + i + 2 * n), s2), d, out + i + 2 * n);
    hn::StoreU(join<op>(hn::LoadU(d, out + i + 3 * n), s3), d, out + i + 3 * n);
  }
  for (; i < cols; i += n) {
    const int64_t live = std::min(n, cols - i);
    const std::byte* p = a->p + i * 4;
    V s = hn::Set(d, identity<op>());
    for (int64_t r = 0; r < rows; ++r, p += a->row) s = join<op>(s, load_tail(d, reinterpret_cast<const float*>(p), live));
    store_tail(join<op>(load_tail(d, out + i, live), s), d, out + i, live);
  }
}

template <TileReduce op, class T>
void column_reduce_int(const TileInstr& in, const TileFrame& f, int64_t rows, int64_t cols) {
  const TileSlot* a = f.slots + in.a;
  T* out = reinterpret_cast<T*>(f.slots[in.d].p);
  for (int64_t r = 0; r < rows; ++r) {
    const T* p = reinterpret_cast<const T*>(a->p + r * a->row);
    for (int64_t i = 0; i < cols; ++i) out[i] = join_scalar<op>(out[i], p[i]);
  }
}

// The first of equal values wins, and NaN wins over all. d = value so far, b = its position.
template <bool kMax, class T>
HWY_INLINE bool beats(T x, T best) {
  if (x != x) return best == best;
  return kMax ? x > best : x < best;
}

template <bool kMax, class T>
void row_arg(const TileInstr& in, const TileFrame& f, int64_t rows, int64_t cols) {
  const TileSlot* a = f.slots + in.a;
  T* value = reinterpret_cast<T*>(f.slots[in.d].p);
  int64_t* position = reinterpret_cast<int64_t*>(f.slots[in.b].p);
  for (int64_t r = 0; r < rows; ++r) {
    const T* p = reinterpret_cast<const T*>(a->p + r * a->row);
    T best = value[r];
    int64_t where = position[r];
    for (int64_t i = 0; i < cols; ++i)
      if (where < 0 || beats<kMax>(p[i], best)) best = p[i], where = f.reduced_base + i;
    value[r] = best, position[r] = where;
  }
}

template <bool kMax, class T>
void column_arg(const TileInstr& in, const TileFrame& f, int64_t rows, int64_t cols) {
  const TileSlot* a = f.slots + in.a;
  T* value = reinterpret_cast<T*>(f.slots[in.d].p);
  int64_t* position = reinterpret_cast<int64_t*>(f.slots[in.b].p);
  for (int64_t r = 0; r < rows; ++r) {
    const T* p = reinterpret_cast<const T*>(a->p + r * a->row);
    for (int64_t i = 0; i < cols; ++i)
      if (position[i] < 0 || beats<kMax>(p[i], value[i])) value[i] = p[i], position[i] = f.reduced_base + r;
  }
}

template <TileReduce op>
void set_reduce(TileHandlers& t) {
  t.row_reduce[int(op)][0] = row_reduce<op>;
  t.row_reduce[int(op)][1] = row_reduce_int<op, int32_t>;
  t.row_reduce[int(op)][2] = row_reduce_int<op, int64_t>;
  t.column_reduce[int(op)][0] = column_reduce<op>;
  t.column_reduce[int(op)][1] = column_reduce_int<op, int32_t>;
  t.column_reduce[int(op)][2] = column_reduce_int<op, int64_t>;
}

template <class T, int reg>
void set_arg(TileHandlers& t) {
  t.row_reduce[int(TileReduce::arg_max)][reg] = row_arg<true, T>;
  t.row_reduce[int(TileReduce::arg_min)][reg] = row_arg<false, T>;
  t.column_reduce[int(TileReduce::arg_max)][reg] = column_arg<true, T>;
  t.column_reduce[int(TileReduce::arg_min)][reg] = column_arg<false, T>;
}

}  // namespace

void fill_reductions(TileHandlers& t) {
  set_reduce<TileReduce::sum>(t), set_reduce<TileReduce::max>(t), set_reduce<TileReduce::min>(t), set_reduce<TileReduce::prod>(t);
  t.row_dot = row_dot;
  set_arg<float, 0>(t), set_arg<int32_t, 1>(t), set_arg<int64_t, 2>(t);
}

}  // namespace HWY_NAMESPACE
}  // namespace ridge::cpu
HWY_AFTER_NAMESPACE();
