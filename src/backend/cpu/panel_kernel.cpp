#include "backend/cpu/panel_kernel.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>

#include "backend/cpu/tile_axes.h"
#include "backend/cpu/tile_handlers.h"

namespace ridge::cpu {
namespace {

constexpr int64_t kSampleChunk = 1024;    // samples that are summed before the next lane's, so that they stay in L1
constexpr int64_t kTransposeBlock = 256;  // samples

// An operand of a program before its memory is known. Strides are in elements.
struct PanelLeaf {
  enum class Source : uint8_t { weight, state, literal, temp, total, output } source = Source::weight;
  int access = -1;            // weight, state, output
  int number = 0;             // of a state, literal, temp, total or output
  int index_access = -1;      // of a gathered operand
  int64_t size = 0, row = 0;  // of the gathered axis, and its stride
};

struct PanelPlan {
  bool sums_samples = false;  // else lanes
  int64_t samples = 0, lanes = 0, targets = 0;
  int sample_axis = 0, lane_axis = 0, target_axis = 0;
  TileAxes axes;
  std::vector<PanelInstr> main, after;
  std::vector<PanelLeaf> leaves;  // by slot
  struct State {
    int access;
    int64_t rows;  // targets, or the size of the gathered axis
  };
  std::vector<State> states;  // transposed before the sums
  std::vector<int> outputs;   // accesses
  std::vector<float> literals;
  int temps = 0, totals = 0, operands = 0;
};

class PanelPlanner {
 public:
  explicit PanelPlanner(const TileGroup& group) : g_(group) {}

  bool run() {
    if (g_.form != TileGroup::Template::column || g_.accumulator >= 0) return false;
    p_.axes = arrange_axes(g_, false);
    p_.operands = g_.operands;
    const TileAxes& a = p_.axes;
    if (a.outer.size() != 1 || !a.loop.empty()) return false;
    for (const auto& bounds : a.bounds)
      for (const auto& b : bounds)
        if (b.bounded()) return false;
    if (!analyse()) return false;
    p_.target_axis = a.col, p_.targets = a.sizes[size_t(a.col)];
    return assign(a.outer[0], a.row, false) || assign(a.row, a.outer[0], true);
  }

  PanelPlan take() { return std::move(p_); }

 private:
  using Kind = TileNode::Kind;
  const TileNode& node(int n) const { return g_.nodes[size_t(n)]; }
  int nodes() const { return int(g_.nodes.size()); }
  int64_t stride(int access, int axis) const { return p_.axes.strides[size_t(access)][size_t(axis)]; }

  static bool code_of(Op op, PanelCode& code) {
    switch (op) {
      case Op::add: code = PanelCode::add; return true;
      case Op::sub: code = PanelCode::sub; return true;
      case Op::mul: code = PanelCode::mul; return true;
      case Op::div: code = PanelCode::div; return true;
      case Op::neg: code = PanelCode::neg; return true;
      case Op::abs: code = PanelCode::abs; return true;
      case Op::sqrt: code = PanelCode::sqrt; return true;
      case Op::exp: code = PanelCode::exp; return true;
      case Op::tanh: code = PanelCode::tanh; return true;
      case Op::sigmoid: code = PanelCode::sigmoid; return true;
      default: return false;
    }
  }
  static bool reversible(Op op) { return op == Op::add || op == Op::sub || op == Op::mul || op == Op::div; }
  static PanelCode reversed(Op op) {
    return op == Op::add ? PanelCode::add : op == Op::mul ? PanelCode::mul : op == Op::sub ? PanelCode::sub_from : PanelCode::div_into;
  }

