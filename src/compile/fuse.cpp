#include "compile/fuse.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"
#include "compile/conv_views.h"
#include "graph/ops/attention.h"

namespace ridge {

bool has_memory(const Graph& g, NodeId id, const FusePlan& plan) {
  const Op op = g[id].op;
  bool computed_on_the_fly = op == Op::literal || is_view(op);
  return (!computed_on_the_fly || plan.copies.count(id)) && !plan.repeated.count(id);
}

namespace {

bool is_tile_op(Op op) { return row(op).fusion == Fusion::tile; }

class Fuser {
 public:
  Fuser(const Graph& g, std::span<const NodeId> outputs, bool conv_epilogues)
      : g_(g),
        outputs_(outputs.begin(), outputs.end()),
        order_(topological(g, outputs)),
        group_of_(g.size(), -1),
        conv_epilogues_(conv_epilogues),
        consumers_(g.size()) {
    is_output_.insert(outputs.begin(), outputs.end());
  }

  FusePlan run(bool enabled, std::span<const NodeId> inputs, std::span<const std::pair<int, int>> state, std::span<const NodeId> forward) {
    find_early(forward);
    for (auto [in, out] : state) state_.push_back({inputs[size_t(in)], outputs_[size_t(out)]});
    find_copies();
    make_all_lower();
    if (enabled) find_repeated();
    make_groups();
    if (enabled) {
      merge_producers();
      merge_siblings();
    }
    collect();
    plan_.problem = dependences();
    plan_.merged = enabled;
    return std::move(plan_);
  }

 private:
  struct Cluster {
    Group::Kind kind = Group::Kind::tile;
    NodeId node = kNone;
    std::vector<NodeId> members;        // sorted
    std::vector<NodeId> stores;         // members that are program outputs or read by other clusters
    std::vector<int> producers, users;  // as numbered when this cluster was made; root() gives their current cluster
    bool dead = false;
    // Summary of all members, so that a merge need not examine each of them again.
    bool reduces = false, separate = false;
    bool numbers = true;              // only arithmetic on single numbers
    std::array<bool, 3> phases = {};  // indexed by early_
    int level = 0;                    // less than that of every user
    int64_t size = 1;                 // elements of the largest value that is produced or reduced
    int64_t summed = 0, left = 0;     // elements before and after its reductions
  };

  StorageFn storage() const {
    return [this](NodeId id) { return has_memory(g_, id, plan_) ? Storage{id, 0, contiguous_strides(g_.shape(id))} : Storage{}; };
  }

  template <class Fn>
  void each_source(NodeId id, const Fn& fn) const {
    ridge::each_source(g_, plan_, id, fn);
  }

  // Early nodes are forward nodes that a heavier forward kernel follows. Backward work must not be moved up to them, or its values would
  // stay live for the time that the saved set was chosen to avoid.
  void find_early(std::span<const NodeId> forward) {
    early_.assign(g_.size(), 0);
    has_forward_ = !forward.empty();
    std::vector<NodeId> ahead = topological(g_, forward);
    NodeId last = 0;
    for (NodeId id : ahead)
      if (const Fusion f = row(g_[id].op).fusion; f == Fusion::product || f == Fusion::alone) last = id;
    for (NodeId id : ahead) early_[id] = id < last ? 2 : 1;
  }
  // 2: early forward, 1: the end of forward, 0: backward. A cluster with any node at the end of forward runs there, regardless of its other
  // nodes.
  bool mixes_phases(const Cluster& a, const Cluster& b) const {
    bool early = false, late = false;
    for (const Cluster* c : {&a, &b}) early |= c->phases[2] && !c->phases[1], late |= c->phases[0];
    return early && late && has_forward_;
  }

  void need_memory(NodeId id) {
    if (!has_memory(g_, id, plan_)) plan_.copies.insert(id);
  }

