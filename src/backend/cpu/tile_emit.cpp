// Writes the instructions of a fused group, phase by phase.
#include <algorithm>
#include <bit>

#include "backend/cpu/tile_planner.h"
#include "base/error.h"
#include "base/half.h"

namespace ridge::cpu {

std::vector<TileInstr>& TilePlanner::list(int id) {
  if (id == 0) return plan_->outer_pre;
  if (id == 1) return plan_->block_pre;
  auto& phase = plan_->phases[size_t(id - 2) / 2];
  return id % 2 ? phase.after : phase.body;
}

uint32_t TilePlanner::new_register(int64_t bytes, TileShape shape, bool kept) {
  registers_.push_back({bytes, shape, kept, list_, now(), now(), -1});
  return kVirtual | uint32_t(registers_.size() - 1);
}

// clobbers: the instruction starts writing its result before it has read all operands.
void TilePlanner::use(uint32_t slot, bool clobbers) {
  if (!(slot & kVirtual)) return;
  VirtualRegister& r = reg(slot);
  int64_t time = r.list != list_ ? (list_ + 1) * kListSpan - 1 : now() + (clobbers ? 1 : 0);
  if (r.list == 0 && list_ != 0) time = kForever;  // hoisted values are used by all blocks
  r.last = std::max(r.last, time);
}

void TilePlanner::emit(TileHandler run, TileShape shape, uint32_t d, uint32_t a, uint32_t b, uint32_t c, const void* aux, bool clobbers, uint32_t e) {
  if (!run) fail(ErrorCode::unsupported, "[tile_kernel] an operation has no CPU handler for its type; in\n{}", to_string(group_));
  for (uint32_t slot : {d, a, b, c, e}) use(slot, clobbers);
  TileInstr in;
  in.run = run, in.shape = shape, in.d = d, in.a = a, in.b = b, in.c = c, in.e = e, in.aux = aux;
  in.stream = run != tile_store && d < kVirtual && group_.accesses[d].streaming && list_ == final_list_ && streamed_[d];
  plan_->streams = plan_->streams || in.stream;
  list(list_).push_back(in);
}

uint32_t TilePlanner::literal(const TileNode& n) {
  int64_t bits = 0;
  switch (reg_of(n.dtype)) {
    case TileReg::f32: {
      float f = float(n.value);
      if (n.dtype == DType::bf16) f = bf16_to_f32(f32_to_bf16(f));
      if (n.dtype == DType::f16) f = f16_to_f32(f32_to_f16(f));
      bits = std::bit_cast<uint32_t>(f);
      break;
    }
    case TileReg::i32: bits = uint32_t(n.dtype == DType::boolean ? n.value != 0 : int32_t(int64_t(n.value))); break;
    case TileReg::i64: bits = int64_t(n.value); break;
  }
  return literal_bits(bits);
}

uint32_t TilePlanner::literal_bits(int64_t bits) {
  auto found = std::find(plan_->literals.begin(), plan_->literals.end(), bits);
  if (found == plan_->literals.end()) found = plan_->literals.insert(found, bits);
  return kLiteral | uint32_t(found - plan_->literals.begin());
}

uint32_t TilePlanner::value(int n) {
  if (value_[size_t(n)] == kNone) fail(ErrorCode::internal, "[tile_kernel] node {} is used before it is computed; in\n{}", n, to_string(group_));
  return value_[size_t(n)];
}

// The register for node n's value, or the output's memory.
uint32_t TilePlanner::target(int n) {
  if (list_ == final_list_ && direct_store_[size_t(n)] >= 0) return uint32_t(node(direct_store_[size_t(n)]).access);
  const bool kept = keeps(n) && list_ >= 2 && list_ % 2 == 0 && last_phase_[size_t(n)] > (list_ - 2) / 2;
  return new_register(reg_bytes(reg_of(node(n).dtype)), shape(n), kept);
}

// Tells the instruction that was emitted last that node n's value is written as bf16.
void TilePlanner::finish_narrow(int n) {
  if (narrows_[size_t(n)] && list_ == final_list_) list(list_).back().narrow = true;
}

void TilePlanner::emit_node(int n) {
  const TileNode& x = node(n);
  switch (x.kind) {
    case Kind::literal: value_[size_t(n)] = literal(x); break;
    case Kind::load:
      if (fused_into_[size_t(n)] < 0) value_[size_t(n)] = direct_[size_t(n)] ? uint32_t(x.access) : emit_load(n);
      break;
    case Kind::index:
    case Kind::check:
    case Kind::random: value_[size_t(n)] = emit_index(n); break;
    case Kind::elementwise:
      if (fused_into_[size_t(n)] >= 0 || skipped_[size_t(n)]) break;
      if (joined_[size_t(n)].function >= 0) {
        value_[size_t(n)] = emit_joined(n);
        break;
      }
      if (int m = fused_operand(n); m >= 0) {
        value_[size_t(n)] = emit_pair(m, n);
        break;
      }
      value_[size_t(n)] = x.op == Op::cast ? emit_cast(n) : emit_elementwise(n);
      break;
    case Kind::reduce:
    case Kind::store: break;
  }
}

uint32_t TilePlanner::emit_load(int n) {
  const TileNode& x = node(n);
  const TileAccess& access = group_.accesses[size_t(x.access)];
  const int64_t bytes = size_of(access.dtype);
  const TileShape s = shape(n);
  auto load = std::make_unique<TileLoad>();
  load->bytes = reg_bytes(reg_of(x.dtype));
  set_block_axes(s, load->row_axis, load->col_axis);
  if (load->row_axis >= 0) load->row_stride = stride(x.access, load->row_axis) * bytes;
  if (load->col_axis >= 0) load->col_stride = stride(x.access, load->col_axis) * bytes;
  for (int axis = 0; axis < int(axes_.sizes.size()); ++axis) {
    const auto& b = axes_.bounds[size_t(x.access)][size_t(axis)];
    if (b.bounded()) load->bounds.push_back({axis, b.low, b.high});
  }
  load->rect = (load->col_stride == bytes ? handlers_.load : handlers_.load_strided)[int(access.dtype)];
  const bool wide = access.dtype == DType::f32 || access.dtype == DType::i32;
  if (s == kBlock && wide && load->row_stride == bytes && load->col_stride != bytes && access.gather < 0) load->rect = handlers_.load_transposed;
  uint32_t fallback = 0, index = 0;
  if (x.in[0] >= 0 && !load->bounds.empty()) {
    fallback = value(x.in[0]);
    load->fill = handlers_.copy[int(reg_of(x.dtype))][one_per_row(s, shape(x.in[0]))];
  }
  if (access.gather >= 0) {
    index = value(access.gather);
    load->gathers = true;
    load->gather_wide = reg_of(node(access.gather).dtype) == TileReg::i64;
    load->gather_per_row = s == kScalar || one_per_row(s, shape(access.gather));
    load->gather_stride = access.gather_stride * bytes, load->gather_size = access.gather_size;
    if (wide && load->gather_wide && load->col_stride == 0 && load->gather_stride == bytes) load->gather_words = handlers_.gather_words;
  }
  uint32_t d = target(n);
  emit(tile_load, s, d, uint32_t(x.access), fallback, index, load.get(), true);
  plan_->loads.push_back(std::move(load));
  return d;
}

void TilePlanner::set_block_axes(TileShape s, int& row_axis, int& col_axis) const {
  row_axis = s == kBlock ? plan_->row : -1;
  col_axis = s & kColumns ? plan_->col : s == kRows ? plan_->row : -1;
}

uint32_t TilePlanner::emit_index(int n) {
  const TileNode& x = node(n);
  const TileAccess& access = group_.accesses[size_t(x.access)];
  if (access.gather >= 0) fail(ErrorCode::unsupported, "[tile_kernel] a gathered element number; gather in a load; in\n{}", to_string(group_));
  const TileShape s = shape(n);
  auto index = std::make_unique<TileIndex>();
  index->offset = access.offset;
  int row_axis, col_axis;
  set_block_axes(s, row_axis, col_axis);
  for (int axis = 0; axis < int(axes_.sizes.size()); ++axis)
    if (stride(x.access, axis)) index->terms.push_back({axis, stride(x.access, axis)});
  if (row_axis >= 0) index->row_stride = stride(x.access, row_axis);
  if (col_axis >= 0) index->col_stride = stride(x.access, col_axis);
  uint32_t d;
  if (x.kind == Kind::index) {
    d = target(n);
    emit(reg_of(x.dtype) == TileReg::i64 ? tile_index<int64_t> : tile_index<int32_t>, s, d, 0, 0, 0, index.get(), true);
  } else if (x.kind == Kind::check) {
    index->limit = int64_t(x.value);
    index->wide = reg_of(node(x.in[0]).dtype) == TileReg::i64;
    index->per_row = s == kScalar || one_per_row(s, shape(x.in[0]));
    d = target(n);
    emit(tile_check, s, d, value(x.in[0]), 0, 0, index.get(), true);
  } else {
    for (int in : x.in)
      if (in >= 0 && shape(in) != kScalar) fail(ErrorCode::unsupported, "[tile_kernel] seed, step and base are scalars; in\n{}", to_string(group_));
    index->stream = x.stream;
    index->uniform = x.op == Op::random_uniform;
    index->words = handlers_.random;
    uint32_t base = x.in[2] >= 0 ? value(x.in[2]) : literal_bits(0);
    d = target(n);
    emit(tile_random, s, d, value(x.in[0]), value(x.in[1]), base, index.get(), true);
  }
  plan_->indices.push_back(std::move(index));
  return d;
}

// Rounds f16, bf16 and u8 values to their type, unless only stores use them, which round anyway.
void TilePlanner::emit_rounding(int n, uint32_t d) {
  TileHandler round = handlers_.round[int(node(n).dtype)];
  const auto& users = users_[size_t(n)];
  bool stored_only = std::all_of(users.begin(), users.end(), [&](int u) { return node(u).kind == Kind::store; });
  if (round && !stored_only) emit(round, shape(n), d, d, 0, 0, nullptr, false);
}

uint32_t TilePlanner::emit_cast(int n) {
  const TileNode& x = node(n);
  const DType from = node(x.in[0]).dtype, to = x.dtype;
  const uint32_t a = value(x.in[0]);
  const int source = int(reg_of(from)), dest = int(reg_of(to));
  if (to == DType::boolean && from != DType::boolean) {
    uint32_t d = target(n);
    emit(handlers_.truth[source], shape(n), d, a, 0, 0, nullptr, false);
    return d;
  }
  if (source == dest) {
    bool narrows = from != to && handlers_.round[int(to)] && !(from == DType::boolean);
    if (!narrows) return a;
    if (to == DType::bf16 && list_ == final_list_ && direct_store_[size_t(n)] >= 0) {
      uint32_t d = new_register(4, shape(n));
      emit(handlers_.round_store, shape(n), d, a, 0, 0, nullptr, false, uint32_t(node(direct_store_[size_t(n)]).access));
      return d;
    }
    uint32_t d = target(n);
    emit(handlers_.round[int(to)], shape(n), d, a, 0, 0, nullptr, false);
    return d;
  }
  uint32_t d = target(n);
  emit(handlers_.cast[source][dest], shape(n), d, a, 0, 0, nullptr, reg_bytes(TileReg(source)) != reg_bytes(TileReg(dest)));
  emit_rounding(n, d);
  return d;
}

uint32_t TilePlanner::emit_elementwise(int n) {
  const TileNode& x = node(n);
  const TileShape s = shape(n);
  uint32_t slots[3] = {0, 0, 0};
  int pattern = 0;
  for (int k = 0; k < 3; ++k) {
    if (x.in[size_t(k)] < 0) continue;
    slots[k] = value(x.in[size_t(k)]);
    if (one_per_row(s, shape(x.in[size_t(k)]))) pattern |= 1 << k;
  }
  const TileReg kind = reg_of(node(x.in[x.op == Op::select ? 1 : 0]).dtype);
  uint32_t d = target(n);
  const bool narrower = reg_bytes(kind) != reg_bytes(reg_of(x.dtype)) || (x.op == Op::select && kind == TileReg::i64);
  emit(handlers_.op[int(x.op)][int(kind)][pattern], s, d, slots[0], slots[1], slots[2], nullptr, narrower);
  finish_narrow(n);
  emit_rounding(n, d);
  const bool arithmetic = x.op == Op::add || x.op == Op::sub || x.op == Op::neg || x.op == Op::pow || x.op == Op::div || x.op == Op::mod;
  if (x.dtype == DType::boolean && arithmetic) emit(handlers_.truth[1], s, d, d, 0, 0, nullptr, false);
  return d;
}

void TilePlanner::emit_reduce(int n, int phase) {
  const TileNode& x = node(n);
  static constexpr TileReduce kOps[] = {TileReduce::sum, TileReduce::max, TileReduce::min, TileReduce::prod, TileReduce::arg_max, TileReduce::arg_min};
  TileAccumulator sum;
  sum.op = kOps[int(x.op) - int(Op::reduce_sum)];
  sum.reg = reg_of(node(x.in[0]).dtype);
  sum.phase = phase;
  sum.identity = identity(sum.op, sum.reg);
  const bool arg = sum.op >= TileReduce::arg_max;
  const bool dot = fused_into_[size_t(x.in[0])] == n;
  uint32_t a = value(dot ? node(x.in[0]).in[0] : x.in[0]);
  if (!(shape(x.in[0]) & kColumns)) {
    uint32_t wide = new_register(reg_bytes(sum.reg), kBlock);
    emit(handlers_.copy[int(sum.reg)][one_per_row(kBlock, shape(x.in[0]))], kBlock, wide, a, 0, 0, nullptr, true);
    a = wide;
  }
  auto accumulator = [&](int64_t bytes) {
    uint32_t r = new_register(bytes, shape(n));
    reg(r).first = body_list(phase) * kListSpan, reg(r).list = -1;
    return r;
  };
  sum.value = accumulator(reg_bytes(sum.reg));
  if (arg) sum.position = accumulator(8);
  auto& table = plan_->form == TilePlan::Form::row ? handlers_.row_reduce : handlers_.column_reduce;
  TileInstr* last = list(list_).empty() ? nullptr : &list(list_).back();
  const auto& exponential = handlers_.pair[pair_first(Op::sub)][int(PairSecond::exp)];
  if (last && sum.op == TileReduce::sum && last->d == a && !last->stream && (last->run == exponential[0] || last->run == exponential[1]) &&
      plan_->form == TilePlan::Form::row) {
    last->run = handlers_.exp_sum[last->run == exponential[1]];  // also sums the values it writes
    last->e = sum.value;
    use(sum.value, true);
  } else if (dot) {
    emit(handlers_.row_dot, kBlock, sum.value, a, value(node(x.in[0]).in[1]), 0, nullptr, true);
  } else {
    emit(table[int(sum.op)][int(sum.reg)], kBlock, sum.value, a, arg ? sum.position : 0, 0, nullptr, true);
  }
  plan_->phases[size_t(phase)].sums.push_back(sum);
  value_[size_t(n)] = arg ? sum.position : sum.value;
}

int64_t TilePlanner::identity(TileReduce op, TileReg reg) {
  const bool low = op == TileReduce::max || op == TileReduce::arg_max;
  const float inf = std::numeric_limits<float>::infinity();
  if (op == TileReduce::sum) return 0;
  if (op == TileReduce::prod) return reg == TileReg::f32 ? std::bit_cast<uint32_t>(1.f) : 1;
  if (reg == TileReg::f32) return std::bit_cast<uint32_t>(low ? -inf : inf);
  if (reg == TileReg::i32) return uint32_t(low ? std::numeric_limits<int32_t>::lowest() : std::numeric_limits<int32_t>::max());
  return low ? std::numeric_limits<int64_t>::lowest() : std::numeric_limits<int64_t>::max();
}

void TilePlanner::emit_store(int n) {
  const TileNode& x = node(n);
  const int in = x.in[0];
  if (direct_store_[size_t(in)] == n) return;
  const TileShape s = shape(n);
  const TileAccess& access = group_.accesses[size_t(x.access)];
  const int64_t bytes = size_of(access.dtype);
  auto store = std::make_unique<TileStore>();
  int row_axis, col_axis;
  set_block_axes(s, row_axis, col_axis);
  if (row_axis >= 0) store->row_stride = stride(x.access, row_axis) * bytes;
  if (col_axis >= 0) store->col_stride = stride(x.access, col_axis) * bytes;
  const bool spread = one_per_row(s, shape(in));
  const bool unit = col_axis < 0 || store->col_stride == bytes;
  store->rect = unit ? handlers_.store[int(access.dtype)][spread] : handlers_.store_strided[int(access.dtype)][spread];
  if (streams(n) && unit && !spread && handlers_.store_stream[int(access.dtype)]) {
    store->rect = handlers_.store_stream[int(access.dtype)];
    plan_->streams = true;
  }
  emit(tile_store, s, uint32_t(x.access), value(in), 0, 0, store.get(), false);
  plan_->stores.push_back(std::move(store));
}

uint32_t TilePlanner::emit_joined(int n) {
  const Joined& j = joined_[size_t(n)];
  const uint32_t a = j.join & kWide ? uint32_t(j.a) : value(j.a), b = j.join & kTimes ? value(j.b) : 0;
  const uint32_t stored = j.join & kRoundStore ? uint32_t(node(j.store).access) : 0;
  const uint32_t d = target(n);
  const Op op = node(j.function).op;
  emit(op == Op::add ? handlers_.add_rounded : handlers_.joined[int(op)], kBlock, d, a, b, stored, nullptr, false);
  list(list_).back().join = j.join;
  finish_narrow(n);
  return d;
}

uint32_t TilePlanner::emit_pair(int m, int n) {
  const TileNode &x = node(m), &y = node(n);
  int a = x.in[0], b = x.in[1];
  if (one_per_row(kBlock, shape(a))) std::swap(a, b);
  const int which = y.in[0] == m ? 0 : 1, c = y.in[size_t(1 - which)];
  if (int l = fused_operand(m); l >= 0) {  // l * factor + c, where l is a product
    const int factor = x.in[0] == l ? x.in[1] : x.in[0];
    int first = node(l).in[0], second = node(l).in[1];
    if (one_per_row(kBlock, shape(first))) std::swap(first, second);
    const int bits = int(one_per_row(kBlock, shape(second))) | int(one_per_row(kBlock, shape(factor))) << 1 | int(one_per_row(kBlock, shape(c))) << 2;
    const uint32_t in[] = {value(first), value(second), value(factor), value(c)};
    uint32_t d = target(n);
    emit(handlers_.scale_shift[bits], kBlock, d, in[0], in[1], in[2], nullptr, false, in[3]);
    finish_narrow(n);
    return d;
  }
  const int pattern = int(one_per_row(kBlock, shape(b))) | int(c >= 0 && one_per_row(kBlock, shape(c))) << 1;
  const TileHandler run = handlers_.pair[pair_first(x.op)][int(*pair_second(y.op, which))][pattern];
  const uint32_t slots[] = {value(a), value(b), c >= 0 ? value(c) : 0};
  uint32_t d = target(n);
  emit(run, kBlock, d, slots[0], slots[1], slots[2], nullptr, false);
  finish_narrow(n);
  return d;
}

void TilePlanner::emit_all() {
  phases_ = std::max(phases_, 1);
  plan_->phases.resize(size_t(phases_));
  value_.assign(size_t(nodes()), kNone);
  choose_kept();
  choose_fused();
  choose_joined();
  choose_direct_stores();
  list_ = 0;
  for (int n = 0; n < nodes(); ++n)
    if (node(n).kind == Kind::literal || direct_[size_t(n)] || (is_value(n) && hoisted(n))) emit_node(n);
  list_ = 1;
  for (int n = 0; n < nodes(); ++n)
    if (is_value(n) && !in_body(mask_[size_t(n)]) && phase_[size_t(n)] == 0 && !hoisted(n) && value_[size_t(n)] == kNone) emit_node(n);
  for (int phase = 0; phase < phases_; ++phase) {
    list_ = body_list(phase);
    emit_body(phase);
    list_ = after_list(phase);
    emit_after(phase);
  }
}

void TilePlanner::emit_body(int phase) {
  if (const std::optional<TileUpdate> update = find_update()) return emit_update(*update);
  const auto& need = needs_[size_t(phase)];
  for (int n = 0; n < nodes(); ++n) {
    if (node(n).kind == Kind::reduce && phase_[size_t(n)] == phase + 1) emit_reduce(n, phase);
    if (!need[size_t(n)] || direct_[size_t(n)] || node(n).kind == Kind::literal) continue;
    if (keeps(n) && computed_[size_t(n)] < phase) continue;
    emit_node(n);
  }
  if (phase < phases_ - 1) return;
  for (int n = 0; n < nodes(); ++n)
    if (stored_in_body(n)) emit_store(n);
}

// Values of whole rows (or columns) that this phase makes available; their stores come after the last phase.
void TilePlanner::emit_after(int phase) {
  for (int n = 0; n < nodes(); ++n)
    if (is_value(n) && !in_body(mask_[size_t(n)]) && phase_[size_t(n)] == phase + 1) emit_node(n);
  if (phase < phases_ - 1) return;
  for (int n = 0; n < nodes(); ++n)
    if (node(n).kind == Kind::store && !stored_in_body(n)) emit_store(n);
}

}  // namespace ridge::cpu