  // Supported nodes only, one phase of sums, and a gathered state.
  bool analyse() {
    late_.assign(size_t(nodes()), false), uses_.assign(size_t(nodes()), 0);
    bool sums = false, gathers = false;
    for (int n = 0; n < nodes(); ++n) {
      const TileNode& x = node(n);
      for (int in : x.in)
        if (in >= 0) late_[size_t(n)] = late_[size_t(n)] || late_[size_t(in)] || node(in).kind == Kind::reduce, ++uses_[size_t(in)];
      PanelCode code;
      switch (x.kind) {
        case Kind::literal: break;
        case Kind::load: {
          const TileAccess& access = g_.accesses[size_t(x.access)];
          if (access.gather >= 0) {
            const TileNode& index = node(access.gather);
            if (index.kind != Kind::load || index.dtype != DType::i64 || g_.accesses[size_t(index.access)].gather >= 0 || x.dtype != DType::f32) return false;
            gathers = true;
          } else if (x.dtype != DType::f32 && x.dtype != DType::i64) {
            return false;
          }
          if (access.dtype != x.dtype) return false;
          break;
        }
        case Kind::elementwise:
          if (x.dtype != DType::f32 || !code_of(x.op, code)) return false;
          for (int in : x.in)
            if (in >= 0 && node(in).dtype != DType::f32) return false;
          break;
        case Kind::reduce:
          if (x.op != Op::reduce_sum || x.dtype != DType::f32 || node(x.in[0]).dtype != DType::f32 || late_[size_t(n)]) return false;
          if (node(x.in[0]).kind == Kind::reduce) return false;
          sums = true;
          break;
        case Kind::store:
          if (x.dtype != DType::f32 || g_.accesses[size_t(x.access)].dtype != DType::f32) return false;
          break;
        default: return false;
      }
    }
    return sums && gathers;
  }

  // Tries the roles of the axes.
  bool assign(int sample, int lane, bool sums_samples) {
    PanelPlan fresh;
    fresh.axes = p_.axes, fresh.operands = p_.operands, fresh.targets = p_.targets, fresh.target_axis = p_.target_axis;
    p_ = std::move(fresh);
    p_.sums_samples = sums_samples, p_.sample_axis = sample, p_.lane_axis = lane;
    p_.samples = p_.axes.sizes[size_t(sample)], p_.lanes = p_.axes.sizes[size_t(lane)];
    if (p_.samples < 8 || p_.lanes < 2 || p_.targets < 2 || (sums_samples && p_.samples % 8)) return false;
    leaf_.assign(size_t(nodes()), -1), temp_.assign(size_t(nodes()), -1), total_.assign(size_t(nodes()), -1), states_.clear();
    std::vector<bool> main(size_t(nodes()), false), after(size_t(nodes()), false);
    for (int n = nodes() - 1; n >= 0; --n) {
      const TileNode& x = node(n);
      if (x.kind == Kind::reduce) main[size_t(x.in[0])] = true;
      if (x.kind == Kind::store) after[size_t(x.in[0])] = true;
      if (x.kind == Kind::reduce) continue;
      for (int in : x.in)
        if (in >= 0) {
          if (main[size_t(n)]) main[size_t(in)] = true;
          if (after[size_t(n)]) after[size_t(in)] = true;
        }
    }
    const int summed = sums_samples ? sample : lane;
    for (int n = 0; n < nodes(); ++n) {
      const TileNode& x = node(n);
      if (x.kind == Kind::store) {
        if (stride(x.access, summed) != 0) return false;
        if (!sums_samples && (stride(x.access, sample) == 0 || stride(x.access, p_.target_axis) != 1)) return false;
        p_.outputs.push_back(x.access);
      }
      if (x.kind != Kind::load || !(main[size_t(n)] || after[size_t(n)])) continue;
      const TileAccess& access = g_.accesses[size_t(x.access)];
      if (x.dtype != DType::f32) return false;  // an index as a value
      if (after[size_t(n)] && (stride(x.access, summed) != 0 || access.gather >= 0)) return false;
      if (access.gather >= 0) {
        const int index = node(access.gather).access;
        const bool state = stride(x.access, sample) != 0;
        if (stride(index, sample) != 0) return false;
        if (state && (stride(x.access, lane) != 0 || stride(x.access, p_.target_axis) != 0 || access.gather_stride != 1)) return false;
      } else if (stride(x.access, sample) != 0) {
        const int64_t along = stride(x.access, p_.target_axis);
        if (stride(x.access, lane) != 0 || (along != 0 && along != 1)) return false;
      }
    }
    for (int n = 0; n < nodes(); ++n)
      if (node(n).kind == Kind::reduce) total_[size_t(n)] = p_.totals++;
    emit(main, false), emit(after, true);
    return true;
  }