  // A strided view is sufficient; pads and concats below it must be stored.
  void need_view(NodeId id, bool one_loop_per_axis, bool contiguous) {
    NodeId at = id;
    while (is_strided_view(g_[at].op) && !plan_.copies.count(at)) at = g_[at].in[0];
    if (g_[at].op == Op::literal) {
      plan_.copies.insert(id);
      return;
    }
    if (!has_memory(g_, at, plan_)) plan_.copies.insert(at);
    std::optional<View> v = resolve_view(g_, id, storage());
    bool good = v.has_value();
    if (good && one_loop_per_axis)
      for (auto& loops : v->axes) good &= loops.size() <= 1;
    if (good && contiguous) {
      int64_t stride = 1;
      for (size_t a = v->axes.size(); good && a-- > 0;)
        for (auto it = v->axes[a].rbegin(); it != v->axes[a].rend(); ++it) {
          good &= it->size == 1 || it->stride == stride;
          stride *= it->size;
        }
    }
    if (!good) plan_.copies.insert(id);
  }

  // The loops of both operands of a contraction must be split so that they nest; otherwise the second operand is stored contiguously.
  void need_common_loops(const Node& n) {
    std::optional<View> a = resolve_view(g_, n.in[0], storage()), b = resolve_view(g_, n.in[1], storage());
    size_t rank = a->axes.size();
    bool good = common_loops(a->axes[rank - 1], b->axes[rank - 2]).has_value();
    for (size_t i = 0; i + 2 < rank; ++i) good &= common_loops(a->axes[i], b->axes[i]).has_value();
    if (!good) plan_.copies.insert(n.in[1]);
  }

  void find_copies() {
    for (NodeId id : outputs_) {
      if (g_[id].op == Op::literal || g_[id].op == Op::input) fail(ErrorCode::internal, "[fuse] output {} is a bare {}", id, name(g_[id].op));
      need_memory(id);
    }
    for (NodeId id : order_) {
      const Node& n = g_[id];
      if (n.copy == kSeparateKernel) need_memory(n.in[0]), need_memory(id);
      if (row(n.op).has(OpRow::picks)) need_memory(n.in[0]);
      if (row(n.op).fusion == Fusion::product) {
        for (NodeId in : n.in) need_view(in, false, false);
        need_common_loops(n);
      } else if (n.op == Op::conv) {
        for (size_t i = 0; i < 2; ++i) {
          need_view(n.in[i], false, false);
          if (!conv_steps(*resolve_view(g_, n.in[i], storage()), g_.shape(n.in[i]), i == 0 ? 1 : 0, n.attrs.ints[0])) plan_.copies.insert(n.in[i]);
        }
      } else if (n.op == Op::attention || n.op == Op::attention_grad) {
        AttentionOperands o = attention_operands(n);
        for (NodeId in : n.in) {
          bool strided = in == o.q || in == o.k || in == o.v || in == o.mask || in == o.dout || in == o.out;
          need_view(in, strided, !strided);
        }
      } else if (row(n.op).fusion == Fusion::alone) {
        for (NodeId in : n.in) need_view(in, false, true);
      } else if (interior_pad(id)) {  // padding between elements is stored by a separate kernel
        need_view(n.in[0], false, true);
        plan_.copies.insert(id);
      }
    }
  }

  // Broadcasts of reshaped buffers can always be lowered; anything else must be tried.
  bool moves_much(NodeId id) const {
    bool reshaped = false;
    for (; is_view(g_[id].op) && !plan_.copies.count(id); id = g_[id].in[0]) {
      if (g_[id].op == Op::reshape)
        reshaped = true;
      else if (g_[id].op != Op::expand || reshaped)
        return true;
    }
    return false;
  }

