#include "backend/cpu/panel_plan.h"

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>

namespace ridge::cpu {
namespace {

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

  // Supported nodes only, one phase of sums, and a gathered state or an elementary function.
  bool analyse() {
    late_.assign(size_t(nodes()), false), uses_.assign(size_t(nodes()), 0);
    bool sums = false, worth = false;
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
            worth = true;
          } else if (x.dtype != DType::f32 && x.dtype != DType::i64) {
            return false;
          }
          if (access.dtype != x.dtype) return false;
          break;
        }
        case Kind::elementwise:
          if (x.dtype != DType::f32 || !code_of(x.op, code)) return false;
          worth |= !late_[size_t(n)] && (x.op == Op::exp || x.op == Op::tanh || x.op == Op::sigmoid);
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
    return sums && worth;
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
        if (!sums_samples && (stride(x.access, sample) == 0 || !(stride(x.access, p_.target_axis) == 1 || has_columns(x.access)))) return false;
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
        if (state && (stride(x.access, lane) != 0 || stride(x.access, p_.target_axis) != 0)) return false;
        if (state && access.gather_stride != 1 && !has_columns(x.access)) return false;
      } else if (stride(x.access, sample) != 0) {
        const int64_t along = stride(x.access, p_.target_axis), by_lane = stride(x.access, lane);
        if (along < 0 || by_lane < 0 || (along > 0 && by_lane > 0)) return false;
        if (along + by_lane > 1 && !has_columns(x.access)) return false;
      }
    }
    number_totals();
    emit(main, false), emit(after, true);
    // Lists hold places as 32-bit numbers of bytes, and a unit holds samples of all states.
    int64_t rows = p_.targets * p_.totals;
    for (const PanelPlan::State& s : p_.states) rows += s.rows;
    if (rows > kMostRows) return false;
    find_zeros();
    return true;
  }

  // Whether its samples are next to each other, so that it is read as it is.
  bool has_columns(int access) const { return !p_.sums_samples && stride(access, p_.sample_axis) == 1; }

  // Reductions that are only added to each other share a sum: the last addition is then read as their total.
  void number_totals() {
    auto only_added = [&](int n) { return n >= 0 && total_[size_t(n)] == kShared && uses_[size_t(n)] == 1; };
    for (int n = 0; n < nodes(); ++n) {
      const TileNode& x = node(n);
      if (x.kind == Kind::reduce || (x.kind == Kind::elementwise && x.op == Op::add && only_added(x.in[0]) && only_added(x.in[1]))) total_[size_t(n)] = kShared;
    }
    for (int n = nodes() - 1; n >= 0; --n) {
      int& total = total_[size_t(n)];
      if (total == kShared) total = p_.totals++;
      if (total >= 0 && node(n).kind == Kind::elementwise)
        for (int in : {node(n).in[0], node(n).in[1]}) total_[size_t(in)] = total;
    }
  }
  bool is_total(int n) const { return total_[size_t(n)] >= 0; }

  // A value that some weight can make 0 becomes a step. Entries are left out only if no result needs them.
  void find_zeros() {
    using Rule = PanelPlan::Zero::Rule;
    std::vector<int> step(size_t(nodes()), -1);
    bool all = true;
    for (int n = 0; n < nodes(); ++n) {
      const TileNode& x = node(n);
      const int a = x.in[0] >= 0 ? step[size_t(x.in[0])] : -1, b = x.in[1] >= 0 ? step[size_t(x.in[1])] : -1;
      auto add = [&](Rule rule, int first, int second) {
        step[size_t(n)] = int(p_.zeros.size());
        p_.zeros.push_back({rule, first, second, {}});
      };
      if (x.kind == Kind::load && x.dtype == DType::f32 && stride(x.access, p_.sample_axis) == 0) {
        add(Rule::weight, -1, -1);
        const TileAccess& access = g_.accesses[size_t(x.access)];
        const int index = access.gather >= 0 ? node(access.gather).access : -1;
        p_.zeros.back().leaf = {PanelLeaf::Source::weight, x.access, 0, index, access.gather_size, access.gather_stride};
      } else if (x.kind == Kind::elementwise && x.op == Op::mul && (a >= 0 || b >= 0)) {
        a >= 0 && b >= 0 ? add(Rule::either, a, b) : add(Rule::same, std::max(a, b), -1);
      } else if (x.kind == Kind::elementwise && (x.op == Op::add || x.op == Op::sub) && a >= 0 && b >= 0) {
        add(Rule::both, a, b);
      } else if (a >= 0 && ((x.kind == Kind::elementwise && (x.op == Op::neg || x.op == Op::div)) || x.kind == Kind::reduce)) {
        add(Rule::same, a, -1);
      }
      if (x.kind != (p_.sums_samples ? Kind::store : Kind::reduce)) continue;
      all &= a >= 0;
      p_.zero_results.push_back(a);
    }
    if (!all) p_.zero_results.clear();
  }

  int add_leaf(const PanelLeaf& leaf) {
    p_.leaves.push_back(leaf);
    return int(p_.leaves.size()) - 1;
  }

  // The slot of a value in memory, and how it is read. A sum's result has one value per sample, or one for all.
  int slot_of(int n, PanelKind& kind) {
    const TileNode& x = node(n);
    kind = PanelKind::vector;
    if (is_total(n)) {
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
          const bool by_lane = stride(x.access, p_.lane_axis) != 0;
          const int64_t rows = access.gather >= 0 ? access.gather_size : by_lane ? p_.lanes : stride(x.access, p_.target_axis) ? p_.targets : 1;
          const int number = state_number(x.access, rows);
          leaf_[size_t(n)] = add_leaf({PanelLeaf::Source::state, x.access, number, index, access.gather_size, 0, by_lane});
        }
      }
    } else {
      int& temp = temp_[size_t(n)];
      if (temp < 0 && !free_.empty()) temp = free_.back(), free_.pop_back();
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
    if (added) p_.states.push_back({access, rows, a.gather >= 0 ? a.gather_stride : stride(access, p_.target_axis) + stride(access, p_.lane_axis)});
    return at->second;
  }

  // The order of the main program's instructions: what uses the current value comes next, sums first, then what uses the latest value. So few values wait, and
  // those that wait are short-lived.
  std::vector<int> in_order(const std::vector<bool>& needed) const {
    std::vector<int> left, order;
    for (int n = 0; n < nodes(); ++n)
      if (node(n).kind == Kind::reduce || (node(n).kind == Kind::elementwise && needed[size_t(n)] && !fused(n) && !in_slope(n))) left.push_back(n);
    std::vector<int> when(size_t(nodes()), -1);
    for (int n : left) when[size_t(n)] = kNotYet;
    while (!left.empty()) {
      size_t best = 0;
      std::pair<int, bool> most{-2, false};
      for (size_t i = 0; i < left.size(); ++i) {
        const int n = left[i], in = node(n).in[0];
        const bool sum = node(n).kind == Kind::reduce;
        int latest = -1;
        for (int operand : node(sum && fused(in) ? in : n).in)
          if (operand >= 0 && !in_slope(operand)) latest = std::max(latest, when[size_t(operand)]);
        if (latest != kNotYet && std::pair(latest, sum) > most) most = {latest, sum}, best = i;
      }
      const int n = left[best];
      when[size_t(n)] = node(n).kind == Kind::reduce ? -1 : int(order.size());
      order.push_back(n), left.erase(left.begin() + std::ptrdiff_t(best));
    }
    return order;
  }

  // Instructions for the needed nodes. Twice: the first time counts how often a value is read after the current one has changed.
  void emit(const std::vector<bool>& needed, bool late) {
    std::vector<int> order;
    if (!late) order = in_order(needed);
    for (int n = 0; late && n < nodes(); ++n)
      if (node(n).kind == Kind::store || (node(n).kind == Kind::elementwise && needed[size_t(n)] && !is_total(n) && !in_slope(n))) order.push_back(n);
    temp_.assign(size_t(nodes()), -1), free_.clear();
    std::vector<int> reads(size_t(nodes()), 0);
    std::vector<PanelInstr>& out = late ? p_.after : p_.main;
    for (int pass = 0; pass < 2; ++pass) {
      int current = -1;
      auto write = [&](PanelCode code, PanelKind kind = PanelKind::vector, int slot = 0, int sum = 0) {
        if (pass == 1) out.push_back({code, kind, slot, sum});
      };
      auto read = [&](PanelCode code, int n, int sum = 0) {
        const bool temp = node(n).kind == Kind::elementwise && !is_total(n);
        if (pass == 0) {
          reads[size_t(n)] += temp;
          return;
        }
        PanelKind kind;
        const int slot = slot_of(n, kind);
        write(code, kind, slot, sum);
        if (temp && --reads[size_t(n)] == 0) free_.push_back(slot);
      };
      auto bring = [&](int n) {
        if (current != n) read(PanelCode::load, n);
        current = n;
      };
      // The current value and the other operand, whichever of the two is which.
      auto both = [&](PanelCode code, PanelCode reversed, int a, int b, int sum = 0) {
        if (current == b && current != a && reversed != PanelCode::load) return read(reversed, a, sum);
        bring(a), read(code, b, sum);
      };
      for (int n : order) {
        const TileNode& x = node(n);
        const int a = x.in[0], b = x.in[1];
        if (x.kind == Kind::reduce) {
          const int sum = total_[size_t(n)];
          if (fused(a))
            both(PanelCode::sum_product, PanelCode::sum_product, node(a).in[0], node(a).in[1], sum);
          else
            bring(a), write(PanelCode::sum, PanelKind::vector, 0, sum);
        } else if (x.kind == Kind::store) {
          bring(a);
          const int number = int(std::find(p_.outputs.begin(), p_.outputs.end(), x.access) - p_.outputs.begin());
          if (pass == 1)
            write(p_.sums_samples ? PanelCode::store_first : PanelCode::store, PanelKind::vector, add_leaf({PanelLeaf::Source::output, x.access, number}));
        } else {
          PanelCode code = PanelCode::load;
          code_of(x.op, code);
          if (const int value = slope_of(n); value >= 0)
            bring(value), write(PanelCode::slope);
          else if (b < 0)
            bring(a), write(code);
          else
            both(code, reversible(x.op) ? reversed(x.op) : PanelCode::load, a, b);
          current = n;
          if (pass == 1 && reads[size_t(n)] > 0) {
            PanelKind kind;
            write(PanelCode::store, PanelKind::vector, slot_of(n, kind));
          }
        }
      }
      write(PanelCode::end);
    }
  }

  // The value v of v · (1 - v); -1: n is something else.
  int slope_of(int n) const {
    const TileNode& x = node(n);
    if (x.kind != Kind::elementwise || x.op != Op::mul) return -1;
    for (int i : {0, 1})
      if (in_slope(x.in[i]) && node(x.in[i]).in[1] == x.in[1 - i]) return x.in[1 - i];
    return -1;
  }
  // 1 - v, if all that is needed of it is v · (1 - v).
  bool in_slope(int n) const {
    const TileNode& x = node(n);
    if (x.kind != Kind::elementwise || x.op != Op::sub || uses_[size_t(n)] != 1) return false;
    if (node(x.in[0]).kind != Kind::literal || node(x.in[0]).value != 1) return false;
    for (int m = n + 1; m < nodes(); ++m)
      for (int i : {0, 1})
        if (node(m).in[i] == n) return node(m).kind == Kind::elementwise && node(m).op == Op::mul && node(m).in[1 - i] == x.in[1];
    return false;
  }

  // A product that is only summed.
  bool fused(int n) const { return node(n).kind == Kind::elementwise && node(n).op == Op::mul && uses_[size_t(n)] == 1 && only_summed(n) && slope_of(n) < 0; }
  bool only_summed(int n) const {
    for (int m = n + 1; m < nodes(); ++m)
      for (int in : node(m).in)
        if (in == n) return node(m).kind == Kind::reduce;
    return false;
  }

  static constexpr int64_t kMostRows = 50'000;
  static constexpr int kShared = -2, kNotYet = std::numeric_limits<int>::max();

  const TileGroup& g_;
  PanelPlan p_;
  std::vector<bool> late_;  // depends on a sum
  std::vector<int> uses_, leaf_, temp_, free_, total_;
  std::map<std::tuple<int, int64_t, int64_t, int64_t>, int> states_;
};

}  // namespace

std::optional<PanelPlan> plan_panel(const TileGroup& group) {
  PanelPlanner planner(group);
  if (!planner.run()) return std::nullopt;
  return planner.take();
}

}  // namespace ridge::cpu