  int add_leaf(const PanelLeaf& leaf) {
    p_.leaves.push_back(leaf);
    return int(p_.leaves.size()) - 1;
  }

  // The slot of a value in memory, and how it is read. A sum's result has one value per sample, or one for all.
  int slot_of(int n, bool late, PanelKind& kind) {
    const TileNode& x = node(n);
    kind = PanelKind::vector;
    if (x.kind == Kind::reduce) {
      if (p_.sums_samples) kind = PanelKind::number;
      if (leaf_[size_t(n)] < 0) leaf_[size_t(n)] = add_leaf({PanelLeaf::Source::total, -1, total_[size_t(n)]});
    } else if (x.kind == Kind::literal) {
      kind = PanelKind::number;
      if (leaf_[size_t(n)] < 0) leaf_[size_t(n)] = add_leaf({PanelLeaf::Source::literal, -1, int(p_.literals.size())}), p_.literals.push_back(float(x.value));
    } else if (x.kind == Kind::load) {
      const TileAccess& access = g_.accesses[size_t(x.access)];
      const bool state = stride(x.access, p_.sample_axis) != 0;
      const int index = access.gather >= 0 ? node(access.gather).access : -1;
      kind = state ? PanelKind::vector : PanelKind::number;
      if (leaf_[size_t(n)] < 0) {
        if (!state) {
          leaf_[size_t(n)] = add_leaf({PanelLeaf::Source::weight, x.access, 0, index, access.gather_size, access.gather_stride});
        } else {
          const int64_t rows = access.gather >= 0 ? access.gather_size : stride(x.access, p_.target_axis) ? p_.targets : 1;
          const int number = state_number(x.access, rows);
          leaf_[size_t(n)] = add_leaf({PanelLeaf::Source::state, x.access, number, index, access.gather_size, 0});
        }
      }
    } else {
      int& temp = (late ? late_temp_ : temp_)[size_t(n)];
      if (temp < 0) temp = add_leaf({PanelLeaf::Source::temp, -1, p_.temps++});
      return temp;
    }
    return leaf_[size_t(n)];
  }

  // Gathered and direct reads of one tensor share its transposed copy.
  int state_number(int access, int64_t rows) {
    const TileAccess& a = g_.accesses[size_t(access)];
    const auto key = std::tuple(a.operand, a.offset, stride(access, p_.sample_axis), rows);
    auto [at, added] = states_.try_emplace(key, int(p_.states.size()));
    if (added) p_.states.push_back({access, rows});
    return at->second;
  }