  // Every node that is stored or computed must be lowerable to one loop nest on its own; if it is not, the operands that it rearranges are
  // stored first.
  void make_all_lower() {
    for (bool changed = true; changed;) {
      changed = false;
      for (NodeId id : order_) {
        bool copy = is_view(g_[id].op) && plan_.copies.count(id) && !interior_pad(id);
        if (!copy && !(is_tile_op(g_[id].op) && std::any_of(g_[id].in.begin(), g_[id].in.end(), [&](NodeId in) { return moves_much(in); }))) continue;
        if (lower_group(g_, {{id}, {id}, kNone, nullptr}, storage()).refusal.empty()) continue;
        for (NodeId in : g_[id].in)
          if (!has_memory(g_, in, plan_) && g_[in].op != Op::literal) plan_.copies.insert(in), changed = true;
      }
    }
  }

  bool interior_pad(NodeId id) const {
    if (g_[id].op != Op::pad) return false;
    int rank = g_[id].type().shape.rank();
    return std::any_of(g_[id].attrs.ints.begin() + 2 * rank, g_[id].attrs.ints.end(), [](int64_t i) { return i != 0; });
  }

  // Arithmetic that costs no more than reading its result: at most one operand of full size, the others are rows, columns or numbers. It is
  // never stored if only fused kernels read it.
  void find_repeated() {
    std::unordered_map<NodeId, int> users;  // -1: some reader needs it in memory
    std::unordered_map<NodeId, int> depth;
    auto see = [&](auto& self, NodeId id, bool memory) -> void {
      int& n = users[id];
      if (memory)
        n = -1;
      else if (n >= 0)
        ++n;
      if (is_view(g_[id].op) && !plan_.copies.count(id))
        for (NodeId in : g_[id].in) self(self, in, memory);
    };
    for (NodeId id : outputs_) see(see, id, true);
    for (NodeId id : order_) {
      bool memory = !(is_elementwise(g_[id].op) || is_reduction(g_[id].op) || (is_view(g_[id].op) && !plan_.copies.count(id)));
      if (is_view(g_[id].op) && !memory) continue;  // its readers look through it
      for (NodeId in : g_[id].in) see(see, in, memory);
    }
    for (NodeId id : order_) {
      Op op = g_[id].op;
      const bool widens = op == Op::cast && size_of(g_.dtype(id)) > size_of(g_.dtype(g_[id].in[0]));  // the narrower operand is read instead
      if (row(op).effort != Effort::cheap || users[id] < (widens ? 1 : 2) || g_.shape(id).numel() <= 1) continue;
      int full = 0, deep = 0;
      for (NodeId in : g_[id].in) {
        NodeId source = in;
        while ((g_[source].op == Op::expand || g_[source].op == Op::reshape) && !plan_.copies.count(source)) source = g_[source].in[0];
        bool small = g_[source].op == Op::literal || g_.shape(source).numel() == 1 || g_.shape(source).numel() * 8 <= g_.shape(id).numel();
        full += !small;
        if (!small && op == Op::cast && is_float(g_.dtype(id)) && size_of(g_.dtype(source)) > size_of(g_.dtype(id))) full += 1;  // less to read
        if (!small && plan_.repeated.count(source)) deep = std::max(deep, depth[source]);
        if (!small && plan_.repeated.count(source) == 0 && !has_memory(g_, source, plan_) && g_[source].op != Op::literal) full += 1;  // a computed view
      }
      if (full > 1 || deep >= 3) continue;
      depth[id] = deep + 1;
      plan_.repeated.insert(id);
    }
    // A node that its readers cannot address through their views is stored after all.
    for (bool changed = true; changed;) {
      changed = false;
      for (NodeId id : order_) {
        std::vector<NodeId> below;
        for (NodeId in : g_[id].in) repeated_below(in, false, below);
        if (below.empty() || !is_tile_op(g_[id].op)) continue;
        if (lower_group(g_, {{id}, {id}, kNone, &plan_.repeated}, storage()).refusal.empty()) continue;
        for (NodeId r : below) changed |= plan_.repeated.erase(r) > 0;
      }
    }
  }

