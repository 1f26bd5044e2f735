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
    auto list_is_fixed = [&](const PanelLeaf& leaf) { return is_fixed(leaf.source == Source::weight ? leaf.access : -1) && is_fixed(leaf.index_access); };
    for (size_t i = 0; i < p_.leaves.size(); ++i)
      if (is_listed(i) && !list_is_fixed(p_.leaves[i])) return 0;
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
  bool is_literal(const PanelLeaf& leaf) const { return leaf.source == Source::literal; }
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
    if (leaf.source == Source::weight) list = {address(b, w, leaf.access), stride(leaf.access, p_.target_axis) * 4, stride(leaf.access, p_.lane_axis) * 4};
    if (leaf.index_access < 0) return list;
    list.index = reinterpret_cast<const int64_t*>(address(b, w, leaf.index_access));
    list.index_n = stride(leaf.index_access, p_.target_axis), list.index_l = stride(leaf.index_access, p_.lane_axis);
    list.size = leaf.size, list.row = leaf.row * 4;
    return list;
  }

  // Whether weights make all results of an entry 0. The lists and flags are in scratch.
  class ZeroTest {
   public:
    ZeroTest(const PanelKernel& k, const Bound& b, const Worker& w, int64_t at)
        : p_(k.p_), fault_(w.fault), lists_(reinterpret_cast<List*>(w.scratch + at)), zero_(w.scratch + at + int64_t(p_.zeros.size() * sizeof(List))) {
      for (size_t i = 0; i < p_.zeros.size(); ++i)
        if (p_.zeros[i].rule == PanelPlan::Zero::Rule::weight) lists_[i] = k.list_of(p_.zeros[i].leaf, b, w);
    }
    bool operator()(int64_t target, int64_t lane) {
      if (p_.zero_results.empty()) return false;
      auto zero = [&](int step) { return zero_[step] != std::byte{}; };
      for (size_t i = 0; i < p_.zeros.size(); ++i) {
        const PanelPlan::Zero& z = p_.zeros[i];
        bool is = false;
        switch (z.rule) {
          case PanelPlan::Zero::Rule::weight: is = lists_[i].number(target, lane, fault_) == 0; break;
          case PanelPlan::Zero::Rule::same: is = zero(z.a); break;
          case PanelPlan::Zero::Rule::either: is = zero(z.a) || zero(z.b); break;
          case PanelPlan::Zero::Rule::both: is = zero(z.a) && zero(z.b); break;
        }
        zero_[i] = std::byte(is);
      }
      return std::all_of(p_.zero_results.begin(), p_.zero_results.end(), zero);
    }

   private:
    const PanelPlan& p_;
    Fault* fault_;
    List* lists_;
    std::byte* zero_;
  };
  // Entries are packed: those that count, target by target, in the order in which they are read, each list's numbers, or places of states, by themselves.
  // Rows of states are `row` bytes apart. With sums by vector, `together` entries of a target share a vector, and each vector lists where its sums are; so
  // vectors of several targets are computed at a time.
  void plan_lists(int64_t row) { plan_lists(1, row, false); }
  void plan_lists_by_vector(int64_t together, int64_t row) { plan_lists(together, row, true); }
  void plan_lists(int64_t together, int64_t row, bool by_vector) {
    together_ = together, row_ = row;
    const int64_t most = most_entries();
    counts_at_ = in_workspace((p_.targets + 1) * 4), entries_at_ = in_workspace(p_.targets * p_.lanes * 4);
    if (by_vector) into_at_ = in_workspace(most / together * 4);
    zero_test_at_ = in_scratch(int64_t(p_.zeros.size() * (sizeof(List) + 1))), lists_at_ = in_scratch(int64_t(p_.leaves.size() * sizeof(To)));
    std::vector<char> in_main(p_.leaves.size(), 0);
    for (const PanelInstr& in : p_.main) in_main[size_t(in.slot)] |= has_operand(in.code);
    for (size_t i = 0; i < p_.leaves.size(); ++i) {
      const PanelLeaf& leaf = p_.leaves[i];
      const bool by_target = by_vector && is_by_target(leaf);
      const bool listed =
          in_main[i] && (leaf.source == Source::weight || (leaf.source == Source::state && (leaf.index_access >= 0 || leaf.by_lane || by_target)));
      packed_at_.push_back(listed ? in_workspace(most * 4) : -1);
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

 private:
  struct To {
    List list;
    bool picks, by_target;
    std::byte* p;
  };

  static void pack(const void* args, int64_t, int64_t, Worker& w) {
    const Bound& b = *static_cast<const Bound*>(args);
    b.kernel->pack(b, w);
  }
  void pack(const Bound& b, const Worker& w) const {
    std::byte* const base = w.at<std::byte>(b.workspace);
    int32_t* const counts = reinterpret_cast<int32_t*>(base + counts_at_);
    To* const all = reinterpret_cast<To*>(w.scratch + lists_at_);
    size_t packed = 0;
    for (size_t i = 0; i < p_.leaves.size(); ++i)
      if (is_listed(i)) all[packed++] = {list_of(p_.leaves[i], b, w), is_listed_state(i), !p_.leaves[i].by_lane, base + packed_at_[i]};
    const std::span<To> lists(all, packed);
    int32_t* const entries = reinterpret_cast<int32_t*>(base + entries_at_);
    ZeroTest is_zero(*this, b, w, zero_test_at_);
    for (int64_t n = 0; n < p_.targets; ++n) {
      counts[n] = 0;
      for (int64_t lane = 0; lane < p_.lanes; ++lane)
        if (!is_zero(n, lane)) entries[n * p_.lanes + counts[n]++] = int32_t(lane);
    }
    auto add = [&](int64_t n, int64_t i) {
      const int64_t lane = entries[n * p_.lanes + i];
      for (To& to : lists) {
        const int64_t row = to.list.index ? to.list.picked(n, lane, w.fault) : to.by_target ? n : lane;
        const int32_t offset = int32_t(row * row_);
        const float number = to.picks ? 0 : to.list.number(n, lane, w.fault);
        std::memcpy(to.p, to.picks ? static_cast<const void*>(&offset) : &number, 4);
        to.p += 4;
      }
    };
    if (into_at_ < 0) {
      for (int64_t n = 0; n < p_.targets; ++n)
        for (int64_t i = 0; i < counts[n]; ++i) add(n, i);
      return;
    }
    // Vectors of several targets take turns, so that additions do not wait for each other.
    int32_t* const into = reinterpret_cast<int32_t*>(base + into_at_);
    int64_t vectors = 0, last = -1;
    for (int64_t first = 0; first < p_.targets; first += kPanelUnits) {
      const int64_t end = std::min(first + kPanelUnits, p_.targets), most = *std::max_element(counts + first, counts + end);
      for (int64_t i = 0; i < most; i += together_)
        for (int64_t n = first; n < end; ++n) {
          if (i >= counts[n]) continue;
          for (int64_t k = 0; k < together_; ++k) add(n, std::min<int64_t>(i + k, counts[n] - 1));
          into[vectors++] = int32_t((n * kPanelSums + (i + together_ > counts[n])) * p_.totals * row_), last = n;
        }
    }
    for (; vectors % kPanelUnits; ++vectors) {  // fills the last call; nothing reads its sums
      for (int64_t k = 0; k < together_; ++k) add(last, 0);
      into[vectors] = int32_t(p_.targets * kPanelSums * p_.totals * row_);
    }
    counts[p_.targets] = int32_t(vectors);
  }

  int64_t scratch_ = 0, workspace_ = 0, together_ = 1, row_ = 0, counts_at_ = 0, entries_at_ = 0, into_at_ = -1, zero_test_at_ = 0, lists_at_ = 0;
  std::vector<int64_t> packed_at_;
  std::vector<std::unique_ptr<Bound>> bound_;
};

// Sums over the lanes of each target. The lists are packed once while they do not change: the entries that count, in the order in which they are read. A vector
// holds the samples of one entry, or of two neighbours if it is wide enough.
class LanePanel final : public PanelKernel {
 public:
  LanePanel(const TileGroup& group, PanelPlan plan) : PanelKernel(group, std::move(plan)), wide_(h_.panel_lanes), width_(wide_.handlers.width) {
    const int64_t vector = width_ * 4, wide = vector * wide_.lanes;
    plan_lists_by_vector(wide_.lanes, wide);
    slots_at_ = in_scratch(2 * int64_t(p_.leaves.size()) * int64_t(sizeof(PanelSlot)));
    sums_at_ = in_scratch(p_.totals * (p_.targets + 1) * kPanelSums * wide), totals_at_ = in_scratch(p_.totals * p_.targets * vector);
    temps_at_ = in_scratch(p_.temps * kPanelUnits * wide), steps_at_ = in_scratch(steps_bytes());
    std::vector<char> in_main(p_.states.size(), 0);
    for (const PanelInstr& in : p_.main)
      if (const PanelLeaf& leaf = p_.leaves[size_t(in.slot)]; has_operand(in.code) && leaf.source == Source::state) in_main[size_t(leaf.number)] = 1;
    for (size_t i = 0; i < p_.states.size(); ++i) {
      const PanelPlan::State& s = p_.states[i];
      state_at_.push_back(in_place(s.access, s.stride) ? -1 : in_scratch(s.rows * vector));
      spread_at_.push_back(wide_.spread && in_main[i] ? in_scratch(s.rows * wide) : -1);
    }
    for (size_t i = 0; i < p_.outputs.size(); ++i) output_at_.push_back(in_scratch(p_.targets * vector));

    for (size_t i = 0; i < p_.leaves.size(); ++i) {
      const PanelLeaf& leaf = p_.leaves[i];
      PanelSlot main, after;
      switch (leaf.source) {
        case Source::weight:
          main.l = main.u = wide_.lanes * 4;
          after.n = after.u = stride(leaf.access, p_.target_axis) * 4;
          break;
        case Source::state:
          if (stride(leaf.access, p_.target_axis) != 0) after.n = after.u = vector;
          break;
        case Source::literal: break;
        case Source::temp: main.u = wide, after.u = vector; break;
        case Source::total: after.n = after.u = p_.totals * vector; break;
        case Source::output: after.n = after.u = vector; break;
      }
      main_slots_.push_back(main), after_slots_.push_back(after);
    }
    choose_kinds(p_.main, main_slots_, wide), choose_kinds(p_.after, after_slots_, vector);
    for (PanelInstr& in : p_.main)
      if (has_operand(in.code) && is_listed_state(size_t(in.slot))) in.kind = is_by_target(p_.leaves[size_t(in.slot)]) ? PanelKind::own : PanelKind::picked;
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
    for (int access : p_.outputs)  // which are seldom in the cache, but for those of a block
      for (int64_t s = first; s < first + live && stride(access, p_.target_axis) == 1; ++s)
        for (int64_t at = 0; at < p_.targets * 4; at += 64) __builtin_prefetch(address(b, w, access) + s * stride(access, p_.sample_axis) * 4 + at, 1);
    for (size_t i = 0; i < p_.states.size(); ++i) {
      const PanelPlan::State& s = p_.states[i];
      std::byte* const to = state(i, first, b, w);
      if (state_at_[i] >= 0) {
        const int64_t step = stride(s.access, p_.sample_axis) * 4;
        if (live < width_) std::memset(to, 0, size_t(s.rows * vector));
        bring(to, 4, vector, address(b, w, s.access) + first * step, step, s.stride * 4, s.rows, live);
      }
      if (spread_at_[i] >= 0) wide_.spread(reinterpret_cast<const float*>(to), reinterpret_cast<float*>(w.scratch + spread_at_[i]), s.rows);
    }
    PanelSlot* const slots = make_slots(first, b, w);
    float* const sums = reinterpret_cast<float*>(w.scratch + sums_at_);
    std::memset(sums, 0, size_t(p_.totals * p_.targets * kPanelSums * wide));
    PanelStep* const steps = reinterpret_cast<PanelStep*>(w.scratch + steps_at_);
    wide_.handlers.make_ready(p_.main, slots, kPanelUnits, steps);
    PanelPlace place{.sums = sums, .into = into(b, w)};
    for (const int64_t vectors = counts(b, w)[p_.targets]; place.lane < vectors; place.lane += kPanelUnits) wide_.handlers.run(steps, place);
    wide_.fold(sums, reinterpret_cast<float*>(w.scratch + totals_at_), p_.targets, p_.totals);
    // The last part overlaps the one before: nothing that it reads has been written yet.
    int64_t part = kPanelUnits;
    while (part > p_.targets) part /= 2;
    h_.panel_after.make_ready(p_.after, slots + p_.leaves.size(), part, steps);
    for (int64_t n = 0; n < p_.targets; n += part) h_.panel_after.run(steps, {.target = std::min(n, p_.targets - part)});
    for (size_t i = 0; i < p_.outputs.size(); ++i) {
      if (output(i, b, w) != w.scratch + output_at_[i]) continue;
      const int64_t step = stride(p_.outputs[i], p_.sample_axis) * 4, row = stride(p_.outputs[i], p_.target_axis) * 4;
      bring(address(b, w, p_.outputs[i]) + first * step, step, row, w.scratch + output_at_[i], 4, vector, p_.targets, live);
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

  // The slots of both programs, in scratch.
  PanelSlot* make_slots(int64_t first, const Bound& b, const Worker& w) const {
    PanelSlot* const main = reinterpret_cast<PanelSlot*>(w.scratch + slots_at_);
    PanelSlot* const after = main + p_.leaves.size();
    std::copy(main_slots_.begin(), main_slots_.end(), main), std::copy(after_slots_.begin(), after_slots_.end(), after);
    const int64_t vector = width_ * 4;
    for (size_t i = 0; i < p_.leaves.size(); ++i) {
      const PanelLeaf& leaf = p_.leaves[i];
      switch (leaf.source) {
        case Source::weight:
          if (is_listed(i)) main[i].p = packed(i, b, w);
          if (leaf.index_access < 0) after[i].p = address(b, w, leaf.access);
          break;
        case Source::state:
          after[i].p = state(size_t(leaf.number), first, b, w);
          main[i].p = spread_at_[size_t(leaf.number)] >= 0 ? w.scratch + spread_at_[size_t(leaf.number)] : after[i].p;
          if (is_listed(i)) main[i].offsets = reinterpret_cast<const int32_t*>(packed(i, b, w));
          break;
        case Source::literal: main[i].p = after[i].p = literal(leaf); break;
        case Source::temp: main[i].p = after[i].p = w.scratch + temps_at_ + leaf.number * kPanelUnits * vector * wide_.lanes; break;
        case Source::total: after[i].p = w.scratch + totals_at_ + leaf.number * vector; break;
        case Source::output: after[i].p = output(size_t(leaf.number), b, w); break;
      }
    }
    return main;
  }

  PanelLanes wide_;
  int64_t width_;
  std::vector<PanelSlot> main_slots_, after_slots_;
  std::vector<int64_t> state_at_, spread_at_, output_at_;  // in scratch; -1: in place, not needed
  int64_t slots_at_ = 0, sums_at_ = 0, totals_at_ = 0, temps_at_ = 0, steps_at_ = 0;
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
        case Source::literal: break;
        case Source::temp: main.u = after.u = vector; break;
        case Source::total: after.l = p_.totals * 4; break;
        case Source::output: break;
      }
      if (leaf.source == Source::weight || leaf.source == Source::output)
        after.n = stride(leaf.access, p_.target_axis) * 4, after.l = stride(leaf.access, p_.lane_axis) * 4;
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
        case Source::weight: slots[i].p = main && is_listed(i) ? packed(i, b, w) : address(b, w, leaf.access); break;
        case Source::state:
          slots[i].p = w.scratch + state_at_[size_t(leaf.number)];
          if (main && is_listed(i)) slots[i].offsets = reinterpret_cast<const int32_t*>(packed(i, b, w));
          break;
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