  // Instructions for the needed nodes in order. Twice: the first time finds out which values are read after the current one has changed.
  void emit(const std::vector<bool>& needed, bool late) {
    late_temp_.assign(size_t(nodes()), -1);
    std::vector<bool> kept(size_t(nodes()), false);
    for (int pass = 0; pass < 2; ++pass) {
      std::vector<PanelInstr>& out = late ? p_.after : p_.main;
      out.clear();
      int current = -1;
      auto read = [&](PanelCode code, int n, int sum = 0) {
        if (node(n).kind == Kind::elementwise) kept[size_t(n)] = true;
        PanelKind kind;
        const int slot = slot_of(n, late, kind);
        out.push_back({code, kind, p_.leaves[size_t(slot)].index_access >= 0, false, slot, sum});
      };
      auto bring = [&](int n) {
        if (current != n) read(PanelCode::load, n);
        current = n;
      };
      auto fused = [&](int n) {  // a product that is only summed
        return !late && node(n).kind == Kind::elementwise && node(n).op == Op::mul && uses_[size_t(n)] == 1;
      };
      for (int n = 0; n < nodes(); ++n) {
        const TileNode& x = node(n);
        if (x.kind == Kind::elementwise && needed[size_t(n)] && !(only_summed(n) && fused(n))) {
          PanelCode code = PanelCode::load;
          code_of(x.op, code);
          const int a = x.in[0], b = x.in[1];
          if (b < 0) {
            bring(a);
            out.push_back({code});
          } else if (current == b && current != a && reversible(x.op)) {
            read(reversed(x.op), a);
          } else {
            bring(a);
            read(code, b);
          }
          current = n;
          if (kept[size_t(n)] && pass == 1) {
            PanelKind kind;
            out.push_back({PanelCode::store, PanelKind::vector, false, false, slot_of(n, late, kind)});
          }
        } else if (x.kind == Kind::reduce && !late) {
          const int in = x.in[0];
          if (fused(in)) {
            const int a = node(in).in[0], b = node(in).in[1];
            if (current == b && current != a) {
              read(PanelCode::sum_product, a, total_[size_t(n)]);
            } else {
              bring(a);
              read(PanelCode::sum_product, b, total_[size_t(n)]);
            }
          } else {
            bring(in);
            out.push_back({PanelCode::sum, PanelKind::vector, false, false, 0, total_[size_t(n)]});
          }
        } else if (x.kind == Kind::store && late) {
          bring(x.in[0]);
          if (pass == 1) {
            const int number = int(std::find(p_.outputs.begin(), p_.outputs.end(), x.access) - p_.outputs.begin());
            out.push_back({p_.sums_samples ? PanelCode::store_first : PanelCode::store, PanelKind::vector, false, false,
                           add_leaf({PanelLeaf::Source::output, x.access, number})});
          }
        }
      }
    }
  }

  bool only_summed(int n) const {
    for (int m = n + 1; m < nodes(); ++m)
      for (int in : node(m).in)
        if (in == n) return node(m).kind == Kind::reduce;
    return false;
  }

  const TileGroup& g_;
  PanelPlan p_;
  std::vector<bool> late_;  // depends on a sum
  std::vector<int> uses_, leaf_, temp_, late_temp_, total_;
  std::map<std::tuple<int, int64_t, int64_t, int64_t>, int> states_;
};

class PanelKernel final : public Kernel {
 public:
  PanelKernel(const TileGroup& group, PanelPlan plan) : p_(std::move(plan)), h_(tile_handlers(isa_tier())) {
    const PanelHandlers& whole = h_.panel[1];
    run_ = p_.sums_samples && p_.samples % whole.width == 0 ? whole : h_.panel[0], width_ = run_.width;
    for (const TileAccess& a : group.accesses) operand_.push_back(a.operand), offset_.push_back(a.offset * size_of(a.dtype));
    const int64_t vector = width_ * 4;
    auto take = [&](int64_t bytes) {
      const int64_t at = scratch_;
      scratch_ += round_up(bytes, 64);
      return at;
    };
    main_slots_ = slots_for(p_.sums_samples ? Together::samples : Together::lanes, p_.main);
    after_slots_ = slots_for(p_.sums_samples ? Together::lanes : Together::targets, p_.after);
    slots_at_ = take(2 * int64_t(p_.leaves.size()) * int64_t(sizeof(PanelSlot)));
    sums_at_ = take((p_.sums_samples ? p_.lanes : 1) * p_.totals * vector);
    temps_at_ = take(p_.temps * kPanelUnits * vector);
    if (p_.sums_samples) {
      totals_at_ = take(p_.totals * p_.lanes * 4);
      for (const auto& s : p_.states) state_at_.push_back(workspace_), workspace_ += round_up(s.rows * p_.samples * 4, 64);
    } else {
      totals_at_ = take(p_.totals * p_.targets * vector);
      for (const auto& s : p_.states) state_at_.push_back(take(s.rows * vector));
      for (size_t i = 0; i < p_.outputs.size(); ++i) output_at_.push_back(take(p_.targets * vector));
    }
  }