  // Repeated nodes that are read through views other than plain broadcasts.
  void repeated_below(NodeId id, bool moved, std::vector<NodeId>& found) const {
    bool movement = is_view(g_[id].op) && !plan_.copies.count(id), repeated = plan_.repeated.count(id) != 0;
    if (!movement && !repeated) return;
    if (repeated && moved) found.push_back(id);
    for (NodeId in : g_[id].in) repeated_below(in, moved || (movement && g_[id].op != Op::expand), found);
  }

  // Levels are as late as the path to the end allows. Recomputed values are then close to their readers, and a search between two clusters
  // stays close to them.
  void find_levels() {
    level_.assign(g_.size(), 0);
    for (auto it = order_.rbegin(); it != order_.rend(); ++it)
      for (NodeId in : g_[*it].in) level_[in] = std::min(level_[in], level_[*it] - 1);
  }

  void make_groups() {
    find_levels();
    for (NodeId id : order_) {
      Op op = g_[id].op;
      bool copy = plan_.copies.count(id) != 0;
      if (op == Op::input || op == Op::get || (op == Op::literal && !copy) || (is_view(op) && !copy) || plan_.repeated.count(id)) {
        if (op == Op::get) group_of_[id] = group_of_[g_[id].in[0]];
        continue;
      }
      Cluster c;
      const bool product = row(op).fusion == Fusion::product || (op == Op::conv && conv_epilogues_);
      c.kind = product ? Group::Kind::matmul : (is_tile_op(op) || copy) && !interior_pad(id) ? Group::Kind::tile : Group::Kind::node;
      if (c.kind == Group::Kind::tile)
        c.members = {id};
      else
        c.node = id;
      int self = int(clusters_.size());
      group_of_[id] = self;
      for (NodeId in : g_[id].in)
        each_source(in, [&](NodeId source) {
          consumers_[source].push_back(id);
          if (group_of_[source] >= 0 && group_of_[source] != self) c.producers.push_back(group_of_[source]);
        });
      std::sort(c.producers.begin(), c.producers.end());
      c.producers.erase(std::unique(c.producers.begin(), c.producers.end()), c.producers.end());
      describe(c, id);
      clusters_.push_back(std::move(c));
      root_.push_back(self);
      for (int p : clusters_.back().producers) clusters_[p].users.push_back(self);
    }
    for (size_t i = 0; i < clusters_.size(); ++i) clusters_[i].stores = stores(clusters_[i].members, std::array{int(i)});
    seen_.assign(clusters_.size(), 0);
  }

  void describe(Cluster& c, NodeId id) const {
    const Node& n = g_[id];
    c.phases[size_t(early_[id])] = true;
    c.level = level_[id];
    c.size = std::max(int64_t(c.kind == Group::Kind::tile), g_.shape(id).numel());
    c.numbers = is_elementwise(n.op) && g_.shape(id).numel() == 1 && std::all_of(n.in.begin(), n.in.end(), [&](NodeId in) { return is_number(in); });
    if (c.kind != Group::Kind::tile) return;
    c.separate = n.copy == kSeparateKernel, c.reduces = is_reduction(n.op);
    if (c.reduces) c.summed = g_.shape(n.in[0]).numel(), c.left = g_.shape(id).numel(), c.size = std::max(c.size, c.summed);
  }

  // A literal, or a single number in memory, possibly reshaped.
  bool is_number(NodeId id) const {
    while (is_view(g_[id].op) && !plan_.copies.count(id)) {
      if (g_[id].op != Op::reshape && g_[id].op != Op::expand) return false;
      id = g_[id].in[0];
    }
    return g_[id].op == Op::literal || (has_memory(g_, id, plan_) && g_.shape(id).numel() == 1);
  }

  // The cluster that a cluster has been merged into.
  int root(int c) {
    while (root_[size_t(c)] != c) c = root_[size_t(c)] = root_[size_t(root_[size_t(c)])];
    return c;
  }
  int group_of(NodeId id) { return group_of_[id] < 0 ? -1 : root(group_of_[id]); }

