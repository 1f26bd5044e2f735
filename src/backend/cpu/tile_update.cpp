// Recognises an AdamW parameter update, which then runs in one pass instead of twenty.
#include <optional>

#include "backend/cpu/tile_planner.h"

namespace ridge::cpu {

// The three results, each left unchanged unless the step is good:
//   m' = m + (g - m) k1,  v' = v k2 + (g k3) g,  p' = p shrink - (m' rate) / (sqrt(v') / root + eps),  g = gradient * scale
std::optional<TileUpdate> TilePlanner::find_update() const {
  if (group_.form != TileGroup::Template::map || group_.accumulator >= 0 || !handlers_.update) return std::nullopt;
  auto is = [&](int n, Op op) { return n >= 0 && node(n).kind == Kind::elementwise && node(n).op == op && node(n).dtype == DType::f32; };
  auto in = [&](int n, int k) { return node(n).in[size_t(k)]; };
  auto whole = [&](int n) { return node(n).kind == Kind::load && direct_[size_t(n)] && shape(n) == kBlock && node(n).dtype == DType::f32; };
  auto scalar = [&](int n) { return shape(n) == kScalar && node(n).dtype == DType::f32; };
  int parameter = -1, first = -1, second = -1;  // stores
  for (int n = 0; n < nodes(); ++n) {
    if (node(n).kind != Kind::store) continue;
    const int kept = in(n, 0), access = node(n).access;
    if (!is(kept, Op::select) || shape(n) != kBlock || !unit_stride(access, kBlock) || group_.accesses[size_t(access)].dtype != DType::f32 || streams(n))
      return std::nullopt;
    const int made = in(kept, 1);
    int& place = is(made, Op::sub) ? parameter : is(made, Op::add) && in(made, 0) == in(kept, 2) ? first : second;
    if (place >= 0) return std::nullopt;
    place = n;
  }
  if (parameter < 0 || first < 0 || second < 0) return std::nullopt;
  auto select_of = [&](int store) { return in(store, 0); };
  const int good = in(select_of(parameter), 0), p = in(select_of(parameter), 2), m = in(select_of(first), 2), v = in(select_of(second), 2);
  if (in(select_of(first), 0) != good || in(select_of(second), 0) != good || shape(good) != kScalar || reg_of(node(good).dtype) != TileReg::i32)
    return std::nullopt;
  const int p1 = in(select_of(parameter), 1), m1 = in(select_of(first), 1), v1 = in(select_of(second), 1);
  if (!whole(p) || !whole(m) || !whole(v) || !is(v1, Op::add)) return std::nullopt;
  const int step = in(m1, 1), old_v = in(v1, 0), square = in(v1, 1);
  if (!is(step, Op::mul) || !is(in(step, 0), Op::sub) || !is(old_v, Op::mul) || in(old_v, 0) != v || !is(square, Op::mul)) return std::nullopt;
  const int g = in(in(step, 0), 0);
  if (in(in(step, 0), 1) != m || !is(g, Op::mul) || !whole(in(g, 0)) || in(square, 1) != g || !is(in(square, 0), Op::mul) || in(in(square, 0), 0) != g)
    return std::nullopt;
  const int shrunk = in(p1, 0), quotient = in(p1, 1);
  if (!is(shrunk, Op::mul) || in(shrunk, 0) != p || !is(quotient, Op::div) || !is(in(quotient, 0), Op::mul) || in(in(quotient, 0), 0) != m1)
    return std::nullopt;
  const int bottom = in(quotient, 1), root = is(bottom, Op::add) ? in(bottom, 0) : -1;
  if (!is(root, Op::div) || !is(in(root, 0), Op::sqrt) || in(in(root, 0), 0) != v1) return std::nullopt;
  const int factors[] = {in(g, 1), in(step, 1), in(old_v, 1), in(in(square, 0), 1), in(shrunk, 1), in(in(quotient, 0), 1), in(root, 1), in(bottom, 1)};
  for (int f : factors)
    if (!scalar(f)) return std::nullopt;
  TileUpdate u;
  auto place = [&](int n) { return uint32_t(node(n).access); };
  u.out = {place(parameter), place(first), place(second)};
  u.in = {place(p), place(m), place(v), place(in(g, 0))};
  u.good = uint32_t(good);
  for (size_t i = 0; i < u.factors.size(); ++i) u.factors[i] = uint32_t(factors[i]);
  return u;
}

void TilePlanner::emit_update(TileUpdate update) {
  update.good = value(int(update.good));
  for (uint32_t& f : update.factors) f = value(int(f));
  auto kept = std::make_unique<TileUpdate>(update);
  emit(handlers_.update, kBlock, update.out[0], update.good, 0, 0, kept.get(), true);
  for (uint32_t f : update.factors) use(f, true);
  plan_->updates.push_back(std::move(kept));
}

}  // namespace ridge::cpu
