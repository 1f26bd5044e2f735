// Chooses what a fused group computes in which phase, what it keeps between phases, and which operations share a pass.
#include <algorithm>

#include "backend/cpu/tile_planner.h"
#include "graph/ops/table.h"

namespace ridge::cpu {
namespace {

constexpr int64_t kMaxSingleChunk = 4096;  // columns
constexpr int64_t kStreamBytes = 4 << 20;  // smaller outputs will probably be read again from the cache

}  // namespace

// Determines which axes each value varies over, and in which phase it can be computed.
void TilePlanner::analyse() {
  mask_.assign(size_t(nodes()), 0), phase_.assign(size_t(nodes()), 0), direct_.assign(size_t(nodes()), false), users_.assign(size_t(nodes()), {});
  for (int n = 0; n < nodes(); ++n) {
    uint32_t mask = 0;
    int phase = 0;
    auto take = [&](int in) {
      if (in < 0) return;
      mask |= mask_[size_t(in)];
      phase = std::max(phase, phase_[size_t(in)]);
      users_[size_t(in)].push_back(n);
    };
    for (int in : node(n).in) take(in);
    if (node(n).access >= 0) {
      if (node(n).kind != Kind::literal) mask |= access_mask(node(n).access);
      take(group_.accesses[size_t(node(n).access)].gather);
    }
    if (node(n).kind == Kind::reduce) {
      ++phase;
      mask = (mask & ~reduced_) | bit(group_.form == TileGroup::Template::row ? plan_->row : plan_->col);
      phases_ = std::max(phases_, phase);
    }
    mask_[size_t(n)] = mask, phase_[size_t(n)] = phase;
    if (node(n).kind == Kind::load) direct_[size_t(n)] = is_direct(n);
    if (node(n).kind == Kind::store && in_body(mask)) phases_ = std::max(phases_, phase + 1);
  }
  single_ = group_.form == TileGroup::Template::row && plan_->loop.empty() && length_ <= kMaxSingleChunk;
}

bool TilePlanner::is_direct(int n) const {
  const int access = node(n).access;
  const DType t = group_.accesses[size_t(access)].dtype;
  if ((t != DType::f32 && t != DType::i32 && t != DType::i64) || bounded(access) || group_.accesses[size_t(access)].gather >= 0) return false;
  return unit_stride(access, shape_of(mask_[size_t(n)]));
}

bool TilePlanner::streams(int store) const {
  if (!variant_.streams) return false;
  const TileAccess& access = group_.accesses[size_t(node(store).access)];
  int64_t bytes = size_of(access.dtype);
  for (int axis = 0; axis < int(axes_.sizes.size()); ++axis)
    if (stride(node(store).access, axis)) bytes *= axes_.sizes[size_t(axis)];
  return access.streaming && bytes >= kStreamBytes;
}

// Whether later phases can reuse the value that an earlier phase computed; values smaller than a block are cheaper to recompute.
bool TilePlanner::keeps(int n) const {
  if (keep_ == Keep::none || (keep_ == Keep::costly && !(node(n).kind == Kind::elementwise && row(node(n).op).has(OpRow::real)))) return false;
  return plan_->form == TilePlan::Form::row ? (shape(n) & kColumns) != 0 : shape(n) == kBlock;
}

// Nodes that the roots need in this phase and that no earlier phase has kept.
std::vector<bool> TilePlanner::needed(int phase) {
  std::vector<bool> need(size_t(nodes()), false);
  const bool last = phase == phases_ - 1;
  for (int n = nodes() - 1; n >= 0; --n) {
    const TileNode& x = node(n);
    bool root = (x.kind == Kind::reduce && phase_[size_t(n)] == phase + 1) || (last && stored_in_body(n));
    if (root) {
      need[size_t(x.in[0])] = true;
      continue;
    }
    if (x.kind == Kind::reduce || x.kind == Kind::store || !need[size_t(n)]) continue;
    bool body = in_body(mask_[size_t(n)]) && !hoisted(n);
    bool left = body && keeps(n) && computed_[size_t(n)] >= 0 && computed_[size_t(n)] < phase && !aliases(n);
    need[size_t(n)] = body;
    if (!body || left) continue;
    for (int in : x.in)
      if (in >= 0) need[size_t(in)] = true;
    if (x.access >= 0 && group_.accesses[size_t(x.access)].gather >= 0) need[size_t(group_.accesses[size_t(x.access)].gather)] = true;
  }
  return need;
}

void TilePlanner::choose_kept() {
  const int64_t together = plan_->form == TilePlan::Form::column ? std::min(strip_, plan_->sizes[size_t(plan_->col)]) : 1;
  auto reset = [&] { computed_.assign(size_t(nodes()), -1), last_phase_.assign(size_t(nodes()), -1), needs_.clear(); };
  for (const Keep keep : {Keep::all, Keep::costly}) {
    if ((plan_->parts > 1 && !plan_->whole_rows) || phases_ == 1) break;
    keep_ = keep;
    int64_t bytes = 0;
    reset();
    for (int phase = 0; phase < phases_; ++phase) {
      needs_.push_back(needed(phase));
      for (int n = 0; n < nodes(); ++n) {
        if (!needs_.back()[size_t(n)] || !in_body(mask_[size_t(n)]) || hoisted(n)) continue;
        if (computed_[size_t(n)] < 0) computed_[size_t(n)] = phase;
        if (last_phase_[size_t(n)] == computed_[size_t(n)] && phase > computed_[size_t(n)] && shape(n) == kBlock && !direct_[size_t(n)] && keeps(n))
          bytes += reg_bytes(reg_of(node(n).dtype)) * length_ * together;
        last_phase_[size_t(n)] = phase;
      }
    }
    if (bytes <= kRowBudget) return;
  }
  keep_ = Keep::none;
  reset();
  for (int phase = 0; phase < phases_; ++phase) needs_.push_back(needed(phase));
}

int TilePlanner::pair_first(Op op) {
  auto found = std::find(std::begin(kPairFirst), std::end(kPairFirst), op);
  return found == std::end(kPairFirst) ? -1 : int(found - std::begin(kPairFirst));
}

// The second operation of a pair, if its operand `which` is the first operation's result.
std::optional<PairSecond> TilePlanner::pair_second(Op op, int which) {
  const bool first = which == 0;
  switch (op) {
    case Op::add: return PairSecond::add;
    case Op::mul: return PairSecond::mul;
    case Op::sub: return first ? PairSecond::sub : PairSecond::sub_from;
    case Op::maximum: return first ? std::optional(PairSecond::maximum) : std::nullopt;  // with zeros of different sign, the order matters
    case Op::minimum: return first ? std::optional(PairSecond::minimum) : std::nullopt;
    case Op::neg: return PairSecond::neg;
    case Op::relu: return PairSecond::relu;
    case Op::exp: return PairSecond::exp;
    default: return std::nullopt;
  }
}

bool TilePlanner::same_list(int m, int n) const {
  const bool body = in_body(mask_[size_t(m)]);
  return hoisted(m) == hoisted(n) && body == in_body(mask_[size_t(n)]) && (body || phase_[size_t(m)] == phase_[size_t(n)]);
}

// Fuses pairs of cheap operations, and products that are only summed, into one pass.
void TilePlanner::choose_fused() {
  fused_into_.assign(size_t(nodes()), -1), joined_.assign(size_t(nodes()), {});
  for (int m = 0; m < nodes(); ++m) {
    const TileNode& x = node(m);
    if (x.kind != Kind::elementwise || x.dtype != DType::f32 || pair_first(x.op) < 0 || users_[size_t(m)].size() != 1) continue;
    if (node(x.in[0]).dtype != DType::f32 || shape(m) != kBlock) continue;
    const int n = users_[size_t(m)][0];
    const TileNode& y = node(n);
    const bool a_row = one_per_row(kBlock, shape(x.in[0])), b_row = one_per_row(kBlock, shape(x.in[1]));
    if (y.kind == Kind::reduce) {
      if (y.op == Op::reduce_sum && x.op == Op::mul && plan_->form == TilePlan::Form::row && !a_row && !b_row && fused_operand(m) < 0)
        fused_into_[size_t(m)] = n;
      continue;
    }
    const bool swappable = x.op == Op::add || x.op == Op::mul;
    if (y.kind != Kind::elementwise || y.dtype != DType::f32 || (a_row && !swappable) || !same_list(m, n)) continue;
    const int which = y.in[0] == m ? 0 : 1;
    auto second = pair_second(y.op, which);
    if (!second || y.in[size_t(which)] != m || (*second == PairSecond::exp && x.op != Op::sub)) continue;
    // A node that is the first of a pair cannot be the second of another.
    const bool taken = std::any_of(y.in.begin(), y.in.end(), [&](int in) { return in >= 0 && fused_into_[size_t(in)] == n; });
    const int before = fused_operand(m);
    const bool third = before >= 0 && node(before).op == Op::mul && x.op == Op::mul && y.op == Op::add && !(a_row && b_row);
    if (taken || (before >= 0 && !third)) continue;
    fused_into_[size_t(m)] = n;
  }
}

// In maps: a function takes an operand that is bf16 in memory as it is stored there, and is multiplied by another value in the same pass. This is what the
// gradient of an activation is made of. A value that passes through bf16 is rounded where it is added or multiplied.
void TilePlanner::choose_joined() {
  joined_.assign(size_t(nodes()), {});
  if (plan_->form != TilePlan::Form::map || !handlers_.native_bf16) return;
  const auto only_user = [&](int n) { return users_[size_t(n)].size() == 1 ? users_[size_t(n)][0] : -1; };
  const auto plain = [&](int n) {
    return node(n).kind == Kind::elementwise && node(n).dtype == DType::f32 && shape(n) == kBlock && !hoisted(n) && in_body(mask_[size_t(n)]);
  };
  // The value before it was rounded to bf16, if n is that value back in f32 and nothing else needs it; -1: it is not.
  const auto unrounded = [&](int n) {
    const int cast = node(n).op == Op::cast && aliases(n) ? node(n).in[0] : -1;
    if (cast < 0 || node(cast).op != Op::cast || node(cast).dtype != DType::bf16 || aliases(cast) || only_user(cast) != n || only_user(n) < 0) return -1;
    const int from = node(cast).in[0];
    return node(from).dtype == DType::f32 && shape(from) == kBlock ? from : -1;
  };
  const auto take_rounding = [&](int n, int user) { fused_into_[size_t(n)] = fused_into_[size_t(node(n).in[0])] = user; };
  for (int m = 0; m < nodes(); ++m) {
    if (!plain(m) || node(m).op != Op::add || fused_into_[size_t(m)] >= 0 || fused_operand(m) >= 0) continue;
    for (int k : {1, 0}) {
      const int rounded = node(m).in[size_t(k)], other = node(m).in[size_t(1 - k)];
      if (rounded == other || shape(other) != kBlock || unrounded(rounded) < 0) continue;
      joined_[size_t(m)] = {.function = m, .a = other, .b = unrounded(rounded), .join = kTimes | kRoundTimes};
      take_rounding(rounded, m);
      break;
    }
  }
  for (int m = 0; m < nodes(); ++m) {
    if (!plain(m) || !handlers_.joined[int(node(m).op)] || fused_into_[size_t(m)] >= 0 || fused_operand(m) >= 0) continue;
    const int x = node(m).in[0];
    if (shape(x) != kBlock || !is_float(node(x).dtype)) continue;
    int n = m;  // the node whose instruction computes all of it
    Joined j{.function = m, .a = x};
    if (const int y = only_user(m); y >= 0 && plain(y) && node(y).op == Op::mul && fused_into_[size_t(y)] < 0 && fused_operand(y) < 0) {
      const int other = node(y).in[0] == m ? node(y).in[1] : node(y).in[0];
      if (other != m && shape(other) == kBlock && node(other).dtype == DType::f32) {
        n = y, j.b = other, j.join |= kTimes;
        fused_into_[size_t(m)] = y;
        if (const int from = unrounded(other); from >= 0) j.b = from, j.join |= kRoundTimes, take_rounding(other, y);
      }
    }
    const int cast = node(x).op == Op::cast && aliases(x) && only_user(x) == m ? node(x).in[0] : -1;
    if (cast >= 0 && node(cast).kind == Kind::load && node(cast).dtype == DType::bf16 && only_user(cast) == x) {
      const int access = node(cast).access;
      if (!bounded(access) && group_.accesses[size_t(access)].gather < 0 && group_.accesses[size_t(access)].dtype == DType::bf16 &&
          unit_stride(access, kBlock)) {
        j.a = access, j.join |= kWide;
        fused_into_[size_t(cast)] = fused_into_[size_t(x)] = n;
      }
    }
    if (j.join) joined_[size_t(n)] = j;
  }
}

// The node whose instruction computes n.
int TilePlanner::computed_at(int n) const {
  while (fused_into_[size_t(n)] >= 0) n = fused_into_[size_t(n)];
  return n;
}

int TilePlanner::fused_operand(int n) const {
  if (joined_[size_t(n)].function >= 0) return joined_[size_t(n)].function;
  for (int in : node(n).in)
    if (in >= 0 && fused_into_[size_t(in)] == n) return in;
  return -1;
}

// A node's result can be written directly to its output if nothing reads memory afterwards, because the output may overlap an input.
void TilePlanner::choose_direct_stores() {
  direct_store_.assign(size_t(nodes()), -1);
  streamed_.assign(group_.accesses.size(), false);
  final_list_ = body_list(phases_ - 1);
  const auto& need = needs_.back();
  int last_read = -1;
  for (int n = 0; n < nodes(); ++n) {
    const TileNode& x = node(n);
    if (x.kind == Kind::reduce && phase_[size_t(n)] != phases_) continue;
    if (x.kind == Kind::store ? !stored_in_body(n) : x.kind != Kind::reduce && !need[size_t(n)]) continue;
    if (x.kind == Kind::load && !direct_[size_t(n)]) last_read = std::max(last_read, computed_at(n));
    for (int in : x.in)
      if (in >= 0 && reads_memory(in)) last_read = x.kind == Kind::store ? nodes() : std::max(last_read, computed_at(n));
  }
  for (int n = 0; n < nodes(); ++n) {
    const TileNode& x = node(n);
    if (!stored_in_body(n)) continue;
    const int in = x.in[0];
    const DType t = group_.accesses[size_t(x.access)].dtype;
    const bool computed_here = fused_into_[size_t(in)] < 0 && node(in).kind == Kind::elementwise && !hoisted(in) && in_body(mask_[size_t(in)]) &&
                               need[size_t(in)] && !(keeps(in) && computed_[size_t(in)] < phases_ - 1) && !aliases(in);
    if ((t != DType::f32 && t != DType::i32 && t != DType::i64) || !computed_here || in < last_read || shape(in) != shape(n)) continue;
    // Non-temporal stores need a handler that supports them, and a value that nothing reads again.
    if (streams(n) && (t != DType::f32 || node(in).op == Op::cast || users_[size_t(in)].size() > 1)) continue;
    if (direct_store_[size_t(in)] >= 0 || !unit_stride(x.access, shape(n))) continue;
    direct_store_[size_t(in)] = n;
    streamed_[size_t(x.access)] = streams(n);
  }
  choose_narrow_stores(last_read);
}

// Whether a function of the rounded value can round and store it in the same pass. The operand must not be memory that another store may have overwritten.
bool TilePlanner::joins_rounding(int cast, int store) const {
  const auto& users = users_[size_t(cast)];
  if (plan_->form != TilePlan::Form::map || users.size() != 2 || fused_into_[size_t(cast)] >= 0) return false;
  const int from = node(cast).in[0], other = users[users[0] == store];
  if (shape(from) != kBlock || (reads_memory(from) && node(from).access != group_.accumulator)) return false;
  if (node(other).op != Op::cast || !aliases(other) || users_[size_t(other)].size() != 1) return false;
  const int function = users_[size_t(other)][0];
  return node(function).kind == Kind::elementwise && node(function).dtype == DType::f32 && handlers_.joined[int(node(function).op)] &&
         joined_[size_t(function)].function < 0 && fused_into_[size_t(function)] < 0 && shape(function) == kBlock && !hoisted(function);
}

// A value that is cast to bf16 to be stored is rounded as it is written. If the rounded value has other uses as well, one instruction rounds and stores it.
void TilePlanner::choose_narrow_stores(int last_read) {
  narrows_.assign(size_t(nodes()), false), skipped_.assign(size_t(nodes()), false);
  if (!handlers_.native_bf16) return;
  const auto computed_here = [&](int n) {
    return node(n).kind == Kind::elementwise && fused_into_[size_t(n)] < 0 && shape(n) == kBlock && !hoisted(n) && in_body(mask_[size_t(n)]) &&
           needs_.back()[size_t(n)] && !(keeps(n) && computed_[size_t(n)] < phases_ - 1) && direct_store_[size_t(n)] < 0 && n >= last_read;
  };
  const auto narrows = [&](int n) {
    const int first = fused_operand(n);
    return joined_[size_t(n)].function >= 0 || (can_narrow(node(n).op) && (first < 0 || can_narrow(node(first).op)));
  };
  for (int n = 0; n < nodes(); ++n) {
    if (!stored_in_body(n) || group_.accesses[size_t(node(n).access)].dtype != DType::bf16 || shape(n) != kBlock || streams(n)) continue;
    const int cast = node(n).in[0];
    if (node(cast).op != Op::cast || node(cast).dtype != DType::bf16 || !computed_here(cast) || !unit_stride(node(n).access, kBlock)) continue;
    const int from = node(cast).in[0];
    if (node(from).dtype != DType::f32) continue;
    if (users_[size_t(cast)].size() > 1) {
      direct_store_[size_t(cast)] = n;
      if (!joins_rounding(cast, n)) continue;
      const int other = users_[size_t(cast)][users_[size_t(cast)][0] == n], function = users_[size_t(other)][0];
      joined_[size_t(function)] = {.function = function, .a = from, .join = kRoundStore, .store = n};
      fused_into_[size_t(cast)] = fused_into_[size_t(other)] = function;
    } else if (computed_here(from) && narrows(from) && users_[size_t(from)].size() == 1) {
      direct_store_[size_t(cast)] = direct_store_[size_t(from)] = n;
      narrows_[size_t(from)] = skipped_[size_t(cast)] = true;
    }
  }
}

// Casts that change nothing share their operand's register.
bool TilePlanner::aliases(int n) const {
  if (node(n).op != Op::cast) return false;
  const DType from = node(node(n).in[0]).dtype, to = node(n).dtype;
  return reg_of(from) == reg_of(to) && !(to == DType::boolean && from != DType::boolean) && !(from != to && handlers_.round[int(to)] && from != DType::boolean);
}

bool TilePlanner::reads_memory(int n) const {
  while (node(n).kind == Kind::elementwise && aliases(n)) n = node(n).in[0];
  return node(n).kind == Kind::load && direct_[size_t(n)];
}

}  // namespace ridge::cpu