  bool needed_outside(NodeId id, std::span<const int> inside) {
    if (is_output_.count(id)) return true;
    return std::any_of(consumers_[id].begin(), consumers_[id].end(),
                       [&](NodeId user) { return std::find(inside.begin(), inside.end(), group_of(user)) == inside.end(); });
  }

  // Whether another kernel of the same phase reads it: then storing the sums once is better than storing what each kernel computes from
  // them.
  bool read_again_soon(NodeId id, std::span<const int> inside) {
    return std::any_of(consumers_[id].begin(), consumers_[id].end(), [&](NodeId user) {
      bool other_phase = has_forward_ && early_[id] == 2 && early_[user] == 0;
      return !other_phase && std::find(inside.begin(), inside.end(), group_of(user)) == inside.end();
    });
  }

  std::vector<NodeId> stores(const std::vector<NodeId>& members, std::span<const int> inside) {
    std::vector<NodeId> out;
    for (NodeId id : members)
      if (needed_outside(id, inside)) out.push_back(id);
    return out;
  }

  // Whether there is a path from a to b through another cluster. The search runs from both ends, because a cluster with many users has many
  // paths forward but few back.
  bool detour(int a, int b) {
    const int lowest = clusters_[a].level, highest = clusters_[b].level;
    const int ahead = ++search_, behind = ++search_;
    struct Step {
      int cluster;
      size_t next = 0;
    };
    std::vector<Step> forward = {{a}}, backward = {{b}};
    while (true)
      for (bool on : {true, false}) {
        std::vector<Step>& way = on ? forward : backward;
        Step& at = way.back();
        const std::vector<int>& list = on ? clusters_[at.cluster].users : clusters_[at.cluster].producers;
        if (at.next == list.size()) {
          way.pop_back();
          if (way.empty()) return false;
          continue;
        }
        ++plan_.planning_work;
        const int from = on ? a : b, to = on ? b : a, c = root(list[at.next++]);
        if (c == from || (c == to && at.cluster == from)) continue;
        if (c == to || seen_[c] == (on ? behind : ahead)) return true;
        if (seen_[c] == (on ? ahead : behind) || (on ? clusters_[c].level >= highest : clusters_[c].level <= lowest)) continue;
        seen_[c] = on ? ahead : behind;
        way.push_back({c});
      }
  }
  bool feeds(int c, NodeId node) {
    bool found = false;
    for (NodeId in : g_[node].in) each_source(in, [&](NodeId source) { found |= group_of(source) == c; });
    return found;
  }

  std::string label(int c) const {
    const Cluster& k = clusters_[c];
    NodeId id = k.members.empty() ? k.node : k.members.back();
    return fmt::format("{} %{}{}", name(g_[id].op), id, to_string(g_.shape(id)));
  }

  void refuse(int a, int b, std::string why) { plan_.refusals.push_back(fmt::format("{} into {}: {}", label(a), label(b), why)); }