  int64_t workspace_bytes() const override { return workspace_; }
  int64_t scratch_bytes() const override { return scratch_; }

  void bind(std::span<const Ref> operands, Ref workspace, std::vector<Task>& tasks) override {
    auto bound = std::make_unique<Bound>(Bound{this, {operands.begin(), operands.begin() + p_.operands}, workspace});
    const double points = double(p_.lanes) * double(p_.targets) * 1.2;  // ns of a vector
    if (p_.sums_samples) {
      const int64_t blocks = (p_.samples + kTransposeBlock - 1) / kTransposeBlock;
      tasks.push_back({transpose_states, bound.get(), int64_t(p_.states.size()) * blocks, double(p_.targets * kTransposeBlock) * 0.5});
      tasks.push_back({sum_samples, bound.get(), p_.targets, points * double(p_.samples / width_) / double(p_.targets)});
    } else {
      tasks.push_back({sum_lanes, bound.get(), (p_.samples + width_ - 1) / width_, points});
    }
    bound_.push_back(std::move(bound));
  }

 private:
  struct Bound {
    const PanelKernel* kernel;
    std::vector<Ref> operands;
    Ref workspace;
  };

  int64_t stride(int access, int axis) const { return p_.axes.strides[size_t(access)][size_t(axis)]; }
  std::byte* address(const Bound& b, const Worker& w, int access) const {
    return w.at<std::byte>(b.operands[size_t(operand_[size_t(access)])]) + offset_[size_t(access)];
  }

  // Slots without addresses; they come when a worker starts. Vectors that are computed together are consecutive lanes or samples of the sums, and targets or
  // lanes of what follows them.
  PanelSlot strides_of(const PanelLeaf& leaf) const {
    const int64_t vector = width_ * 4;
    const int t = p_.target_axis, l = p_.lane_axis;
    PanelSlot s;
    switch (leaf.source) {
      case PanelLeaf::Source::weight: s.n = stride(leaf.access, t) * 4, s.l = stride(leaf.access, l) * 4, s.row = leaf.row * 4; break;
      case PanelLeaf::Source::state:
        s.row = p_.sums_samples ? p_.samples * 4 : vector, s.s = p_.sums_samples ? 4 : 0;
        s.n = leaf.index_access < 0 && stride(leaf.access, t) != 0 ? s.row : 0;
        break;
      case PanelLeaf::Source::literal:
      case PanelLeaf::Source::temp: break;
      case PanelLeaf::Source::total: s.n = p_.sums_samples ? 0 : vector, s.l = p_.sums_samples ? 4 : 0; break;
      case PanelLeaf::Source::output:
        s.n = p_.sums_samples ? stride(leaf.access, t) * 4 : vector, s.l = p_.sums_samples ? stride(leaf.access, l) * 4 : 0;
        break;
    }
    if (leaf.index_access >= 0) s.size = leaf.size, s.index_n = stride(leaf.index_access, t) * 8, s.index_l = stride(leaf.index_access, l) * 8;
    return s;
  }

  enum class Together { lanes, targets, samples };
  std::vector<PanelSlot> slots_for(Together what, std::vector<PanelInstr>& program) const {
    std::vector<PanelSlot> slots;
    for (const PanelLeaf& leaf : p_.leaves) {
      PanelSlot s = strides_of(leaf);
      s.u = what == Together::lanes ? s.l : what == Together::targets ? s.n : s.s * width_;
      s.index_u = what == Together::lanes ? s.index_l : what == Together::targets ? s.index_n : 0;
      if (leaf.source == PanelLeaf::Source::temp) s.u = width_ * 4;
      slots.push_back(s);
    }
    for (PanelInstr& in : program) {
      const PanelSlot& s = slots[size_t(in.slot)];
      in.one_index = s.index_u == 0;
      if (in.kind == PanelKind::number && s.u != 0) in.kind = PanelKind::numbers;
      if (in.kind == PanelKind::vector && s.u != 0) in.kind = s.u == width_ * 4 ? PanelKind::consecutive : PanelKind::vectors;
    }
    return slots;
  }

