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

  // Supported nodes only, and one phase of sums.
  bool analyse() {
    late_.assign(size_t(nodes()), false), uses_.assign(size_t(nodes()), 0);
    bool sums = false;
    for (int n = 0; n < nodes(); ++n) {
      const TileNode& x = node(n);
      for (int in : x.in)
        if (in >= 0) late_[size_t(n)] = late_[size_t(n)] || late_[size_t(in)] || node(in).kind == Kind::reduce, ++uses_[size_t(in)];
      switch (x.kind) {
        case Kind::literal: break;
        case Kind::load: {
          const TileAccess& access = g_.accesses[size_t(x.access)];
          if (access.gather >= 0) {
            const TileNode& index = node(access.gather);
            if (index.kind != Kind::load || index.dtype != DType::i64 || g_.accesses[size_t(index.access)].gather >= 0 || x.dtype != DType::f32) return false;
          } else if (x.dtype != DType::f32 && x.dtype != DType::i64) {
            return false;
          }
          if (access.dtype != x.dtype) return false;
          break;
        }
        case Kind::elementwise:
          if (x.dtype != DType::f32 || x.op == Op::cast) return false;
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
    return sums;
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
    computed_.assign(size_t(nodes()), kNotComputed);
    bool worth = false;  // a gathered state, or an elementary function of an entry
    for (int n = nodes() - 1; n >= 0; --n) {
      const TileNode& x = node(n);
      if (x.kind == Kind::reduce) main[size_t(x.in[0])] = true;
      if (x.kind == Kind::store) after[size_t(x.in[0])] = true;
      if (x.kind == Kind::reduce) continue;
      PanelCode code = PanelCode::load;
      if (x.kind == Kind::elementwise && (main[size_t(n)] || after[size_t(n)])) {
        const bool has_code = code_of(x.op, code);
        if ((main[size_t(n)] || !has_code) && depends_on_weights(n)) {
          computed_[size_t(n)] = kComputed;
          continue;
        }
        if (!has_code) return false;
      }
      worth |= main[size_t(n)] && (is_picked_state(n) || code == PanelCode::exp || code == PanelCode::tanh || code == PanelCode::sigmoid);
      for (int in : x.in)
        if (in >= 0) {
          if (main[size_t(n)]) main[size_t(in)] = true;
          if (after[size_t(n)]) after[size_t(in)] = true;
        }
    }
    if (!worth) return false;
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
    number_totals(), find_pairs(), find_boths(), find_scaled();
    emit(main, false), emit(after, true);
    // Lists hold places as 32-bit numbers of bytes, and a unit holds samples of all states.
    int64_t rows = p_.targets * p_.totals;
    for (const PanelPlan::State& s : p_.states) rows += s.rows;
    if (rows > kMostRows) return false;
    find_zeros();
    return true;
  }

  // Whether it is arithmetic with weights and numbers only.
  bool depends_on_weights(int n) const {
    const TileNode& x = node(n);
    if (x.kind == Kind::literal) return true;
    if (x.kind == Kind::load) return x.dtype == DType::f32 && g_.accesses[size_t(x.access)].gather < 0 && stride(x.access, p_.sample_axis) == 0;
    return x.kind == Kind::elementwise && std::ranges::all_of(x.in, [&](int in) { return in < 0 || depends_on_weights(in); });
  }
  bool is_computed(int n) const { return computed_[size_t(n)] != kNotComputed; }
  // The number of its value in the plan.
  int compute(int n) {
    if (computed_[size_t(n)] >= 0) return computed_[size_t(n)];
    const TileNode& x = node(n);
    PanelPlan::Computed value{x.op, {-1, -1, -1}, x.kind == Kind::load ? x.access : -1, x.kind == Kind::literal ? float(x.value) : 0};
    for (size_t i = 0; i < x.in.size() && x.kind == Kind::elementwise; ++i)
      if (x.in[i] >= 0) value.in[i] = compute(x.in[i]);
    p_.computed.push_back(value);
    const int number = int(p_.computed.size()) - 1;
    if (is_computed(n)) computed_[size_t(n)] = number;
    return number;
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
    same_as_.assign(size_t(nodes()), -1), leader_.assign(size_t(nodes()), -1);
    for (int n = nodes() - 1; n >= 0; --n)
      if (is_late_sum(n)) share_total(n);
    for (int n = nodes() - 1; n >= 0; --n) {
      int& total = total_[size_t(n)];
      if (const int leader = leader_[size_t(n)]; total == kShared && leader >= 0) {
        int& shared = total_[size_t(leader)];
        if (shared == kShared) shared = p_.totals++;
        total = shared;
      } else if (total == kShared) {
        total = p_.totals++;
      }
      if (total >= 0 && node(n).kind == Kind::elementwise)
        for (int in : {node(n).in[0], node(n).in[1]}) total_[size_t(in)] = total;
    }
  }
  // An addition of sums and other values, which nothing but an addition reads unless it is the last one.
  bool is_late_sum(int n) const {
    return n >= 0 && node(n).kind == Kind::elementwise && node(n).op == Op::add && late_[size_t(n)] && total_[size_t(n)] != kShared;
  }
  // Sums that are added one after another, with other values in between, share a total too: it takes the place of the first one.
  void share_total(int last) {
    int leader = -1;
    std::vector<int> left{last};
    while (!left.empty()) {
      const int n = left.back();
      left.pop_back();
      for (int i : {0, 1}) {
        const int in = node(n).in[i];
        if (uses_[size_t(in)] != 1 || leader_[size_t(in)] >= 0) continue;
        if (is_late_sum(in)) left.push_back(in);
        if (total_[size_t(in)] != kShared) continue;
        if (leader < 0)
          leader = in;
        else
          same_as_[size_t(n)] = node(n).in[1 - i];
        leader_[size_t(in)] = leader;
      }
    }
  }
  int value_of(int n) const {
    while (n >= 0 && same_as_[size_t(n)] >= 0) n = same_as_[size_t(n)];
    return n;
  }
  bool is_total(int n) const { return total_[size_t(n)] >= 0; }

  // Sums of x · (a · u) and x · (b · v) that are only added, where a and b are weights, and u and v states that are picked by the same index, become a sum of
  // x · (a · u + b · v).
  void find_pairs() {
    pair_.assign(size_t(nodes()), kNoPair);
    if (p_.sums_samples) return;
    struct Candidate {
      int sum, factor, product, state, weight;
    };
    std::vector<Candidate> found;
    for (int n = 0; n < nodes(); ++n) {
      if (node(n).kind != Kind::reduce || !fused(node(n).in[0])) continue;
      const TileNode& product = node(node(n).in[0]);
      for (int i : {0, 1}) {
        const int picked = product.in[i];
        if (node(picked).kind != Kind::elementwise || node(picked).op != Op::mul || uses_[size_t(picked)] != 1) continue;
        for (int k : {0, 1}) {
          const int state = node(picked).in[k], weight = node(picked).in[1 - k];
          if (!is_picked_state(state) || node(weight).kind != Kind::load || g_.accesses[size_t(node(weight).access)].gather >= 0) continue;
          if (stride(node(weight).access, p_.sample_axis) != 0) continue;
          const Candidate c{n, product.in[1 - i], picked, state, weight};
          auto other =
              std::find_if(found.begin(), found.end(), [&](const Candidate& o) { return can_pair(o.sum, o.factor, o.state, c.sum, c.factor, c.state); });
          if (other == found.end()) {
            found.push_back(c);
          } else {
            pair_[size_t(other->sum)] = int(p_.pairs.size()), pair_[size_t(n)] = pair_[size_t(c.product)] = pair_[size_t(other->product)] = kInPair;
            p_.pairs.push_back({{node(other->weight).access, node(weight).access}, {node(other->state).access, node(state).access}});
            found.erase(other);
          }
          i = k = 2;
        }
      }
    }
  }
  // Two sums of x times a weight run together. Where two lanes share a vector, the second may be a copy of the first with weights 0, so x must be finite.
  void find_boths() {
    both_.assign(size_t(nodes()), kNoPair);
    if (p_.sums_samples) return;
    std::vector<int> sums_of(size_t(p_.totals), 0), place(size_t(p_.totals), -1);
    for (int n = 0; n < nodes(); ++n)
      if (node(n).kind == Kind::reduce) ++sums_of[size_t(total_[size_t(n)])];
    struct Candidate {
      int sum, factor, weight;
    };
    std::vector<Candidate> found;
    for (int n = 0; n < nodes(); ++n) {
      if (node(n).kind != Kind::reduce || pair_[size_t(n)] != kNoPair || !fused(node(n).in[0]) || sums_of[size_t(total_[size_t(n)])] != 1) continue;
      const TileNode& product = node(node(n).in[0]);
      const int i = is_weight(product.in[1]) ? 1 : 0;
      const Candidate c{n, product.in[1 - i], product.in[i]};
      if (!is_weight(c.weight) || node(c.factor).kind != Kind::elementwise || (node(c.factor).op != Op::sigmoid && node(c.factor).op != Op::tanh)) continue;
      const auto other = std::find_if(found.begin(), found.end(), [&](const Candidate& o) { return o.factor == c.factor; });
      if (other == found.end()) {
        found.push_back(c);
        continue;
      }
      const int number = int(p_.boths.size());
      place[size_t(total_[size_t(other->sum)])] = 2 * number, place[size_t(total_[size_t(n)])] = 2 * number + 1;
      both_[size_t(other->sum)] = number, both_[size_t(n)] = kInPair;
      p_.boths.push_back({{weight_leaf(other->weight), weight_leaf(c.weight)}});
      found.erase(other);
    }
    int next = 2 * int(p_.boths.size());
    for (int& to : place)
      if (to < 0) to = next++;
    for (int& total : total_)
      if (total >= 0) total = place[size_t(total)];
  }
  // (state - a) · b, with weights a and b.
  void find_scaled() {
    scaled_.assign(size_t(nodes()), kNoPair);
    for (int n = 0; n < nodes() && !p_.sums_samples; ++n) {
      const TileNode& x = node(n);
      if (x.kind != Kind::elementwise || x.op != Op::mul || late_[size_t(n)] || is_computed(n) || fused(n) || slope_of(n) >= 0) continue;
      const int i = is_weight(x.in[1]) ? 0 : 1, difference = x.in[i];
      if (!is_weight(x.in[1 - i]) || node(difference).kind != Kind::elementwise || node(difference).op != Op::sub || uses_[size_t(difference)] != 1) continue;
      if (is_computed(difference) || !is_listed_state(node(difference).in[0]) || !is_weight(node(difference).in[1])) continue;
      scaled_[size_t(n)] = difference, scaled_[size_t(difference)] = kInPair;
    }
  }
  bool is_listed_state(int n) const {
    if (node(n).kind != Kind::load || stride(node(n).access, p_.sample_axis) == 0) return false;
    return is_picked_state(n) || stride(node(n).access, p_.target_axis) != 0 || stride(node(n).access, p_.lane_axis) != 0;
  }
  int scaled_leaf(int n) {
    const int difference = scaled_[size_t(n)], factor = node(n).in[0] == difference ? node(n).in[1] : node(n).in[0];
    PanelLeaf leaf = state_leaf(node(difference).in[0]);
    leaf.scale = int(p_.scales.size());
    p_.scales.push_back({{weight_leaf(node(difference).in[1]), weight_leaf(factor)}});
    return add_leaf(leaf);
  }
  PanelLeaf state_leaf(int n) {
    const TileNode& x = node(n);
    const TileAccess& access = g_.accesses[size_t(x.access)];
    const bool by_lane = stride(x.access, p_.lane_axis) != 0;
    const int64_t rows = access.gather >= 0 ? access.gather_size : by_lane ? p_.lanes : stride(x.access, p_.target_axis) ? p_.targets : 1;
    const int index = access.gather >= 0 ? node(access.gather).access : -1;
    return {PanelLeaf::Source::state, x.access, state_number(x.access, rows), index, access.gather_size, 0, by_lane};
  }
  bool is_weight(int n) const {
    if (is_computed(n)) return true;
    return node(n).kind == Kind::load && node(n).dtype == DType::f32 && stride(node(n).access, p_.sample_axis) == 0;
  }
  PanelLeaf weight_leaf(int n) {
    PanelLeaf leaf;
    if (is_computed(n)) {
      leaf.computed = compute(n);
      return leaf;
    }
    const TileAccess& access = g_.accesses[size_t(node(n).access)];
    return {PanelLeaf::Source::weight, node(n).access, 0, access.gather >= 0 ? node(access.gather).access : -1, access.gather_size, access.gather_stride};
  }

  bool can_pair(int a, int a_factor, int a_state, int b, int b_factor, int b_state) const {
    const TileAccess &u = g_.accesses[size_t(node(a_state).access)], &v = g_.accesses[size_t(node(b_state).access)];
    return a != b && total_[size_t(a)] == total_[size_t(b)] && a_factor == b_factor && u.gather == v.gather && u.gather_size == v.gather_size;
  }
  bool is_picked_state(int n) const {
    return node(n).kind == Kind::load && g_.accesses[size_t(node(n).access)].gather >= 0 && stride(node(n).access, p_.sample_axis) != 0;
  }

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
    keep_needed_zeros();
  }
  // Leaves out the steps that no result needs.
  void keep_needed_zeros() {
    std::vector<int> number(p_.zeros.size(), -1);
    for (int result : p_.zero_results) number[size_t(result)] = 0;
    for (size_t i = p_.zeros.size(); i-- > 0;)
      for (int in : {p_.zeros[i].a, p_.zeros[i].b})
        if (number[i] == 0 && in >= 0) number[size_t(in)] = 0;
    std::vector<PanelPlan::Zero> kept;
    for (size_t i = 0; i < p_.zeros.size(); ++i) {
      if (number[i] < 0) continue;
      number[i] = int(kept.size()), kept.push_back(p_.zeros[i]);
      for (int* in : {&kept.back().a, &kept.back().b})
        if (*in >= 0) *in = number[size_t(*in)];
    }
    for (int& result : p_.zero_results) result = number[size_t(result)];
    p_.zeros = std::move(kept);
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
    } else if (is_computed(n)) {
      kind = PanelKind::number;
      if (leaf_[size_t(n)] < 0) leaf_[size_t(n)] = add_leaf(weight_leaf(n));
    } else if (x.kind == Kind::literal) {
      kind = PanelKind::number;
      if (leaf_[size_t(n)] < 0) leaf_[size_t(n)] = add_leaf({PanelLeaf::Source::literal, -1, int(p_.literals.size())}), p_.literals.push_back(float(x.value));
    } else if (x.kind == Kind::load) {
      const bool state = stride(x.access, p_.sample_axis) != 0;
      kind = state ? PanelKind::vector : PanelKind::number;
      if (leaf_[size_t(n)] < 0) leaf_[size_t(n)] = add_leaf(state ? state_leaf(n) : weight_leaf(n));
    } else {
      int& temp = temp_[size_t(n)];
      if (temp < 0 && !free_.empty()) temp = free_.back(), free_.pop_back();
      if (temp < 0) temp = add_leaf({PanelLeaf::Source::temp, -1, p_.temps++});
      return temp;
    }
    return leaf_[size_t(n)];
  }

  int factor_of_pair(int product) const {
    const TileNode& x = node(product);
    return pair_[size_t(x.in[0])] == kInPair ? x.in[1] : x.in[0];
  }
  int pair_leaf(int number) {
    PanelPlan::Pair& pair = p_.pairs[size_t(number)];
    const TileAccess& picked = g_.accesses[size_t(pair.states[0])];
    const PanelLeaf leaf{PanelLeaf::Source::pair, pair.states[0], number, node(picked.gather).access, picked.gather_size};
    for (int& state : pair.states) state = state_number(state, picked.gather_size);
    return add_leaf(leaf);
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
      if (pair_[size_t(n)] != kInPair && both_[size_t(n)] != kInPair && scaled_[size_t(n)] != kInPair &&
          (node(n).kind == Kind::reduce || (node(n).kind == Kind::elementwise && needed[size_t(n)] && !is_computed(n) && !fused(n) && !in_slope(n))))
        left.push_back(n);
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
      if (node(n).kind == Kind::store ||
          (node(n).kind == Kind::elementwise && needed[size_t(n)] && !is_computed(n) && !is_total(n) && same_as_[size_t(n)] < 0 && !in_slope(n)))
        order.push_back(n);
    temp_.assign(size_t(nodes()), -1), free_.clear();
    std::vector<int> reads(size_t(nodes()), 0);
    std::vector<PanelInstr>& out = late ? p_.after : p_.main;
    for (int pass = 0; pass < 2; ++pass) {
      int current = -1;
      auto write = [&](PanelCode code, PanelKind kind = PanelKind::vector, int slot = 0, int sum = 0) {
        if (pass == 1) out.push_back({code, kind, slot, sum});
      };
      auto read = [&](PanelCode code, int n, int sum = 0) {
        const bool temp = node(n).kind == Kind::elementwise && !is_total(n) && !is_computed(n);
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
        const int a = value_of(x.in[0]), b = value_of(x.in[1]);
        if (x.kind == Kind::reduce) {
          const int sum = total_[size_t(n)];
          if (const int pair = pair_[size_t(n)]; pair >= 0)
            bring(factor_of_pair(a)), write(PanelCode::sum_pair, PanelKind::vector, pass == 1 ? pair_leaf(pair) : 0, sum);
          else if (const int number = both_[size_t(n)]; number >= 0)
            bring(is_weight(node(a).in[1]) ? node(a).in[0] : node(a).in[1]),
                write(PanelCode::sum_both, PanelKind::vector, pass == 1 ? add_leaf({PanelLeaf::Source::both, -1, number}) : 0, sum);
          else if (fused(a))
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
          if (!late && scaled_[size_t(n)] >= 0)
            write(PanelCode::scale, PanelKind::vector, pass == 1 ? scaled_leaf(n) : 0);
          else if (const int value = slope_of(n); value >= 0)
            bring(value_of(value)), write(PanelCode::slope);
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
  bool fused(int n) const {
    return !is_computed(n) && node(n).kind == Kind::elementwise && node(n).op == Op::mul && uses_[size_t(n)] == 1 && only_summed(n) && slope_of(n) < 0;
  }
  bool only_summed(int n) const {
    for (int m = n + 1; m < nodes(); ++m)
      for (int in : node(m).in)
        if (in == n) return node(m).kind == Kind::reduce;
    return false;
  }

  static constexpr int64_t kMostRows = 50'000;
  static constexpr int kShared = -2, kNotYet = std::numeric_limits<int>::max();
  static constexpr int kNotComputed = -2, kComputed = -1;  // else the number of its value
  static constexpr int kNoPair = -1, kInPair = -2;         // else the number of the pair that a sum adds

  const TileGroup& g_;
  PanelPlan p_;
  std::vector<bool> late_;  // depends on a sum
  std::vector<int> uses_, leaf_, temp_, free_, total_, pair_, both_, scaled_, computed_;
  std::vector<int> same_as_, leader_;  // the value that an addition leaves as it is; the sum whose total has a sum, too
  std::map<std::tuple<int, int64_t, int64_t, int64_t>, int> states_;
};

}  // namespace

std::optional<PanelPlan> plan_panel(const TileGroup& group) {
  PanelPlanner planner(group);
  if (!planner.run()) return std::nullopt;
  return planner.take();
}

}  // namespace ridge::cpu
