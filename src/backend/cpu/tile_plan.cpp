// Lowers a fused group to instructions: phases, tile registers by live range, block sizes.
#include <algorithm>
#include <bit>
#include <limits>
#include <map>
#include <optional>

#include "backend/cpu/tile_axes.h"
#include "backend/cpu/tile_handlers.h"
#include "base/error.h"
#include "base/half.h"

namespace ridge::cpu {
namespace {

using Kind = TileNode::Kind;

constexpr int64_t kTileBudget = 16 << 10;  // half of a first-level cache
constexpr int64_t kRowBudget = 384 << 10;  // rows up to here are computed once and kept
constexpr int64_t kStrip = 1024;           // columns that are reduced together
constexpr int64_t kMaxSingleChunk = 4096;  // columns
constexpr int64_t kFetchLines = 40;        // fetched ahead at once
constexpr int64_t kStreamBytes = 4 << 20;  // outputs below are likely to be read again from the cache
constexpr int64_t kForever = std::numeric_limits<int64_t>::max();
constexpr uint32_t kVirtual = 1u << 24, kLiteral = 1u << 25;  // tags of slots before they have numbers
constexpr int64_t kListSpan = int64_t(1) << 32;

int64_t round_up(int64_t x, int64_t unit) { return (x + unit - 1) / unit * unit; }

struct VirtualRegister {
  int64_t bytes = 4;
  TileShape shape = kScalar;
  bool kept = false;  // spans the whole reduction instead of one chunk
  int list = 0;       // where it is defined
  int64_t first = 0, last = 0;
  int buffer = -1;
};

class Planner {
 public:
  Planner(const TileGroup& group, bool fixed)
      : group_(group), axes_(arrange_axes(group, fixed)), handlers_(tile_handlers(isa_tier())), plan_(std::make_unique<TilePlan>()) {}

  std::unique_ptr<TilePlan> run() {
    set_axes();
    set_accesses();
    analyse();
    set_parts();
    emit_all();
    allocate();
    choose_blocks();
    place_buffers();
    choose_ahead();
    number_slots();
    estimate();
    return std::move(plan_);
  }

 private:
  const TileNode& node(int n) const { return group_.nodes[size_t(n)]; }
  int nodes() const { return int(group_.nodes.size()); }
  uint32_t bit(int axis) const { return 1u << axis; }
  int64_t stride(int access, int axis) const { return axes_.strides[size_t(access)][size_t(axis)]; }
  bool bounded(int access) const {
    return std::any_of(axes_.bounds[size_t(access)].begin(), axes_.bounds[size_t(access)].end(), [](const auto& b) { return b.bounded(); });
  }
  TileShape shape_of(uint32_t mask) const {
    const TileShape s = TileShape((mask >> plan_->row & 1) | (mask >> plan_->col & 1) << 1);
    return s == kColumns && axes_.sizes[size_t(plan_->row)] == 1 ? kBlock : s;  // a single row is a block
  }

  // Of a reduction's value.
  TileShape reduced_shape() const { return shape_of(bit(group_.form == TileGroup::Template::row ? plan_->row : plan_->col)); }

  void set_axes() {
    plan_->form = TilePlan::Form(group_.form);
    plan_->sizes = axes_.sizes;
    plan_->outer = axes_.outer, plan_->loop = axes_.loop, plan_->row = axes_.row, plan_->col = axes_.col;
    plan_->operands = group_.operands;
    plan_->accumulator = group_.accumulator;
    reduced_ = 0;
    for (int axis : axes_.loop) reduced_ |= bit(axis);
    if (group_.form == TileGroup::Template::row) reduced_ |= bit(axes_.col);
    if (group_.form == TileGroup::Template::column) reduced_ |= bit(axes_.row);
    length_ = 1;  // of a reduction
    for (int axis = 0; axis < int(axes_.sizes.size()); ++axis)
      if (reduced_ & bit(axis)) length_ *= axes_.sizes[size_t(axis)];
  }