  bool try_merge(int a, int b) {
    Cluster &p = clusters_[a], &c = clusters_[b];
    if (p.kind == Group::Kind::node || c.kind == Group::Kind::node) return false;
    if (p.kind == Group::Kind::matmul && c.kind == Group::Kind::matmul) return false;
    if (p.separate || c.separate) return false;
    bool matmul = p.kind == Group::Kind::matmul || c.kind == Group::Kind::matmul;
    if (c.kind == Group::Kind::matmul && feeds(a, c.node)) return false;  // an operand must be complete before the first sum
    if (matmul && (p.reduces || c.reduces)) {
      if (p.kind == Group::Kind::matmul) refuse(a, b, "a matmul's epilogue cannot reduce");
      return false;
    }
    // A small producer is computed once and read many times, unless it is trivial.
    if (!p.reduces && p.kind == Group::Kind::tile && p.size < c.size && p.members.size() > 3) {
      refuse(a, b, "the producer is smaller than the loops it would be repeated in");
      return false;
    }
    if (mixes_phases(p, c)) {
      refuse(a, b, "it belongs to backward and would be kept from forward on");
      return false;
    }
    if (detour(a, b)) {
      refuse(a, b, "another kernel runs between them");
      return false;
    }
    GroupSpec spec;
    spec.matmul = matmul ? (p.node ? p.node : c.node) : kNone;
    spec.repeated = &plan_.repeated;
    int inside[] = {a, b};
    spec.stores = stores(united(p.stores, c.stores), inside);
    if (spec.stores.empty()) return false;
    const bool number = stores_numbers(p) && stores_numbers(c);
    // Sums of tensors of many sizes that end in one number form a long chain. Whether its next link can be merged is known without lowering
    // all of it.
    if (number && p.reduces && c.reduces && p.summed != c.summed) {
      refuse(a, b, "reductions over different loops");
      return false;
    }
    if (number && !matmul && (p.reduces || p.numbers) && c.numbers && c.members.size() == 1) {
      join(a, b, std::move(spec.stores));
      return true;
    }
    spec.members = united(p.members, c.members);
    std::vector<NodeId> kept = spec.stores;
    if (matmul && p.node && read_again_soon(p.node, inside)) {
      refuse(a, b, "several kernels read the sums");
      return false;
    }
    if (matmul && needed_outside(spec.matmul, inside)) spec.stores.insert(spec.stores.begin(), spec.matmul);  // the epilogue stores the sums too
    const bool one_frame = !p.reduces || !c.reduces || (p.summed == c.summed && p.left == c.left);
    if (std::string why = one_frame ? mismatch(spec, p.reduces ? p : c) : ""; !why.empty()) {
      refuse(a, b, why);
      return false;
    }
    plan_.planning_work += int64_t(spec.members.size());
    LoweredGroup lowered = lower_group(g_, spec, storage());
    if (!lowered.refusal.empty()) {
      refuse(a, b, lowered.refusal);
      return false;
    }
    if (matmul && lowered.group.accumulator < 0) return false;
    join(a, b, std::move(kept));
    return true;
  }

  bool stores_numbers(const Cluster& c) const {
    return std::all_of(c.stores.begin(), c.stores.end(), [&](NodeId id) { return g_.shape(id).numel() == 1; });
  }

  // Detects what lowering would refuse because of sizes alone, before it processes many members.
  std::string mismatch(const GroupSpec& spec, const Cluster& loops) const {
    int64_t full = loops.summed, kept = loops.left;
    if (!loops.reduces) {
      full = spec.matmul ? g_.shape(spec.matmul).numel() : 0;
      for (NodeId id : spec.stores) full = spec.matmul ? full : std::max(full, g_.shape(id).numel());
      kept = full;
    }
    bool single = false, whole = false;
    for (NodeId id : spec.stores) {
      const int64_t n = g_.shape(id).numel();
      if (n != full && n != kept) return fmt::format("{} has {} elements, the loops cover {} ({} after reduction)", to_string(g_.type(id)), n, full, kept);
      (n == 1 ? single : whole) = true;
    }
    // Legal but not beneficial: a number that other kernels wait for should not wait for another pass over memory.
    return loops.reduces && kept == 1 && single && whole ? "other kernels wait for its number" : "";
  }

  static std::vector<NodeId> united(const std::vector<NodeId>& a, const std::vector<NodeId>& b) {
    std::vector<NodeId> out;
    std::merge(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(out));
    return out;
  }

  // Merges a into b.
  void join(int a, int b, std::vector<NodeId> stores) {
    Cluster &p = clusters_[a], &c = clusters_[b];
    if (p.kind == Group::Kind::matmul) c.kind = Group::Kind::matmul, c.node = p.node;
    root_[size_t(a)] = b;
    const int level = std::min(p.level, c.level);
    for (Cluster* k : {&p, &c})
      if (std::exchange(k->level, level) > level) lower_producers(*k);
    // Append the smaller list to the larger, so that a long chain of merges copies little.
    auto take_over = [](auto& to, auto& from) {
      if (to.size() < from.size()) std::swap(to, from);
      to.insert(to.end(), from.begin(), from.end());
      return long(to.size() - from.size());
    };
    const long larger = take_over(c.members, p.members);
    if (!p.members.empty() && p.members[0] < c.members[size_t(larger) - 1]) std::inplace_merge(c.members.begin(), c.members.begin() + larger, c.members.end());
    take_over(c.users, p.users), take_over(c.producers, p.producers);
    c.stores = std::move(stores);
    c.reduces |= p.reduces, c.numbers &= p.numbers;
    for (size_t i = 0; i < c.phases.size(); ++i) c.phases[i] |= p.phases[i];
    c.size = std::max(c.size, p.size), c.summed = std::max(c.summed, p.summed), c.left = std::max(c.left, p.left);
    p.dead = true;
  }