  void place(PanelSlot* slots, const Bound& b, const Worker& w) const {
    for (size_t i = 0; i < p_.leaves.size(); ++i) {
      const PanelLeaf& leaf = p_.leaves[i];
      PanelSlot& s = slots[i];
      switch (leaf.source) {
        case PanelLeaf::Source::weight: s.p = address(b, w, leaf.access); break;
        case PanelLeaf::Source::state: s.p = (p_.sums_samples ? w.at<std::byte>(b.workspace) : w.scratch) + state_at_[size_t(leaf.number)]; break;
        case PanelLeaf::Source::literal: s.p = reinterpret_cast<std::byte*>(const_cast<float*>(&p_.literals[size_t(leaf.number)])); break;
        case PanelLeaf::Source::temp: s.p = w.scratch + temps_at_ + leaf.number * kPanelUnits * width_ * 4; break;
        case PanelLeaf::Source::total: s.p = w.scratch + totals_at_ + leaf.number * (p_.sums_samples ? p_.lanes * 4 : p_.targets * width_ * 4); break;
        case PanelLeaf::Source::output: s.p = p_.sums_samples ? address(b, w, leaf.access) : w.scratch + output_at_[size_t(leaf.number)]; break;
      }
      if (leaf.index_access >= 0) s.index = address(b, w, leaf.index_access);
    }
  }
  // The slots of both programs, in scratch.
  PanelSlot* make_slots(const Bound& b, const Worker& w) const {
    PanelSlot* slots = reinterpret_cast<PanelSlot*>(w.scratch + slots_at_);
    std::copy(main_slots_.begin(), main_slots_.end(), slots);
    std::copy(after_slots_.begin(), after_slots_.end(), slots + p_.leaves.size());
    place(slots, b, w), place(slots + p_.leaves.size(), b, w);
    return slots;
  }

  // Parts of at most kPanelUnits, as equal as possible.
  template <class F>
  static void in_parts(int64_t n, const F& run) {
    const int64_t parts = (n + kPanelUnits - 1) / kPanelUnits;
    for (int64_t i = 0; i < parts; ++i) run(n * i / parts, n * (i + 1) / parts - n * i / parts);
  }

  static void sum_lanes(const void* args, int64_t begin, int64_t end, Worker& w) {
    const Bound& b = *static_cast<const Bound*>(args);
    for (int64_t i = begin; i < end; ++i) b.kernel->sum_lanes(b, i, w);
  }
  void sum_lanes(const Bound& b, int64_t unit, Worker& w) const {
    const int64_t first = unit * width_, live = std::min<int64_t>(width_, p_.samples - first), vector = width_ * 4;
    for (size_t i = 0; i < p_.states.size(); ++i) {
      const int access = p_.states[i].access;
      const int64_t step = stride(access, p_.sample_axis) * 4;
      std::byte* to = w.scratch + state_at_[i];
      if (live < width_) std::memset(to, 0, size_t(p_.states[i].rows * vector));
      h_.load_transposed(to, vector, address(b, w, access) + first * step, 4, step, p_.states[i].rows, live);
    }
    PanelSlot* slots = make_slots(b, w);
    float* sums = reinterpret_cast<float*>(w.scratch + sums_at_);
    const PanelFrame frame{slots, sums, w.fault};
    for (int64_t n = 0; n < p_.targets; ++n) {
      std::memset(sums, 0, size_t(p_.totals * vector));
      in_parts(p_.lanes, [&](int64_t lane, int64_t count) { run_.run(p_.main, frame, n, lane, 0, count); });
      for (int k = 0; k < p_.totals; ++k) std::memcpy(w.scratch + totals_at_ + (k * p_.targets + n) * vector, sums + k * width_, size_t(vector));
    }
    const PanelFrame after{slots + p_.leaves.size(), sums, w.fault};
    in_parts(p_.targets, [&](int64_t n, int64_t count) { run_.run(p_.after, after, n, 0, 0, count); });
    for (size_t i = 0; i < p_.outputs.size(); ++i) {
      const int64_t step = stride(p_.outputs[i], p_.sample_axis) * 4;
      h_.load_transposed(address(b, w, p_.outputs[i]) + first * step, step, w.scratch + output_at_[i], 4, vector, live, p_.targets);
    }
  }

