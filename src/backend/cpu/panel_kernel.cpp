#include "backend/cpu/panel_kernel.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "backend/cpu/panel_plan.h"
#include "backend/cpu/tile_handlers.h"

namespace ridge::cpu {
namespace {

constexpr int64_t kStateBytes = 640 << 10;  // of a chunk of samples, so that the states of all sources stay in L2

int64_t panel_round(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// What sums over lanes and over samples share: operands, slots, the test for entries that are 0.
class PanelKernel : public Kernel {
 public:
  PanelKernel(const TileGroup& group, PanelPlan plan) : p_(std::move(plan)), h_(tile_handlers(isa_tier())) {
    for (const TileAccess& a : group.accesses) operand_.push_back(a.operand), offset_.push_back(a.offset * size_of(a.dtype));
  }

  int64_t workspace_bytes() const override { return workspace_; }
  int64_t scratch_bytes() const override { return scratch_; }
  int64_t tasks_once(std::span<const char> fixed) const override {
    auto is_fixed = [&](int access) { return access < 0 || fixed[size_t(operand_[size_t(access)])]; };
    auto list_is_fixed = [&](const PanelLeaf& leaf) {
      if (leaf.source == Source::pair && !std::ranges::all_of(p_.pairs[size_t(leaf.number)].weights, is_fixed)) return false;
      if (leaf.source == Source::both || leaf.scale >= 0)
        for (const PanelLeaf& weight : numbers_of(leaf).weights)
          if (!is_fixed(weight.access) || !is_fixed(weight.index_access)) return false;
      return is_fixed(leaf.source == Source::weight ? leaf.access : -1) && is_fixed(leaf.index_access);
    };
    for (size_t i = 0; i < p_.leaves.size(); ++i)
      if (is_listed(i) && !list_is_fixed(p_.leaves[i])) return 0;
    for (const PanelPlan::Computed& c : p_.computed)
      if (!is_fixed(c.access)) return 0;
    for (const PanelPlan::Zero& z : p_.zeros)
      if (z.rule == PanelPlan::Zero::Rule::weight && !list_is_fixed(z.leaf)) return 0;
    return 1;
  }

 protected:
  using Source = PanelLeaf::Source;
  struct Bound {
    const PanelKernel* kernel;
    std::vector<Ref> operands;
    Ref workspace;
  };

  const Bound* new_bound(std::span<const Ref> operands, Ref workspace) {
    bound_.push_back(std::make_unique<Bound>(Bound{this, {operands.begin(), operands.begin() + p_.operands}, workspace}));
    return bound_.back().get();
  }
  int64_t in_scratch(int64_t bytes) { return take(scratch_, bytes); }
  int64_t in_workspace(int64_t bytes) { return take(workspace_, bytes); }
  static int64_t take(int64_t& end, int64_t bytes) {
    const int64_t at = end;
    end += panel_round(bytes);
    return at;
  }

  int64_t stride(int access, int axis) const { return p_.axes.strides[size_t(access)][size_t(axis)]; }
  std::byte* address(const Bound& b, const Worker& w, int access) const {
    return w.at<std::byte>(b.operands[size_t(operand_[size_t(access)])]) + offset_[size_t(access)];
  }
  // Where a weight or an output is, and its bytes from one target or lane to the next.
  std::byte* weight(const PanelLeaf& leaf, const Bound& b, const Worker& w) const {
    return leaf.computed < 0 ? address(b, w, leaf.access) : w.at<std::byte>(b.workspace) + computed_at(leaf);
  }
  int64_t computed_at(const PanelLeaf& leaf) const { return computed_at_ + int64_t(leaf.computed) * p_.targets * p_.lanes * 4; }
  int64_t by_target(const PanelLeaf& leaf) const { return leaf.computed < 0 ? stride(leaf.access, p_.target_axis) * 4 : p_.lanes * 4; }
  int64_t by_lane(const PanelLeaf& leaf) const { return leaf.computed < 0 ? stride(leaf.access, p_.lane_axis) * 4 : 4; }
  std::byte* literal(const PanelLeaf& leaf) const { return reinterpret_cast<std::byte*>(const_cast<float*>(&p_.literals[size_t(leaf.number)])); }

  // How instructions read operands whose vectors are u apart.
  void choose_kinds(std::vector<PanelInstr>& program, const std::vector<PanelSlot>& slots, int64_t vector) const {
    for (PanelInstr& in : program) {
      if (!has_operand(in.code)) continue;
      const int64_t u = slots[size_t(in.slot)].u;
      if (p_.leaves[size_t(in.slot)].source == Source::temp)
        in.kind = PanelKind::kept;
      else if (in.kind == PanelKind::number && u != 0)
        in.kind = PanelKind::numbers;
      else if (in.kind == PanelKind::vector && u != 0)
        in.kind = u == vector ? PanelKind::consecutive : PanelKind::vectors;
    }
  }

  static bool has_slot(PanelCode code) {
    return has_operand(code) || code == PanelCode::sum_pair || code == PanelCode::sum_both || code == PanelCode::store || code == PanelCode::store_first;
  }
  int64_t steps_bytes() const { return int64_t(std::max(p_.main.size(), p_.after.size()) * sizeof(PanelStep)); }
  // Runs the last program for n vectors: first in parts of kPanelUnits, then of fewer. at(i): where vector i is.
  template <class F>
  void run_after(const PanelSlot* slots, PanelStep* steps, int64_t n, const F& at) const {
    for (int64_t i = 0, part = kPanelUnits; i < n;) {
      while (part > n - i) part /= 2;
      h_.panel_after.make_ready(p_.after, slots, part, steps);
      for (; part <= n - i; i += part) h_.panel_after.run(steps, at(i));
    }
  }

  // A list's values: one number, or the place of one, at each lane and target.
  struct List {
    const std::byte* p = nullptr;
    int64_t n = 0, l = 0;
    const int64_t* index = nullptr;
    int64_t index_n = 0, index_l = 0, size = 0, row = 0;

    int64_t picked(int64_t target, int64_t lane, Fault* fault) const {
      const int64_t i = index[target * index_n + lane * index_l];
      if (uint64_t(i) < uint64_t(size)) return i;
      fault->raise(i, size);
      return 0;
    }
    float number(int64_t target, int64_t lane, Fault* fault) const {
      float x;
      std::memcpy(&x, p + target * n + lane * l + (index ? picked(target, lane, fault) * row : 0), 4);
      return x;
    }
  };
  List list_of(const PanelLeaf& leaf, const Bound& b, const Worker& w) const {
    List list;
    if (leaf.source == Source::weight) list = {weight(leaf, b, w), by_target(leaf), by_lane(leaf)};
    if (leaf.index_access < 0) return list;
    list.index = reinterpret_cast<const int64_t*>(address(b, w, leaf.index_access));
    list.index_n = stride(leaf.index_access, p_.target_axis), list.index_l = stride(leaf.index_access, p_.lane_axis);
    list.size = leaf.size, list.row = leaf.row * 4;
    return list;
  }

  // Whether weights make all results of an entry 0. The lists, and flags by step and lane, are in scratch.
  class ZeroTest {
   public:
    ZeroTest(const PanelKernel& k, const Bound& b, const Worker& w)
        : p_(k.p_),
          fault_(w.fault),
          lists_(reinterpret_cast<List*>(w.scratch + k.zero_test_at_)),
          zero_(reinterpret_cast<char*>(lists_ + p_.zeros.size())),
          all_(zero_ + int64_t(p_.zeros.size()) * p_.lanes) {
      for (size_t i = 0; i < p_.zeros.size(); ++i)
        if (p_.zeros[i].rule == PanelPlan::Zero::Rule::weight) lists_[i] = k.list_of(p_.zeros[i].leaf, b, w);
    }
    static int64_t bytes(const PanelPlan& p) { return int64_t(p.zeros.size() * sizeof(List)) + int64_t(p.zeros.size() + 1) * p.lanes; }
    // By lane of a target
    const char* operator()(int64_t target) {
      const int64_t lanes = p_.lanes;
      std::memset(all_, !p_.zero_results.empty(), size_t(lanes));
      if (p_.zero_results.empty()) return all_;
      for (size_t i = 0; i < p_.zeros.size(); ++i) {
        const PanelPlan::Zero& z = p_.zeros[i];
        char* const is = at(int(i));
        const char *const a = at(std::max(z.a, 0)), *const b = at(std::max(z.b, 0));
        for (int64_t l = 0; l < lanes && z.rule == PanelPlan::Zero::Rule::weight; ++l) is[l] = lists_[i].number(target, l, fault_) == 0;
        for (int64_t l = 0; l < lanes && z.rule == PanelPlan::Zero::Rule::same; ++l) is[l] = a[l];
        for (int64_t l = 0; l < lanes && z.rule == PanelPlan::Zero::Rule::either; ++l) is[l] = a[l] | b[l];
        for (int64_t l = 0; l < lanes && z.rule == PanelPlan::Zero::Rule::both; ++l) is[l] = a[l] & b[l];
      }
      for (int result : p_.zero_results) {
        const char* const is = at(result);
        for (int64_t l = 0; l < lanes; ++l) all_[l] &= is[l];
      }
      return all_;
    }

   private:
    char* at(int step) const { return zero_ + step * p_.lanes; }

    const PanelPlan& p_;
    Fault* fault_;
    List* lists_;
    char *zero_, *all_;
  };
  // Entries are packed: those that count, target by target, in the order in which they are read, each list's numbers, or places of states, by themselves.
  // Rows of states are `row` bytes apart. With sums by vector, `together` entries of a target share a vector, and each vector lists where its sums are; so
  // vectors of several targets are computed at a time.
  void plan_lists(int64_t row) { plan_lists(1, row, 0, false); }
  void plan_lists_by_vector(int64_t together, int64_t row, int64_t pair_row) { plan_lists(together, row, pair_row, true); }
  void plan_lists(int64_t together, int64_t row, int64_t pair_row, bool by_vector) {
    together_ = together, row_ = row, pair_row_ = pair_row;
    const int64_t most = most_entries();
    computed_at_ = in_workspace(int64_t(p_.computed.size()) * p_.targets * p_.lanes * 4);
    counts_at_ = in_workspace((p_.targets + 1) * 4), entries_at_ = in_workspace(p_.targets * p_.lanes * 4);
    if (by_vector) into_at_ = in_workspace(most / together * 4);
    zero_test_at_ = in_scratch(ZeroTest::bytes(p_)), order_at_ = in_scratch(most * int64_t(sizeof(Entry)));
    std::vector<char> in_main(p_.leaves.size(), 0);
    for (const PanelInstr& in : p_.main) in_main[size_t(in.slot)] |= has_slot(in.code);
    for (size_t i = 0; i < p_.leaves.size(); ++i) {
      const PanelLeaf& leaf = p_.leaves[i];
      const bool by_target = by_vector && is_by_target(leaf);
      const bool listed = in_main[i] && (leaf.source == Source::weight || leaf.source == Source::pair || leaf.source == Source::both ||
                                         (leaf.source == Source::state && (leaf.index_access >= 0 || leaf.by_lane || by_target)));
      packed_at_.push_back(listed ? in_workspace(most * 4) : -1),
          numbers_at_.push_back(leaf.source == Source::pair || leaf.source == Source::both || leaf.scale >= 0 ? in_workspace(most * 8) : -1);
    }
  }
  // A state with a row for each target, which its entries share.
  bool is_by_target(const PanelLeaf& leaf) const {
    return leaf.source == Source::state && leaf.index_access < 0 && !leaf.by_lane && stride(leaf.access, p_.target_axis) != 0;
  }
  int64_t most_entries() const {
    const int64_t vectors = p_.targets * ((p_.lanes + together_ - 1) / together_);
    return (vectors + kPanelUnits - 1) / kPanelUnits * kPanelUnits * together_;
  }
  const PanelPlan::Both& numbers_of(const PanelLeaf& leaf) const { return leaf.scale >= 0 ? p_.scales[size_t(leaf.scale)] : p_.boths[size_t(leaf.number)]; }
  // Vectors, of which two totals may share one.
  int64_t sums_of_target() const { return p_.totals - (together_ > 1 ? int64_t(p_.boths.size()) : 0); }
  bool is_listed(size_t leaf) const { return packed_at_[leaf] >= 0; }
  bool is_listed_state(size_t leaf) const { return is_listed(leaf) && p_.leaves[leaf].source == Source::state; }
  void add_pack_task(const Bound* b, std::vector<Task>& tasks) const {
    tasks.push_back({pack, b, 1, double(p_.lanes) * double(p_.targets) * double(5 + p_.zeros.size())});
  }
  // By target; then the number of vectors.
  const int32_t* counts(const Bound& b, const Worker& w) const { return reinterpret_cast<const int32_t*>(w.at<std::byte>(b.workspace) + counts_at_); }
  const int32_t* into(const Bound& b, const Worker& w) const { return reinterpret_cast<const int32_t*>(w.at<std::byte>(b.workspace) + into_at_); }
  // [target][entry]
  const int32_t* entry_lanes(const Bound& b, const Worker& w) const { return reinterpret_cast<const int32_t*>(w.at<std::byte>(b.workspace) + entries_at_); }
  std::byte* packed(size_t leaf, const Bound& b, const Worker& w) const { return w.at<std::byte>(b.workspace) + packed_at_[leaf]; }

  PanelPlan p_;
  const TileHandlers& h_;
  std::vector<int> operand_;
  std::vector<int64_t> offset_;
  std::vector<int64_t> packed_at_, numbers_at_;  // lists in the workspace, by leaf; -1: none

 private:
  struct Entry {
    int32_t target, lane;
    bool copy;  // of the entry before it, because a vector has another place
  };

  static void pack(const void* args, int64_t, int64_t, Worker& w) {
    const Bound& b = *static_cast<const Bound*>(args);
    b.kernel->pack(b, w);
  }
  void pack(const Bound& b, const Worker& w) const {
    compute(b, w);
    const std::span<const Entry> order = put_in_order(b, w);
    auto fill = [&](std::byte* to, size_t step, const auto& value) {
      for (const Entry& e : order) {
        const auto x = value(e.target, e.lane);
        std::memcpy(to, &x, 4), to += step;
      }
    };
    auto clear_copies = [&](std::byte* to, size_t step) {
      for (size_t i = 0; i < order.size(); ++i)
        if (order[i].copy) std::memset(to + i * step, 0, 4);
    };
    auto fill_numbers = [&](std::byte* to, size_t step, const PanelLeaf& leaf) {
      const List list = list_of(leaf, b, w);
      fill(to, step, [&](int64_t n, int64_t lane) { return list.number(n, lane, w.fault); });
    };
    for (size_t i = 0; i < p_.leaves.size(); ++i) {
      const PanelLeaf& leaf = p_.leaves[i];
      if (!is_listed(i)) continue;
      std::byte* const to = packed(i, b, w);
      const int32_t row = int32_t(leaf.source == Source::pair ? pair_row_ : row_);
      if (leaf.source == Source::weight)
        fill_numbers(to, 4, leaf);
      else if (leaf.source == Source::both)
        for (int k = 0; k < 2; ++k) {
          std::byte* const numbers = w.at<std::byte>(b.workspace) + numbers_at_[i] + k * 4;
          fill_numbers(numbers, 8, numbers_of(leaf).weights[k]), clear_copies(numbers, 8);
        }
      else if (leaf.index_access >= 0)
        fill(to, 4, [&, list = list_of(leaf, b, w)](int64_t n, int64_t lane) { return int32_t(list.picked(n, lane, w.fault)) * row; });
      else
        fill(to, 4, [&](int64_t n, int64_t lane) { return int32_t(leaf.by_lane ? lane : n) * row; });
      for (int k = 0; k < 2 && leaf.scale >= 0; ++k) {
        const List list = list_of(numbers_of(leaf).weights[k], b, w);
        float* const numbers = reinterpret_cast<float*>(w.at<std::byte>(b.workspace) + numbers_at_[i]);
        for (int64_t e = 0; e < int64_t(order.size()); ++e)
          numbers[(2 * (e / together_) + k) * together_ + e % together_] = list.number(order[size_t(e)].target, order[size_t(e)].lane, w.fault);
      }
      for (int k = 0; k < 2 && leaf.source == Source::pair; ++k)
        fill_numbers(w.at<std::byte>(b.workspace) + numbers_at_[i] + k * 4, 8, {Source::weight, p_.pairs[size_t(leaf.number)].weights[k]});
    }
  }
  void compute(const Bound& b, const Worker& w) const {
    const int64_t points = p_.targets * p_.lanes;
    float* const values = reinterpret_cast<float*>(w.at<std::byte>(b.workspace) + computed_at_);
    for (size_t i = 0; i < p_.computed.size(); ++i) {
      const PanelPlan::Computed& c = p_.computed[i];
      float* const to = values + int64_t(i) * points;
      if (c.access >= 0) {
        h_.load_strided[int(DType::f32)](reinterpret_cast<std::byte*>(to), p_.lanes * 4, address(b, w, c.access), stride(c.access, p_.target_axis) * 4,
                                         stride(c.access, p_.lane_axis) * 4, p_.targets, p_.lanes);
      } else if (c.in[0] < 0) {
        std::fill_n(to, points, c.number);
      } else {
        TileSlot slots[4] = {{reinterpret_cast<std::byte*>(to), 0}};
        for (size_t k = 0; k < c.in.size(); ++k) slots[k + 1].p = c.in[k] < 0 ? nullptr : reinterpret_cast<std::byte*>(values + c.in[k] * points);
        const TileInstr instr{.d = 0, .a = 1, .b = 2, .c = 3, .shape = kBlock};
        h_.op[int(c.op)][int(TileReg::f32)][0](instr, {.slots = slots}, 1, points);
      }
    }
  }
  // Finds the entries that count, and the order in which lists have them: in scratch.
  std::span<const Entry> put_in_order(const Bound& b, const Worker& w) const {
    std::byte* const base = w.at<std::byte>(b.workspace);
    int32_t* const counts = reinterpret_cast<int32_t*>(base + counts_at_);
    int32_t* const entries = reinterpret_cast<int32_t*>(base + entries_at_);
    ZeroTest is_zero(*this, b, w);
    for (int64_t n = 0; n < p_.targets; ++n) {
      const char* const zero = is_zero(n);
      counts[n] = 0;
      for (int64_t lane = 0; lane < p_.lanes; ++lane)
        if (!zero[lane]) entries[n * p_.lanes + counts[n]++] = int32_t(lane);
    }
    Entry *const order = reinterpret_cast<Entry*>(w.scratch + order_at_), *end = order;
    auto add = [&](int64_t n, int64_t i, bool copy = false) { *end++ = {int32_t(n), entries[n * p_.lanes + i], copy}; };
    if (into_at_ < 0) {
      for (int64_t n = 0; n < p_.targets; ++n)
        for (int64_t i = 0; i < counts[n]; ++i) add(n, i);
      return {order, end};
    }
    // Vectors of several targets take turns, so that additions do not wait for each other.
    int32_t* const into = reinterpret_cast<int32_t*>(base + into_at_);
    int64_t vectors = 0, last = -1;
    for (int64_t first = 0; first < p_.targets; first += kPanelUnits) {
      const int64_t stop = std::min(first + kPanelUnits, p_.targets), most = *std::max_element(counts + first, counts + stop);
      for (int64_t i = 0; i < most; i += together_)
        for (int64_t n = first; n < stop; ++n) {
          if (i >= counts[n]) continue;
          for (int64_t k = 0; k < together_; ++k) add(n, std::min<int64_t>(i + k, counts[n] - 1), i + k >= counts[n]);
          into[vectors++] = int32_t((n * kPanelSums + (i + together_ > counts[n])) * sums_of_target() * row_), last = n;
        }
    }
    for (; vectors % kPanelUnits; ++vectors) {  // fills the last call; nothing reads its sums
      for (int64_t k = 0; k < together_; ++k) add(last, 0);
      into[vectors] = int32_t(p_.targets * kPanelSums * sums_of_target() * row_);
    }
    counts[p_.targets] = int32_t(vectors);
    return {order, end};
  }

  int64_t scratch_ = 0, workspace_ = 0, together_ = 1, row_ = 0, pair_row_ = 0, computed_at_ = 0, counts_at_ = 0, entries_at_ = 0, into_at_ = -1,
          zero_test_at_ = 0, order_at_ = 0;
  std::vector<std::unique_ptr<Bound>> bound_;
};

// Sums over the lanes of each target. The lists are packed once while they do not change: the entries that count, in the order in which they are read. A vector
// holds the samples of one entry, or of two neighbours if it is wide enough.
class LanePanel final : public PanelKernel {
 public:
  LanePanel(const TileGroup& group, PanelPlan plan) : PanelKernel(group, std::move(plan)), wide_(h_.panel_lanes), width_(wide_.handlers.width) {
    const int64_t vector = width_ * 4, wide = vector * wide_.lanes;
    plan_lists_by_vector(wide_.lanes, wide, 2 * vector);
    bases_at_ = in_scratch(bases_bytes());
    sums_at_ = in_scratch(sums_of_target() * (p_.targets + 1) * kPanelSums * wide), totals_at_ = in_scratch(p_.totals * p_.targets * vector);
    temps_at_ = in_scratch(p_.temps * kPanelUnits * wide), steps_at_ = in_scratch(steps_bytes());
    std::vector<char> in_main(p_.states.size(), 0);
    for (const PanelInstr& in : p_.main)
      if (const PanelLeaf& leaf = p_.leaves[size_t(in.slot)]; has_operand(in.code) && leaf.source == Source::state) in_main[size_t(leaf.number)] = 1;
    in_main_.assign(in_main.begin(), in_main.end());
    for (const PanelPlan::Pair& pair : p_.pairs)
      for (int s : pair.states) in_main_[size_t(s)] = true;
    for (size_t i = 0; i < p_.states.size(); ++i) {
      const PanelPlan::State& s = p_.states[i];
      state_at_.push_back(in_place(s.access, s.stride) ? -1 : in_scratch(s.rows * vector));
      spread_at_.push_back(wide_.spread && in_main[i] ? in_scratch(s.rows * wide) : -1);
    }
    for (const PanelPlan::Pair& pair : p_.pairs) pair_at_.push_back(in_scratch(p_.states[size_t(pair.states[0])].rows * 2 * vector));
    for (size_t i = 0; i < p_.outputs.size(); ++i) output_at_.push_back(in_scratch(p_.targets * vector));

    for (size_t i = 0; i < p_.leaves.size(); ++i) {
      const PanelLeaf& leaf = p_.leaves[i];
      PanelSlot main, after;
      switch (leaf.source) {
        case Source::weight:
          main.l = main.u = wide_.lanes * 4;
          after.n = after.u = by_target(leaf);
          break;
        case Source::state:
          if (stride(leaf.access, p_.target_axis) != 0) after.n = after.u = vector;
          break;
        case Source::pair:
        case Source::both:
        case Source::literal: break;
        case Source::temp: main.u = wide, after.u = vector; break;
        case Source::total:
        case Source::output: after.n = after.u = vector; break;
      }
      main_slots_.push_back(main), after_slots_.push_back(after);
    }
    choose_kinds(p_.main, main_slots_, wide), choose_kinds(p_.after, after_slots_, vector);
    for (PanelInstr& in : p_.main) {
      if (wide_.lanes > 1) in.sum = in.code == PanelCode::sum_both ? in.sum / 2 : std::max(0, in.sum - int(p_.boths.size()));
      if (has_operand(in.code) && is_listed_state(size_t(in.slot))) in.kind = is_by_target(p_.leaves[size_t(in.slot)]) ? PanelKind::own : PanelKind::picked;
    }
    for (const PanelInstr& in : p_.after)
      if (const PanelLeaf& leaf = p_.leaves[size_t(in.slot)]; has_slot(in.code) && leaf.source == Source::weight && leaf.computed < 0)
        weights_after_.push_back(leaf.access);
    int64_t at_once = kPanelUnits;
    while (at_once * wide_.lanes > p_.targets) at_once /= 2;
    part_ = at_once * wide_.lanes, main_ = make_main(), after_ = make_after(at_once);
  }

  void bind(std::span<const Ref> operands, Ref workspace, std::vector<Task>& tasks) override {
    const Bound* b = new_bound(operands, workspace);
    const double points = double(p_.lanes) * double(p_.targets);
    add_pack_task(b, tasks);
    tasks.push_back({sum, b, (p_.samples + width_ - 1) / width_, points * 0.7});
  }

 private:
  static void sum(const void* args, int64_t begin, int64_t end, Worker& w) {
    const Bound& b = *static_cast<const Bound*>(args);
    for (int64_t i = begin; i < end; ++i) static_cast<const LanePanel*>(b.kernel)->sum(b, i, w);
  }
  void sum(const Bound& b, int64_t unit, Worker& w) const {
    const int64_t first = unit * width_, live = std::min<int64_t>(width_, p_.samples - first), vector = width_ * 4, wide = vector * wide_.lanes;
    // Outputs, and states that are read after the sums, are seldom in the cache, but for those of a block.
    for (int access : p_.outputs)
      if (stride(access, p_.target_axis) == 1)
        prefetch<1>(address(b, w, access) + first * stride(access, p_.sample_axis) * 4, stride(access, p_.sample_axis) * 4, live);
    for (size_t i = 0; i < p_.states.size(); ++i)
      if (const int access = p_.states[i].access; !in_main_[i] && state_at_[i] >= 0 && p_.states[i].stride == 1)
        prefetch<0>(address(b, w, access) + first * stride(access, p_.sample_axis) * 4, stride(access, p_.sample_axis) * 4, live);
    bring_states(true, first, live, b, w);
    for (size_t i = 0; i < p_.pairs.size(); ++i) {
      const auto [u, v] = p_.pairs[i].states;
      auto columns = [&](int s) { return reinterpret_cast<const float*>(state(size_t(s), first, b, w)); };
      wide_.join(columns(u), columns(v), reinterpret_cast<float*>(w.scratch + pair_at_[i]), p_.states[size_t(u)].rows);
    }
    std::byte* const* const bases = find_bases(first, b, w);
    float* const sums = reinterpret_cast<float*>(w.scratch + sums_at_);
    std::memset(sums, 0, size_t(sums_of_target() * p_.targets * kPanelSums * wide));
    PanelStep* const steps = reinterpret_cast<PanelStep*>(w.scratch + steps_at_);
    main_.copy(steps, bases);
    PanelPlace place{.sums = sums, .into = into(b, w)};
    for (const int64_t vectors = counts(b, w)[p_.targets]; place.lane < vectors; place.lane += kPanelUnits) wide_.handlers.run(steps, place);
    wide_.fold(sums, reinterpret_cast<float*>(w.scratch + totals_at_), p_.targets, p_.totals, int64_t(p_.boths.size()));
    bring_states(false, first, live, b, w);
    // The last part overlaps the one before: nothing that it reads has been written yet.
    after_.copy(steps, bases);
    for (int64_t n = 0; n < p_.targets; n += part_) wide_.after.run(steps, {.target = std::min(n, p_.targets - part_)});
    for (size_t i = 0; i < p_.outputs.size(); ++i) {
      if (output(i, b, w) != w.scratch + output_at_[i]) continue;
      const int64_t step = stride(p_.outputs[i], p_.sample_axis) * 4, row = stride(p_.outputs[i], p_.target_axis) * 4;
      bring(address(b, w, p_.outputs[i]) + first * step, step, row, w.scratch + output_at_[i], 4, vector, p_.targets, live);
    }
  }

  template <int kWrite>
  void prefetch(const std::byte* p, int64_t row, int64_t rows) const {
    int64_t bytes = p_.targets * 4;
    if (row == bytes) bytes *= rows, rows = 1;
    for (int64_t r = 0; r < rows; ++r, p += row)
      for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(p + at, kWrite);
  }

  // Those that the sums read, or the others.
  void bring_states(bool for_sums, int64_t first, int64_t live, const Bound& b, const Worker& w) const {
    const int64_t vector = width_ * 4;
    for (size_t i = 0; i < p_.states.size(); ++i) {
      const PanelPlan::State& s = p_.states[i];
      if (in_main_[i] != for_sums) continue;
      std::byte* const to = state(i, first, b, w);
      if (state_at_[i] >= 0) {
        const int64_t step = stride(s.access, p_.sample_axis) * 4;
        if (live < width_) std::memset(to, 0, size_t(s.rows * vector));
        bring(to, 4, vector, address(b, w, s.access) + first * step, step, s.stride * 4, s.rows, live);
      }
      if (spread_at_[i] >= 0) wide_.spread(reinterpret_cast<const float*>(to), reinterpret_cast<float*>(w.scratch + spread_at_[i]), s.rows);
    }
  }

  // States whose samples are next to each other, and one vector in all, need no copy.
  bool in_place(int access, int64_t row) const { return p_.samples == width_ && stride(access, p_.sample_axis) == 1 && row == width_; }
  std::byte* state(size_t i, int64_t first, const Bound& b, const Worker& w) const {
    return state_at_[i] < 0 ? address(b, w, p_.states[i].access) + first * 4 : w.scratch + state_at_[i];
  }
  // In scratch, or in place if no state is there, of which the last part of the targets may still be read.
  std::byte* output(size_t i, const Bound& b, const Worker& w) const {
    std::byte* const p = address(b, w, p_.outputs[i]);
    bool taken = !in_place(p_.outputs[i], stride(p_.outputs[i], p_.target_axis));
    for (size_t s = 0; s < p_.states.size() && !taken; ++s) taken = state_at_[s] < 0 && state(s, 0, b, w) == p;
    return taken ? w.scratch + output_at_[i] : p;
  }
  // Copies rows of samples, given the bytes from one sample to the next and from one row to the next. One of the two is 4 on either side.
  void bring(std::byte* to, int64_t to_sample, int64_t to_row, const std::byte* from, int64_t from_sample, int64_t from_row, int64_t rows,
             int64_t samples) const {
    if (from_sample == to_sample && from_row == to_row && to_row == samples * 4) {
      std::memcpy(to, from, size_t(rows * to_row));
    } else if (from_sample == to_sample) {
      for (int64_t r = 0; r < rows; ++r) std::memcpy(to + r * to_row, from + r * from_row, size_t(samples * 4));
    } else if (to_sample == 4) {
      h_.load_transposed(to, to_row, from, 4, from_sample, rows, samples);
    } else {
      h_.load_transposed(to, to_sample, from, 4, from_row, samples, rows);
    }
  }

  // A program with the places of its operands: steps are copied from here, and their pointers set to an offset from what is only known when they run.
  struct Ready {
    struct Pointer {
      int32_t at, base;  // bytes from the first step
      int64_t offset;
    };
    std::vector<PanelStep> steps;
    std::vector<Pointer> pointers;

    void copy(PanelStep* to, std::byte* const* bases) const {
      std::memcpy(to, steps.data(), steps.size() * sizeof(PanelStep));
      for (const Pointer& p : pointers) {
        std::byte* const value = bases[p.base] + p.offset;
        std::memcpy(reinterpret_cast<std::byte*>(to) + p.at, &value, sizeof(value));
      }
    }
  };
  // Bases: the scratch, the workspace, then states, outputs and accesses.
  int32_t base_of_state(int i) const { return 2 + i; }
  int32_t base_of_output(int i) const { return base_of_state(int(p_.states.size())) + i; }
  int32_t base_of_access(int i) const { return base_of_output(int(p_.outputs.size())) + i; }
  int64_t bases_bytes() const { return (base_of_access(int(operand_.size()))) * int64_t(sizeof(std::byte*)); }

  Ready make_main() const {
    Ready ready;
    ready.steps.resize(p_.main.size());
    wide_.handlers.make_ready(p_.main, main_slots_.data(), kPanelUnits, ready.steps.data());
    for (size_t k = 0; k < p_.main.size(); ++k) {
      const PanelInstr& in = p_.main[k];
      const PanelLeaf& leaf = p_.leaves[size_t(in.slot)];
      if (!has_slot(in.code)) continue;
      switch (leaf.source) {
        case Source::weight: add(ready, k, &PanelSlot::p, kWorkspace, packed_at_[size_t(in.slot)]); break;
        case Source::state:
          if (const int64_t twice = spread_at_[size_t(leaf.number)]; twice >= 0)
            add(ready, k, &PanelSlot::p, kScratch, twice);
          else
            add(ready, k, &PanelSlot::p, base_of_state(leaf.number), 0);
          if (is_listed(size_t(in.slot))) add(ready, k, &PanelSlot::offsets, kWorkspace, packed_at_[size_t(in.slot)]);
          if (leaf.scale >= 0) add(ready, k, &PanelSlot::numbers, kWorkspace, numbers_at_[size_t(in.slot)]);
          break;
        case Source::pair:
          add(ready, k, &PanelSlot::p, kScratch, pair_at_[size_t(leaf.number)]);
          add(ready, k, &PanelSlot::offsets, kWorkspace, packed_at_[size_t(in.slot)]);
          add(ready, k, &PanelSlot::numbers, kWorkspace, numbers_at_[size_t(in.slot)]);
          break;
        case Source::both: add(ready, k, &PanelSlot::numbers, kWorkspace, numbers_at_[size_t(in.slot)]); break;
        default: add_common(ready, k, leaf); break;
      }
    }
    return ready;
  }
  Ready make_after(int64_t vectors) const {
    Ready ready;
    ready.steps.resize(p_.after.size());
    wide_.after.make_ready(p_.after, after_slots_.data(), vectors, ready.steps.data());
    for (size_t k = 0; k < p_.after.size(); ++k) {
      const PanelLeaf& leaf = p_.leaves[size_t(p_.after[k].slot)];
      if (!has_slot(p_.after[k].code)) continue;
      switch (leaf.source) {
        case Source::weight:
          if (leaf.computed >= 0)
            add(ready, k, &PanelSlot::p, kWorkspace, computed_at(leaf));
          else
            add(ready, k, &PanelSlot::p, base_of_access(leaf.access), 0);
          break;
        case Source::state: add(ready, k, &PanelSlot::p, base_of_state(leaf.number), 0); break;
        case Source::total: add(ready, k, &PanelSlot::p, kScratch, totals_at_ + leaf.number * p_.targets * width_ * 4); break;
        case Source::output: add(ready, k, &PanelSlot::p, base_of_output(leaf.number), 0); break;
        default: add_common(ready, k, leaf); break;
      }
    }
    return ready;
  }
  static constexpr int32_t kScratch = 0, kWorkspace = 1;
  void add_common(Ready& ready, size_t step, const PanelLeaf& leaf) const {
    if (leaf.source == Source::literal) ready.steps[step].slot.p = literal(leaf);
    if (leaf.source == Source::temp) add(ready, step, &PanelSlot::p, kScratch, temps_at_ + leaf.number * kPanelUnits * width_ * 4 * wide_.lanes);
  }
  template <class T>
  static void add(Ready& ready, size_t step, T PanelSlot::*field, int32_t base, int64_t offset) {
    const auto* const from = reinterpret_cast<const std::byte*>(ready.steps.data());
    ready.pointers.push_back({int32_t(reinterpret_cast<const std::byte*>(&(ready.steps[step].slot.*field)) - from), base, offset});
  }
  std::byte** find_bases(int64_t first, const Bound& b, const Worker& w) const {
    std::byte** const bases = reinterpret_cast<std::byte**>(w.scratch + bases_at_);
    bases[kScratch] = w.scratch, bases[kWorkspace] = b.workspace ? w.at<std::byte>(b.workspace) : nullptr;
    for (size_t i = 0; i < p_.states.size(); ++i) bases[base_of_state(int(i))] = state(i, first, b, w);
    for (size_t i = 0; i < p_.outputs.size(); ++i) bases[base_of_output(int(i))] = output(i, b, w);
    for (int access : weights_after_) bases[base_of_access(access)] = address(b, w, access);
    return bases;
  }

  PanelLanes wide_;
  int64_t width_;
  std::vector<bool> in_main_;  // states that the sums read
  std::vector<PanelSlot> main_slots_, after_slots_;
  std::vector<int64_t> state_at_, spread_at_, pair_at_, output_at_;  // in scratch; -1: in place, not needed
  std::vector<int> weights_after_;                                   // accesses
  Ready main_, after_;
  int64_t part_ = 1;  // targets that the program after the sums computes at a time
  int64_t bases_at_ = 0, sums_at_ = 0, totals_at_ = 0, temps_at_ = 0, steps_at_ = 0;
};

// Sums over the samples for each entry: consecutive samples are in a vector. A unit has the samples of some chunks and the entries of some targets. It brings a
// chunk's states into its scratch, where they stay in the cache while all entries read them. The units' totals are added at the end.
class SamplePanel final : public PanelKernel {
 public:
  SamplePanel(const TileGroup& group, PanelPlan plan) : PanelKernel(group, std::move(plan)) {
    const PanelSamples& whole = h_.panel_samples[1];
    run_ = p_.samples % whole.handlers.width == 0 ? whole : h_.panel_samples[0], width_ = run_.handlers.width;
    const int64_t vector = width_ * 4, vectors = p_.samples / width_;
    int64_t rows = 0;
    for (const auto& s : p_.states) rows += s.rows;
    // Numbers of units with many divisors, for any number of threads.
    constexpr int64_t kLeast = 12, kMost = 48, kChunk = 8 * kPanelUnits;
    const int64_t fits = std::min(kStateBytes / (std::max<int64_t>(rows, 1) * vector), vectors / kLeast);
    chunk_ = std::clamp(fits / kPanelUnits * kPanelUnits, kPanelUnits, kChunk);
    chunks_ = (vectors + chunk_ - 1) / chunk_, parts_ = std::min(chunks_, kMost);
    groups_ = std::min(p_.targets, (kLeast + parts_ - 1) / parts_), ends_ = std::min(p_.targets, kLeast);
    pitch_ = std::min(chunk_, vectors) * vector + 64;
    plan_lists(pitch_);
    slots_at_ = in_scratch(int64_t(p_.leaves.size()) * int64_t(sizeof(PanelSlot)));
    sums_at_ = in_scratch(p_.totals * vector), temps_at_ = in_scratch(p_.temps * kPanelUnits * vector), steps_at_ = in_scratch(kParts * steps_bytes());
    for (const auto& s : p_.states) state_at_.push_back(in_scratch(s.rows * pitch_));
    ended_at_ = in_scratch(p_.lanes * p_.totals * 4), totals_at_ = in_workspace(parts_ * totals());
    for (size_t i = 0; i < p_.leaves.size(); ++i) {
      const PanelLeaf& leaf = p_.leaves[i];
      PanelSlot main, after;
      switch (leaf.source) {
        case Source::weight: main.l = 4; break;
        case Source::state:
          main.u = vector;
          if (!is_listed(i) && stride(leaf.access, p_.target_axis) != 0) main.n = pitch_;
          break;
        case Source::pair:
        case Source::both:
        case Source::literal: break;
        case Source::temp: main.u = after.u = vector; break;
        case Source::total: after.l = p_.totals * 4; break;
        case Source::output: break;
      }
      if (leaf.source == Source::weight || leaf.source == Source::output) after.n = by_target(leaf), after.l = by_lane(leaf);
      if (leaf.source != Source::temp) after.u = after.l;
      main_slots_.push_back(main), after_slots_.push_back(after);
    }
    choose_kinds(p_.main, main_slots_, vector), choose_kinds(p_.after, after_slots_, vector);
    for (PanelInstr& in : p_.main)
      if (has_operand(in.code) && is_listed_state(size_t(in.slot))) in.kind = PanelKind::row;
  }

  void bind(std::span<const Ref> operands, Ref workspace, std::vector<Task>& tasks) override {
    const Bound* b = new_bound(operands, workspace);
    const double entries = double(p_.lanes) * double(p_.targets), vectors = double(p_.samples / width_);
    add_pack_task(b, tasks);
    tasks.push_back({sum, b, parts_ * groups_, entries * vectors * 0.3 * double(p_.main.size()) / double(parts_ * groups_)});
    tasks.push_back({end, b, ends_, entries * double(parts_ * p_.totals + int64_t(p_.after.size())) / double(ends_)});
  }

 private:
  int64_t totals() const { return most_entries() * p_.totals * 4; }  // bytes

  static void sum(const void* args, int64_t begin, int64_t end, Worker& w) {
    const Bound& b = *static_cast<const Bound*>(args);
    for (int64_t i = begin; i < end; ++i) static_cast<const SamplePanel*>(b.kernel)->sum(b, i, w);
  }
  void sum(const Bound& b, int64_t unit, Worker& w) const {
    const int64_t part = unit / groups_, group = unit % groups_, vectors = p_.samples / width_;
    const int64_t begin = p_.targets * group / groups_, end = p_.targets * (group + 1) / groups_;
    PanelSlot* const slots = reinterpret_cast<PanelSlot*>(w.scratch + slots_at_);
    std::copy(main_slots_.begin(), main_slots_.end(), slots), place(slots, true, b, w);
    float* const sums = reinterpret_cast<float*>(w.scratch + sums_at_);
    std::memset(sums, 0, size_t(p_.totals * width_ * 4));
    const int32_t* const counts = this->counts(b, w);
    const int64_t first_entry = std::accumulate(counts, counts + begin, int64_t{0}), entries = std::accumulate(counts + begin, counts + end, int64_t{0});
    float* const totals = totals_of(part, b, w);
    std::memset(totals + first_entry * p_.totals, 0, size_t(entries * p_.totals * 4));
    PanelStep* steps[kParts];
    for (int i = 0; i < kParts; ++i) {
      steps[i] = reinterpret_cast<PanelStep*>(w.scratch + steps_at_ + i * steps_bytes());
      run_.handlers.make_ready(p_.main, slots, int64_t{1} << i, steps[i]);
    }
    for (int64_t chunk = chunks_ * part / parts_; chunk < chunks_ * (part + 1) / parts_; ++chunk) {
      const int64_t first = chunk * chunk_, count = std::min(chunk_, vectors - first);
      for (size_t i = 0; i < p_.states.size(); ++i) {
        const int access = p_.states[i].access;
        const int64_t step = stride(access, p_.sample_axis) * 4;
        h_.load_transposed(w.scratch + state_at_[i], pitch_, address(b, w, access) + first * width_ * step, 4, step, p_.states[i].rows, count * width_);
      }
      int64_t entry = first_entry;
      for (int64_t n = begin; n < end; ++n)
        for (int64_t i = 0; i < counts[n]; ++i, ++entry) {
          PanelPlace place{.target = n, .lane = entry, .sums = sums};
          for (int64_t done = 0, part = kParts - 1; done < count; done += int64_t{1} << part, place.sample = done * width_ * 4) {
            while (int64_t{1} << part > count - done) --part;
            run_.handlers.run(steps[part], place);
          }
          run_.add_totals(sums, totals + entry * p_.totals, p_.totals);
        }
    }
  }

  static void end(const void* args, int64_t begin, int64_t end, Worker& w) {
    const Bound& b = *static_cast<const Bound*>(args);
    for (int64_t i = begin; i < end; ++i) static_cast<const SamplePanel*>(b.kernel)->end(b, i, w);
  }
  void end(const Bound& b, int64_t unit, Worker& w) const {
    const int64_t begin = p_.targets * unit / ends_, end = p_.targets * (unit + 1) / ends_;
    PanelSlot* const slots = reinterpret_cast<PanelSlot*>(w.scratch + slots_at_);
    std::copy(after_slots_.begin(), after_slots_.end(), slots), place(slots, false, b, w);
    PanelStep* const steps = reinterpret_cast<PanelStep*>(w.scratch + steps_at_);
    const int32_t* const counts = this->counts(b, w);
    const int32_t* const lanes = entry_lanes(b, w);
    float* const ended = reinterpret_cast<float*>(w.scratch + ended_at_);
    int64_t entry = std::accumulate(counts, counts + begin, int64_t{0});
    for (int64_t n = begin; n < end; entry += counts[n], ++n) {
      std::memset(ended, 0, size_t(p_.lanes * p_.totals * 4));
      for (int64_t part = 0; part < parts_; ++part) {
        const float* from = totals_of(part, b, w) + entry * p_.totals;
        for (int64_t i = 0; i < counts[n]; ++i, from += p_.totals)
          for (int64_t k = 0; k < p_.totals; ++k) ended[lanes[n * p_.lanes + i] * p_.totals + k] += from[k];
      }
      run_after(slots, steps, p_.lanes, [n](int64_t lane) { return PanelPlace{.target = n, .lane = lane}; });
    }
  }

  float* totals_of(int64_t part, const Bound& b, const Worker& w) const {
    return reinterpret_cast<float*>(w.at<std::byte>(b.workspace) + totals_at_ + part * totals());
  }

  void place(PanelSlot* slots, bool main, const Bound& b, const Worker& w) const {
    for (size_t i = 0; i < p_.leaves.size(); ++i) {
      const PanelLeaf& leaf = p_.leaves[i];
      switch (leaf.source) {
        case Source::weight: slots[i].p = main && is_listed(i) ? packed(i, b, w) : weight(leaf, b, w); break;
        case Source::state:
          slots[i].p = w.scratch + state_at_[size_t(leaf.number)];
          if (main && is_listed(i)) slots[i].offsets = reinterpret_cast<const int32_t*>(packed(i, b, w));
          break;
        case Source::pair:
        case Source::both: break;
        case Source::literal: slots[i].p = literal(leaf); break;
        case Source::temp: slots[i].p = w.scratch + temps_at_ + leaf.number * kPanelUnits * width_ * 4; break;
        case Source::total: slots[i].p = w.scratch + ended_at_ + leaf.number * 4; break;
        case Source::output: slots[i].p = address(b, w, leaf.access); break;
      }
    }
  }

  static constexpr int kParts = 4;  // programs for 1, 2, 4 and kPanelUnits vectors

  PanelSamples run_;
  int64_t width_ = 1, chunk_ = 1, chunks_ = 1, parts_ = 1, groups_ = 1, ends_ = 1, pitch_ = 0;  // a part has chunks of samples, a group has targets
  std::vector<PanelSlot> main_slots_, after_slots_;
  std::vector<int64_t> state_at_;
  int64_t slots_at_ = 0, sums_at_ = 0, temps_at_ = 0, steps_at_ = 0, totals_at_ = 0, ended_at_ = 0;
};

}  // namespace

bool runs_as_panel(const TileGroup& group) { return plan_panel(group).has_value(); }

std::unique_ptr<Kernel> make_panel_kernel(const TileGroup& group) {
  std::optional<PanelPlan> plan = plan_panel(group);
  if (!plan) return nullptr;
  if (plan->sums_samples) return std::make_unique<SamplePanel>(group, *std::move(plan));
  return std::make_unique<LanePanel>(group, *std::move(plan));
}

}  // namespace ridge::cpu