  void lower_producers(const Cluster& lowered) {
    std::vector<const Cluster*> low = {&lowered};
    while (!low.empty()) {
      const Cluster& c = *low.back();
      low.pop_back();
      for (int made : c.producers) {
        ++plan_.planning_work;
        Cluster& p = clusters_[root(made)];
        if (&p == &c || p.level < c.level) continue;
        p.level = c.level - 1;
        low.push_back(&p);
      }
    }
  }

  void merge_producers() {
    for (NodeId id : order_) {
      int b = group_of(id);
      if (b < 0 || clusters_[b].kind == Group::Kind::node || clusters_[b].node == id || g_[id].op == Op::get) continue;
      // Matmuls first: elementwise work is cheapest while the sums are in registers.
      std::vector<NodeId> sources;
      for (NodeId in : g_[id].in) each_source(in, [&](NodeId s) { sources.push_back(s); });
      std::stable_partition(sources.begin(), sources.end(), [&](NodeId s) { return group_of(s) >= 0 && clusters_[group_of(s)].kind == Group::Kind::matmul; });
      for (NodeId s : sources) {
        int a = group_of(s);
        b = group_of(id);
        if (a >= 0 && a != b) try_merge(a, b);
      }
    }
  }

  // Merges arithmetic on single numbers that waits for no kernel, then reductions over the same loops that read the same value into one pass.
  void merge_siblings() {
    for (int last = -1, i = 0; i < int(clusters_.size()); ++i) {
      const Cluster& c = clusters_[i];
      if (c.dead || !c.numbers || std::ranges::any_of(c.producers, [&](int p) { return root(p) != i; })) continue;
      if (last >= 0) try_merge(last, i);
      last = i;
    }
    for (NodeId id : order_) {
      if (!has_memory(g_, id, plan_) || g_.shape(id).numel() == 1) continue;
      std::vector<int> around;
      for (NodeId user : consumers_[id]) {
        int c = group_of(user);
        if (c >= 0 && clusters_[c].kind == Group::Kind::tile && clusters_[c].reduces && std::find(around.begin(), around.end(), c) == around.end())
          around.push_back(c);
      }
      for (size_t i = 0; i < around.size(); ++i)
        for (size_t j = i + 1; j < around.size(); ++j) {
          int a = around[i], b = around[j];
          if (clusters_[a].dead || clusters_[b].dead || clusters_[a].size != clusters_[b].size) continue;
          if (detour(a, b) || detour(b, a)) continue;
          try_merge(a, b);
        }
    }
  }

  void collect() {
    for (size_t i = 0; i < clusters_.size(); ++i) {
      Cluster& c = clusters_[i];
      if (c.dead) continue;
      Group group{c.kind, c.node, {}};
      int self = int(i);
      if (c.kind != Group::Kind::node) {
        bool matmul = c.kind == Group::Kind::matmul;
        group.specs.push_back({c.members, c.stores, matmul ? c.node : kNone, nullptr});
        if (matmul && !c.members.empty() && needed_outside(c.node, {&self, 1})) group.specs[0].stores.insert(group.specs[0].stores.begin(), c.node);
      }
      if (c.kind == Group::Kind::tile && group.specs[0].stores.empty()) continue;  // nobody reads it
      plan_.groups.push_back(std::move(group));
    }
  }