  void set_accesses() {
    for (int a = 0; a < int(group_.accesses.size()); ++a) {
      const TileAccess& from = group_.accesses[size_t(a)];
      TilePlan::Access to;
      const int64_t bytes = size_of(from.dtype);
      to.operand = from.operand;
      to.offset = from.offset * bytes;
      for (int axis = 0; axis < int(axes_.sizes.size()); ++axis)
        if (stride(a, axis)) to.terms.push_back({axis, stride(a, axis) * bytes});
      to.row_stride = stride(a, plan_->row) * bytes;
      plan_->accesses.push_back(to);
    }
  }

  uint32_t access_mask(int access) const {
    uint32_t mask = 0;
    for (int axis = 0; axis < int(axes_.sizes.size()); ++axis)
      if (stride(access, axis) || axes_.bounds[size_t(access)][size_t(axis)].bounded()) mask |= bit(axis);
    return mask;
  }

  // Which axes each value varies over, and in which phase it can be computed.
  void analyse() {
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

  bool is_direct(int n) const {
    const int access = node(n).access;
    const DType t = group_.accesses[size_t(access)].dtype;
    if ((t != DType::f32 && t != DType::i32 && t != DType::i64) || bounded(access) || group_.accesses[size_t(access)].gather >= 0) return false;
    return unit_stride(access, shape_of(mask_[size_t(n)]));
  }

  bool unit_stride(int access, TileShape shape) const {
    if (shape & kColumns) return stride(access, plan_->col) == 1;
    return shape == kScalar || stride(access, plan_->row) == 1;
  }

  bool in_body(uint32_t mask) const {
    if (group_.form == TileGroup::Template::map) return mask & (bit(plan_->row) | bit(plan_->col));
    return mask & reduced_;
  }

  bool stored_in_body(int n) const { return node(n).kind == Kind::store && (group_.form == TileGroup::Template::map || in_body(mask_[size_t(n)])); }

  // Lists in order of time: 0 outer_pre, 1 block_pre, then body and after of each phase.
  static int body_list(int phase) { return 2 + 2 * phase; }
  static int after_list(int phase) { return 3 + 2 * phase; }

  bool hoisted(int n) const {  // the same for all blocks of a unit
    const uint32_t mask = mask_[size_t(n)];
    if (phase_[size_t(n)] > 0) return false;
    switch (group_.form) {
      case TileGroup::Template::map: return !in_body(mask);
      case TileGroup::Template::row: return !(mask & bit(plan_->row)) && (!in_body(mask) || single_);
      case TileGroup::Template::column: return !in_body(mask);
    }
    return false;
  }

  // Few long reductions are cut into parts.
  void set_parts() {
    int64_t results = 1;
    for (int axis : plan_->outer) results *= plan_->sizes[size_t(axis)];
    if (group_.form == TileGroup::Template::row) {
      results *= plan_->sizes[size_t(plan_->row)];
      int64_t most = length_ / 32768;
      if (results > 0 && results < 32 && most >= 2) plan_->parts = std::min<int64_t>(most, (128 + results - 1) / results);
    } else if (group_.form == TileGroup::Template::column) {
      const int64_t cols = plan_->sizes[size_t(plan_->col)];
      auto strips = [&] { return results * ((cols + strip_ - 1) / strip_); };
      // Several phases: narrow strips stay in the cache from one to the next, where that gives enough of them.
      if (phases_ > 1) {
        strip_ = std::clamp<int64_t>(kRowBudget / (std::max<int64_t>(length_, 1) * 8) / 64 * 64, 64, kStrip);
        if (strip_ * length_ * 8 <= kRowBudget && strips() >= 16) return;
        strip_ = kStrip;
      }
      const int64_t most = strips() > 0 ? length_ * std::min(cols, strip_) / 16384 : 1;
      if (strips() > 0 && strips() < 64 && most >= 2) plan_->parts = std::min<int64_t>(std::min(most, length_), (64 + strips() - 1) / strips());
    }
  }

  // Emission -------------------------------------------------------------------------------------------------------

  std::vector<TileInstr>& list(int id) {
    if (id == 0) return plan_->outer_pre;
    if (id == 1) return plan_->block_pre;
    auto& phase = plan_->phases[size_t(id - 2) / 2];
    return id % 2 ? phase.after : phase.body;
  }

  int64_t now() { return list_ * kListSpan + 2 * (int64_t(list(list_).size()) + 1); }

  uint32_t new_register(int64_t bytes, TileShape shape, bool kept = false) {
    registers_.push_back({bytes, shape, kept, list_, now(), now(), -1});
    return kVirtual | uint32_t(registers_.size() - 1);
  }

  VirtualRegister& reg(uint32_t slot) { return registers_[slot & (kVirtual - 1)]; }

  // clobbers: the instruction writes its result before it has read all of its operands.
  void use(uint32_t slot, bool clobbers) {
    if (!(slot & kVirtual)) return;
    VirtualRegister& r = reg(slot);
    int64_t time = r.list != list_ ? (list_ + 1) * kListSpan - 1 : now() + (clobbers ? 1 : 0);
    if (r.list == 0 && list_ != 0) time = kForever;  // hoisted values serve all blocks
    r.last = std::max(r.last, time);
  }

  void emit(TileHandler run, TileShape shape, uint32_t d, uint32_t a, uint32_t b, uint32_t c, const void* aux, bool clobbers, uint32_t e = 0) {
    if (!run) fail(ErrorCode::unsupported, "[tile_kernel] an operation has no CPU handler for its type; in\n{}", to_string(group_));
    for (uint32_t slot : {d, a, b, c, e}) use(slot, clobbers);
    TileInstr in;
    in.run = run, in.shape = shape, in.d = d, in.a = a, in.b = b, in.c = c, in.e = e, in.aux = aux;
    in.stream = run != tile_store && d < kVirtual && group_.accesses[d].streaming && list_ == final_list_ && streamed_[d];
    plan_->streams = plan_->streams || in.stream;
    list(list_).push_back(in);
  }

  static bool one_per_row(TileShape instr, TileShape operand) {
    if (instr & kColumns) return !(operand & kColumns);
    return instr == kRows && operand == kScalar;
  }

  uint32_t literal(const TileNode& n) {
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
  uint32_t literal_bits(int64_t bits) {
    auto found = std::find(plan_->literals.begin(), plan_->literals.end(), bits);
    if (found == plan_->literals.end()) found = plan_->literals.insert(found, bits);
    return kLiteral | uint32_t(found - plan_->literals.begin());
  }

  uint32_t value(int n) {
    if (value_[size_t(n)] == kNone) fail(ErrorCode::internal, "[tile_kernel] node {} is used before it is computed; in\n{}", n, to_string(group_));
    return value_[size_t(n)];
  }
  TileShape shape(int n) const { return shape_of(mask_[size_t(n)]); }

  // The register that node n's value goes to, or the output's memory itself.
  uint32_t target(int n) {
    if (list_ == final_list_ && direct_store_[size_t(n)] >= 0) return uint32_t(node(direct_store_[size_t(n)]).access);
    const bool kept = keeps(n) && list_ >= 2 && list_ % 2 == 0 && last_phase_[size_t(n)] > (list_ - 2) / 2;
    return new_register(reg_bytes(reg_of(node(n).dtype)), shape(n), kept);
  }

  void emit_node(int n) {
    const TileNode& x = node(n);
    switch (x.kind) {
      case Kind::literal: value_[size_t(n)] = literal(x); break;
      case Kind::load: value_[size_t(n)] = direct_[size_t(n)] ? uint32_t(x.access) : emit_load(n); break;
      case Kind::index:
      case Kind::check:
      case Kind::random: value_[size_t(n)] = emit_index(n); break;
      case Kind::elementwise:
        if (fused_into_[size_t(n)] >= 0) break;
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

  uint32_t emit_load(int n) {
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
    }
    uint32_t d = target(n);
    emit(tile_load, s, d, uint32_t(x.access), fallback, index, load.get(), true);
    plan_->loads.push_back(std::move(load));
    return d;
  }

  void set_block_axes(TileShape s, int& row_axis, int& col_axis) const {
    row_axis = s == kBlock ? plan_->row : -1;
    col_axis = s & kColumns ? plan_->col : s == kRows ? plan_->row : -1;
  }

  uint32_t emit_index(int n) {
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

  // f16, bf16 and u8 values are brought back to what their type can hold, except where the store does it anyway.
  void emit_rounding(int n, uint32_t d) {
    TileHandler round = handlers_.round[int(node(n).dtype)];
    const auto& users = users_[size_t(n)];
    bool stored_only = std::all_of(users.begin(), users.end(), [&](int u) { return node(u).kind == Kind::store; });
    if (round && !stored_only) emit(round, shape(n), d, d, 0, 0, nullptr, false);
  }

  uint32_t emit_cast(int n) {
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
      uint32_t d = target(n);
      emit(handlers_.round[int(to)], shape(n), d, a, 0, 0, nullptr, false);
      return d;
    }
    uint32_t d = target(n);
    emit(handlers_.cast[source][dest], shape(n), d, a, 0, 0, nullptr, reg_bytes(TileReg(source)) != reg_bytes(TileReg(dest)));
    emit_rounding(n, d);
    return d;
  }

  uint32_t emit_elementwise(int n) {
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
    emit_rounding(n, d);
    const bool arithmetic = x.op == Op::add || x.op == Op::sub || x.op == Op::neg || x.op == Op::pow || x.op == Op::div || x.op == Op::mod;
    if (x.dtype == DType::boolean && arithmetic) emit(handlers_.truth[1], s, d, d, 0, 0, nullptr, false);
    return d;
  }

  void emit_reduce(int n, int phase) {
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
      last->run = handlers_.exp_sum[last->run == exponential[1]];  // summed while it is written
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

  static int64_t identity(TileReduce op, TileReg reg) {
    const bool low = op == TileReduce::max || op == TileReduce::arg_max;
    const float inf = std::numeric_limits<float>::infinity();
    if (op == TileReduce::sum) return 0;
    if (op == TileReduce::prod) return reg == TileReg::f32 ? std::bit_cast<uint32_t>(1.f) : 1;
    if (reg == TileReg::f32) return std::bit_cast<uint32_t>(low ? -inf : inf);
    if (reg == TileReg::i32) return uint32_t(low ? std::numeric_limits<int32_t>::lowest() : std::numeric_limits<int32_t>::max());
    return low ? std::numeric_limits<int64_t>::lowest() : std::numeric_limits<int64_t>::max();
  }

  void emit_store(int n) {
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

  bool streams(int store) const {
    const TileAccess& access = group_.accesses[size_t(node(store).access)];
    int64_t bytes = size_of(access.dtype);
    for (int axis = 0; axis < int(axes_.sizes.size()); ++axis)
      if (stride(node(store).access, axis)) bytes *= axes_.sizes[size_t(axis)];
    return access.streaming && bytes >= kStreamBytes;
  }

  // Whether later phases find the value where an earlier one left it; values of less than a block are cheaper made again.
  bool keeps(int n) const { return keep_ && (plan_->form == TilePlan::Form::row ? shape(n) & kColumns : shape(n) == kBlock); }

  // Nodes that the roots need in this phase and that no earlier phase left behind.
  std::vector<bool> needed(int phase) {
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

  void choose_kept() {
    computed_.assign(size_t(nodes()), -1), last_phase_.assign(size_t(nodes()), -1);
    keep_ = plan_->parts == 1 && phases_ > 1;
    const int64_t together = plan_->form == TilePlan::Form::column ? std::min(strip_, plan_->sizes[size_t(plan_->col)]) : 1;
    int64_t bytes = 0;
    needs_.clear();
    for (int phase = 0; phase < phases_; ++phase) {
      needs_.push_back(needed(phase));
      for (int n = 0; n < nodes(); ++n) {
        if (!needs_.back()[size_t(n)] || !in_body(mask_[size_t(n)]) || hoisted(n)) continue;
        if (computed_[size_t(n)] < 0) computed_[size_t(n)] = phase;
        if (last_phase_[size_t(n)] == computed_[size_t(n)] && phase > computed_[size_t(n)] && shape(n) == kBlock && !direct_[size_t(n)])
          bytes += reg_bytes(reg_of(node(n).dtype)) * length_ * together;
        last_phase_[size_t(n)] = phase;
      }
    }
    if (keep_ && bytes <= kRowBudget) return;
    keep_ = false;
    computed_.assign(size_t(nodes()), -1), last_phase_.assign(size_t(nodes()), -1);
    needs_.clear();
    for (int phase = 0; phase < phases_; ++phase) needs_.push_back(needed(phase));
  }

  static int pair_first(Op op) {
    auto found = std::find(std::begin(kPairFirst), std::end(kPairFirst), op);
    return found == std::end(kPairFirst) ? -1 : int(found - std::begin(kPairFirst));
  }

  // The second operation of a pair when its operand `which` is the first one's result.
  static std::optional<PairSecond> pair_second(Op op, int which) {
    const bool first = which == 0;
    switch (op) {
      case Op::add: return PairSecond::add;
      case Op::mul: return PairSecond::mul;
      case Op::sub: return first ? PairSecond::sub : PairSecond::sub_from;
      case Op::maximum: return first ? std::optional(PairSecond::maximum) : std::nullopt;  // equal zeros: the order shows
      case Op::minimum: return first ? std::optional(PairSecond::minimum) : std::nullopt;
      case Op::neg: return PairSecond::neg;
      case Op::relu: return PairSecond::relu;
      case Op::exp: return PairSecond::exp;
      default: return std::nullopt;
    }
  }

  bool same_list(int m, int n) const {
    const bool body = in_body(mask_[size_t(m)]);
    return hoisted(m) == hoisted(n) && body == in_body(mask_[size_t(n)]) && (body || phase_[size_t(m)] == phase_[size_t(n)]);
  }

  // Pairs of light operations, and products that are only summed, are computed in one pass.
  void choose_fused() {
    fused_into_.assign(size_t(nodes()), -1);
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
      // A node that is itself the first of a pair is not the second of another.
      const bool taken = std::any_of(y.in.begin(), y.in.end(), [&](int in) { return in >= 0 && fused_into_[size_t(in)] == n; });
      const int before = fused_operand(m);
      const bool third = before >= 0 && node(before).op == Op::mul && x.op == Op::mul && y.op == Op::add && !(a_row && b_row);
      if (taken || (before >= 0 && !third)) continue;
      fused_into_[size_t(m)] = n;
    }
  }

  uint32_t emit_pair(int m, int n) {
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
      return d;
    }
    const int pattern = int(one_per_row(kBlock, shape(b))) | int(c >= 0 && one_per_row(kBlock, shape(c))) << 1;
    const TileHandler run = handlers_.pair[pair_first(x.op)][int(*pair_second(y.op, which))][pattern];
    const uint32_t slots[] = {value(a), value(b), c >= 0 ? value(c) : 0};
    uint32_t d = target(n);
    emit(run, kBlock, d, slots[0], slots[1], slots[2], nullptr, false);
    return d;
  }

  // The node whose instruction computes n.
  int computed_at(int n) const {
    while (fused_into_[size_t(n)] >= 0) n = fused_into_[size_t(n)];
    return n;
  }

  int fused_operand(int n) const {
    for (int in : node(n).in)
      if (in >= 0 && fused_into_[size_t(in)] == n) return in;
    return -1;
  }

  // A node's result can go straight to its output when nothing reads memory afterwards: the output may lie over an input.
  void choose_direct_stores() {
    direct_store_.assign(size_t(nodes()), -1);
    streamed_.assign(group_.accesses.size(), false);
    final_list_ = body_list(phases_ - 1);
    const auto& need = needs_.back();
    int last_read = -1;
    for (int n = 0; n < nodes(); ++n) {
      const TileNode& x = node(n);
      if (x.kind == Kind::reduce && phase_[size_t(n)] != phases_) continue;
      if (x.kind == Kind::store ? !stored_in_body(n) : x.kind != Kind::reduce && !need[size_t(n)]) continue;
      if (x.kind == Kind::load && !direct_[size_t(n)]) last_read = n;
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
      // Past the caches only from handlers that can, and only when nobody reads the value again.
      if (streams(n) && (t != DType::f32 || node(in).op == Op::cast || users_[size_t(in)].size() > 1)) continue;
      if (direct_store_[size_t(in)] >= 0 || !unit_stride(x.access, shape(n))) continue;
      direct_store_[size_t(in)] = n;
      streamed_[size_t(x.access)] = streams(n);
    }
  }

  // Casts that cost nothing share their operand's register.
  bool aliases(int n) const {
    if (node(n).op != Op::cast) return false;
    const DType from = node(node(n).in[0]).dtype, to = node(n).dtype;
    return reg_of(from) == reg_of(to) && !(to == DType::boolean && from != DType::boolean) &&
           !(from != to && handlers_.round[int(to)] && from != DType::boolean);
  }
  bool reads_memory(int n) const {
    while (node(n).kind == Kind::elementwise && aliases(n)) n = node(n).in[0];
    return node(n).kind == Kind::load && direct_[size_t(n)];
  }

  void emit_all() {
    phases_ = std::max(phases_, 1);
    plan_->phases.resize(size_t(phases_));
    value_.assign(size_t(nodes()), kNone);
    choose_kept();
    choose_fused();
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

  bool is_value(int n) const { return node(n).kind != Kind::store && node(n).kind != Kind::reduce; }

  void emit_body(int phase) {
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

  // Values of whole rows (or columns) that became known with this phase; their stores at the very end.
  void emit_after(int phase) {
    for (int n = 0; n < nodes(); ++n)
      if (is_value(n) && !in_body(mask_[size_t(n)]) && phase_[size_t(n)] == phase + 1) emit_node(n);
    if (phase < phases_ - 1) return;
    for (int n = 0; n < nodes(); ++n)
      if (node(n).kind == Kind::store && !stored_in_body(n)) emit_store(n);
  }

  // Registers to buffers ---------------------------------------------------------------------------------------------

  struct BufferKind {
    int64_t bytes;
    TileShape shape;
    bool kept;
    auto operator<=>(const BufferKind&) const = default;
  };

  void allocate() {
    std::vector<size_t> order(registers_.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(), [&](size_t x, size_t y) { return registers_[x].first < registers_[y].first; });
    std::map<BufferKind, std::vector<std::pair<int64_t, int>>> free;  // end of the last value, buffer
    for (size_t i : order) {
      VirtualRegister& r = registers_[i];
      const BufferKind kind{r.bytes, r.shape, r.kept};
      auto& spare = free[kind];
      auto found = std::find_if(spare.begin(), spare.end(), [&](const auto& s) { return s.first <= r.first; });
      if (found == spare.end()) {
        buffer_kinds_.push_back(kind);
        found = spare.insert(spare.end(), {0, int(buffer_kinds_.size()) - 1});
      }
      r.buffer = found->second;
      found->first = std::max(r.last, r.first + 1);
    }
    for (size_t i = 0; i < registers_.size(); ++i) {
      const VirtualRegister& r = registers_[i];
      const int home = r.list == -1 ? int((r.first / kListSpan - 2) / 2) : r.list >= 3 && r.list % 2 ? (r.list - 3) / 2 : -1;
      if (home < 0 || r.shape != reduced_shape()) continue;
      const int until = r.last == kForever ? phases_ - 1 : int((r.last / kListSpan - 2) / 2);
      if (until > home) plan_->phases[size_t(home)].carried.push_back({kVirtual | uint32_t(i), r.bytes, until});
    }
  }

  void choose_blocks() {
    int64_t tile = 0, kept = 0;  // bytes per point of a block, and of a whole row
    for (const BufferKind& k : buffer_kinds_) {
      if (k.shape != kBlock) continue;
      (k.kept ? kept : tile) += k.bytes;
    }
    // Inputs that several instructions read in place want to stay in the cache like tiles.
    for (int n = 0; n < nodes(); ++n)
      if (direct_[size_t(n)] && shape(n) == kBlock && users_[size_t(n)].size() > 1) tile += reg_bytes(reg_of(node(n).dtype));
    const int64_t rows = plan_->sizes[size_t(plan_->row)], cols = plan_->sizes[size_t(plan_->col)];
    int64_t points = std::clamp<int64_t>(kTileBudget / std::max<int64_t>(tile, 4) / 64 * 64, 256, 4096);
    int64_t& r = plan_->block_rows;
    int64_t& c = plan_->block_cols;
    switch (plan_->form) {
      case TilePlan::Form::map:
        c = std::min(cols, axes_.transposes ? std::min<int64_t>(points, 64) : points);
        r = std::clamp<int64_t>(points / std::max<int64_t>(round_up(c, 16), 1), 1, 256);
        break;
      case TilePlan::Form::row: {
        c = single_ ? cols : std::min(cols, tile ? std::min<int64_t>(points, 2048) : 8192);
        int64_t row_bytes = (tile + 4) * c + kept * length_;
        r = std::clamp<int64_t>(5 * kTileBudget / 2 / std::max<int64_t>(row_bytes, 1), 1, 64);
        // The next block is fetched between instructions: more lines at once than the core can have in flight stall it.
        int64_t instructions = 0, fetched = 1;
        for (const auto& phase : plan_->phases) instructions += int64_t(phase.body.size());
        for (int n = 0; n < nodes(); ++n)
          if (node(n).kind == Kind::load && shape(n) == kBlock) fetched += c * size_of(group_.accesses[size_t(node(n).access)].dtype);
        if (c >= 256) r = std::clamp<int64_t>(kFetchLines * 64 * instructions / fetched, 1, r);
        if (plan_->parts > 1) r = 1;
        break;
      }
      case TilePlan::Form::column:
        c = std::min(cols, strip_);
        r = tile ? std::clamp<int64_t>(points / std::max<int64_t>(round_up(c, 16), 1), 4, 256) : 8;
        break;
    }
    c = std::max<int64_t>(c, 1);
    r = std::max<int64_t>(std::min(r, rows), 1);
    int64_t loops = 1;
    for (int axis : plan_->loop) loops *= plan_->sizes[size_t(axis)];
    if (plan_->form == TilePlan::Form::row) plan_->chunks = loops * ((cols + c - 1) / c);
    if (plan_->form == TilePlan::Form::column) plan_->chunks = loops * ((rows + r - 1) / r);
    plan_->parts = std::max<int64_t>(std::min(plan_->parts, plan_->chunks), 1);
  }

  void place_buffers() {
    auto row_of = [](int64_t cols, int64_t bytes) {
      if (cols < 16) return cols * bytes;  // dense: narrow blocks run as one long row
      int64_t row = round_up(cols * bytes, 64);
      return row % 4096 ? row : row + 64;  // rows in different sets of the cache
    };
    int64_t offset = 0;
    for (const BufferKind& k : buffer_kinds_) {
      TilePlan::Buffer b;
      b.offset = offset;
      int64_t bytes = 0;
      switch (k.shape) {
        case kScalar: bytes = k.bytes; break;
        case kRows: bytes = k.bytes * plan_->block_rows, b.row = k.bytes; break;
        case kColumns: bytes = k.bytes * plan_->block_cols; break;
        case kBlock: {
          const bool down = plan_->form == TilePlan::Form::column;  // the way that reductions go
          b.row = row_of(k.kept && !down ? length_ : plan_->block_cols, k.bytes);
          b.kept = !k.kept ? 0 : down ? b.row : k.bytes;
          bytes = b.row * (k.kept && down ? length_ : plan_->block_rows);
          break;
        }
      }
      if (k.kept && k.shape == kColumns) bytes = k.bytes * length_, b.kept = k.bytes;
      offset += round_up(std::max<int64_t>(bytes, 1), 64);
      plan_->buffers.push_back(b);
    }
    plan_->tile_bytes = offset;
  }

  // Inputs whose next block follows the current one in memory are fetched ahead, while this one is computed.
  void choose_ahead() {
    const int64_t cols = plan_->sizes[size_t(plan_->col)];
    const bool whole_rows = plan_->block_cols == cols;
    if (plan_->form == TilePlan::Form::map ? plan_->phases[0].body.size() < 2 || (!whole_rows && plan_->block_rows > 1)
                                           : plan_->form == TilePlan::Form::column || !single_)
      return;
    for (int n = 0; n < nodes(); ++n) {
      const int access = node(n).access;
      if (node(n).kind != Kind::load || shape(n) != kBlock || bounded(access) || group_.accesses[size_t(access)].gather >= 0) continue;
      const int64_t bytes = size_of(group_.accesses[size_t(access)].dtype), row = plan_->accesses[size_t(access)].row_stride;
      if (stride(access, plan_->col) != 1 || (whole_rows && row != cols * bytes)) continue;
      const int64_t span = plan_->block_rows * plan_->block_cols * bytes;
      if (span >= 1024) plan_->ahead.push_back({uint32_t(access), span});
    }
  }

  void number_slots() {
    auto number = [&](uint32_t& slot) {
      if (slot & kLiteral)
        slot = uint32_t(plan_->accesses.size() + plan_->buffers.size()) + (slot & (kLiteral - 1));
      else if (slot & kVirtual)
        slot = uint32_t(plan_->accesses.size()) + uint32_t(reg(slot).buffer);
    };
    auto number_list = [&](std::vector<TileInstr>& list) {
      for (TileInstr& in : list) number(in.d), number(in.a), number(in.b), number(in.c), number(in.e);
    };
    number_list(plan_->outer_pre), number_list(plan_->block_pre);
    for (auto& phase : plan_->phases) {
      number_list(phase.body), number_list(phase.after);
      for (auto& sum : phase.sums) number(sum.value), number(sum.position);
      for (auto& carried : phase.carried) number(carried.slot);
    }
  }

  // Rough: memory at one core's bandwidth or instructions, whichever is longer.
  void estimate() {
    double compute = 0, bytes = 0;
    for (const auto& phase : plan_->phases) compute += 0.05 * double(phase.body.size());
    for (int n = 0; n < nodes(); ++n) {
      if (node(n).kind == Kind::load || node(n).kind == Kind::store)
        if (shape(n) == kBlock) bytes += double(size_of(group_.accesses[size_t(node(n).access)].dtype));
      if (node(n).kind == Kind::random) compute += 1;
      if (node(n).kind == Kind::elementwise && shape(n) == kBlock && node(n).op >= Op::exp && node(n).op <= Op::erf) compute += 0.25;
    }
    double total = bytes;
    for (int64_t s : plan_->sizes) total *= double(s);
    plan_->point_ns = std::max(compute, bytes * (total > (8 << 20) ? 0.08 : 0.011));
  }

  static constexpr uint32_t kNone = ~0u;

  const TileGroup& group_;
  TileAxes axes_;
  const TileHandlers& handlers_;
  std::unique_ptr<TilePlan> plan_;

  uint32_t reduced_ = 0;
  int64_t length_ = 1;
  int64_t strip_ = kStrip;
  std::vector<uint32_t> mask_;
  std::vector<int> phase_;
  std::vector<bool> direct_;
  std::vector<std::vector<int>> users_;
  int phases_ = 0;
  bool single_ = false;

  bool keep_ = false;
  std::vector<int> computed_, last_phase_;
  std::vector<std::vector<bool>> needs_;
  std::vector<int> direct_store_;
  std::vector<bool> streamed_;   // by access
  std::vector<int> fused_into_;  // the one user that computes a node along with itself; -1: none
  int final_list_ = 0;

  int list_ = 0;
  std::vector<uint32_t> value_;
  std::vector<VirtualRegister> registers_;
  std::vector<BufferKind> buffer_kinds_;
};

}  // namespace

int64_t TilePlan::size_of(const std::vector<int>& list) const {
  int64_t n = 1;
  for (int axis : list) n *= sizes[size_t(axis)];
  return n;
}

int64_t TilePlan::points() const {
  int64_t n = 1;
  for (int64_t s : sizes) n *= s;
  return n;
}

int64_t TilePlan::scratch_bytes() const {
  return round_up(slot_count() * int64_t(sizeof(TileSlot)), 64) + round_up(int64_t(accesses.size()) * 8, 64) + tile_bytes;
}

std::unique_ptr<TilePlan> plan_tile_group(const TileGroup& group, bool fixed) {
  verify(group);
  return Planner(group, fixed).run();
}

}  // namespace ridge::cpu