  static void transpose_states(const void* args, int64_t begin, int64_t end, Worker& w) {
    const Bound& b = *static_cast<const Bound*>(args);
    const PanelKernel& k = *b.kernel;
    const int64_t samples = k.p_.samples, blocks = (samples + kTransposeBlock - 1) / kTransposeBlock;
    for (int64_t unit = begin; unit < end; ++unit) {
      const PanelPlan::State& s = k.p_.states[size_t(unit / blocks)];
      const int64_t first = unit % blocks * kTransposeBlock, count = std::min(kTransposeBlock, samples - first);
      const int64_t step = k.stride(s.access, k.p_.sample_axis) * 4;
      k.h_.load_transposed(w.at<std::byte>(b.workspace) + k.state_at_[size_t(unit / blocks)] + first * 4, samples * 4, k.address(b, w, s.access) + first * step,
                           4, step, s.rows, count);
    }
  }

  static void sum_samples(const void* args, int64_t begin, int64_t end, Worker& w) {
    const Bound& b = *static_cast<const Bound*>(args);
    b.kernel->sum_samples(b, begin, end, w);
  }
  void sum_samples(const Bound& b, int64_t begin, int64_t end, Worker& w) const {
    PanelSlot* slots = make_slots(b, w);
    float* sums = reinterpret_cast<float*>(w.scratch + sums_at_);
    float* totals = reinterpret_cast<float*>(w.scratch + totals_at_);
    for (int64_t n = begin; n < end; ++n) {
      std::memset(sums, 0, size_t(p_.lanes * p_.totals * width_ * 4));
      for (int64_t first = 0; first < p_.samples; first += kSampleChunk)
        for (int64_t lane = 0; lane < p_.lanes; ++lane) {
          const PanelFrame frame{slots, sums + lane * p_.totals * width_, w.fault};
          in_parts(std::min(kSampleChunk, p_.samples - first) / width_,
                   [&](int64_t at, int64_t count) { run_.run(p_.main, frame, n, lane, first + at * width_, count); });
        }
      for (int64_t lane = 0; lane < p_.lanes; ++lane)
        for (int k = 0; k < p_.totals; ++k) totals[k * p_.lanes + lane] = run_.total(sums + (lane * p_.totals + k) * width_);
      const PanelFrame after{slots + p_.leaves.size(), sums, w.fault};
      in_parts(p_.lanes, [&](int64_t lane, int64_t count) { run_.run(p_.after, after, n, lane, 0, count); });
    }
  }

  PanelPlan p_;
  const TileHandlers& h_;
  PanelHandlers run_;
  int64_t width_ = 1;
  std::vector<PanelSlot> main_slots_, after_slots_;
  std::vector<int> operand_;
  std::vector<int64_t> offset_, state_at_, output_at_;
  int64_t scratch_ = 0, workspace_ = 0, slots_at_ = 0, sums_at_ = 0, temps_at_ = 0, totals_at_ = 0;
  std::vector<std::unique_ptr<Bound>> bound_;
};

}  // namespace

bool runs_as_panel(const TileGroup& group) { return PanelPlanner(group).run(); }

std::unique_ptr<Kernel> make_panel_kernel(const TileGroup& group) {
  PanelPlanner planner(group);
  if (!planner.run()) return nullptr;
  return std::make_unique<PanelKernel>(group, planner.take());
}

}  // namespace ridge::cpu