  OrderProblem dependences() {
    size_t n = plan_.groups.size();
    std::vector<size_t> place(clusters_.size(), n);
    for (size_t i = 0; i < n; ++i) {
      const Group& group = plan_.groups[i];
      place[size_t(group_of(group.kind == Group::Kind::tile ? group.specs[0].members[0] : group.node))] = i;
    }
    OrderProblem problem{n, {}, {}};
    auto edge = [&](int from, int to) {
      if (from < 0 || to < 0) return;
      size_t a = place[size_t(from)], b = place[size_t(to)];
      if (a < n && b < n && a != b) problem.edges.push_back({a, b});
    };
    for (size_t c = 0; c < clusters_.size(); ++c)
      if (!clusters_[c].dead)
        for (int p : clusters_[c].producers) edge(root(p), int(c));
    order_updates(problem, edge);
    for (NodeId id : order_) {
      if (group_of(id) < 0 || is_output_.count(id) || consumers_[id].empty() || place[size_t(group_of(id))] == n) continue;
      OrderProblem::Value v{g_.type(id).bytes(), place[size_t(group_of(id))], {}};
      for (NodeId reader : consumers_[id])
        if (size_t r = place[size_t(group_of(reader))]; r < n && r != v.maker) v.readers.push_back(r);
      if (!v.readers.empty()) problem.values.push_back(std::move(v));
    }
    return problem;
  }

  // Kernels that read the old value of a state run before the new one is written, unless they depend on the new one.
  template <class Edge>
  void order_updates(OrderProblem& problem, const Edge& edge) {
    std::vector<std::vector<size_t>> later(problem.kernels);
    for (auto [from, to] : problem.edges) later[from].push_back(to);
    for (size_t i = 0; i < state_.size(); ++i) {
      auto [old_value, new_value] = state_[i];
      const size_t known = problem.edges.size();
      for (NodeId reader : consumers_[old_value]) edge(group_of(reader), group_of(new_value));
      const std::span<const std::pair<size_t, size_t>> fresh = std::span(problem.edges).subspan(known);
      if (fresh.empty()) continue;
      const std::vector<char> after = reached(later, fresh[0].second);
      if (std::any_of(fresh.begin(), fresh.end(), [&](const auto& e) { return after[e.first] != 0; })) {
        problem.edges.resize(known);
        plan_.circular.push_back(i);
        continue;
      }
      for (auto [from, to] : fresh) later[from].push_back(to);
    }
  }

  static std::vector<char> reached(const std::vector<std::vector<size_t>>& later, size_t from) {
    std::vector<char> seen(later.size(), 0);
    std::vector<size_t> stack = {from};
    while (!stack.empty()) {
      size_t k = stack.back();
      stack.pop_back();
      if (std::exchange(seen[k], 1)) continue;
      stack.insert(stack.end(), later[k].begin(), later[k].end());
    }
    return seen;
  }

  const Graph& g_;
  std::vector<NodeId> outputs_, order_;
  std::vector<std::pair<NodeId, NodeId>> state_;
  std::unordered_set<NodeId> is_output_;
  std::vector<int> group_of_, root_;
  std::vector<int> level_;  // of nodes: greater than those of all operands
  std::vector<int> seen_;   // of clusters: the last search that visited it
  int search_ = 0;
  std::vector<char> early_;
  bool has_forward_ = false, conv_epilogues_;
  std::vector<std::vector<NodeId>> consumers_;  // compute nodes that read a node, directly or through movement
  std::vector<Cluster> clusters_;
  FusePlan plan_;
};

}  // namespace

FusePlan fuse(const Graph& g, std::span<const NodeId> outputs, bool enabled, std::span<const NodeId> inputs, std::span<const std::pair<int, int>> state,
              std::span<const NodeId> forward, bool conv_epilogues) {
  return Fuser(g, outputs, conv_epilogues).run(enabled, inputs, state, forward);
}

}  // namespace ridge
