#include "compile/scan_hoist.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <unordered_map>

#include "base/error.h"
#include "base/text.h"
#include "compile/min_cut.h"
#include "compile/scan_lift.h"
#include "compile/simplify.h"
#include "graph/builder.h"
#include "graph/rewrite.h"
#include "graph/scan.h"

namespace ridge {
namespace {

constexpr int64_t kUncut = FlowNetwork::kInfinite;

// Index maps: they cost their readers nothing, and storing one would be a copy.
bool is_free_view(Op op) { return is_strided_view(op) && op != Op::slice; }

// The cost of the bytes that cross the loop boundary. A slice is a view that is worth storing if it is much smaller. A value without room
// for a time axis cannot cross.
int64_t crossing_cost(const Graph& g, NodeId id, bool view) {
  if (view || g.shape(id).rank() >= kMaxRank) return kUncut;
  return std::max<int64_t>(g.type(id).bytes(), 1) * (g[id].op == Op::slice ? 20 : 16);
}

struct Wanted {  // the results of a scan that are read
  std::vector<char> carry, out, entered;
  explicit Wanted(const ScanBody& b) : carry(b.carry_in.size()), out(b.step_out.size()), entered(b.carry_in.size()) {}
  void mark(size_t result) {
    if (result < carry.size())
      carry[result] = 1;
    else if (result < carry.size() + out.size())
      out[result - carry.size()] = 1;
    else
      entered[result - carry.size() - out.size()] = 1;
  }
};

// The carries, sequences and constants that the wanted results depend on.
struct Needed {
  std::vector<char> carry, sequence, constant;
  Needed(const ScanBody& b, const Wanted& w) : carry(b.carry_in.size()) {
    for (size_t i = 0; i < carry.size(); ++i) carry[i] = w.carry[i] || w.entered[i];
    std::vector<char> reached;
    for (bool more = true; more;) {
      std::vector<NodeId> roots;
      for (size_t i = 0; i < carry.size(); ++i)
        if (carry[i]) roots.push_back(b.carry_out[i]);
      for (size_t i = 0; i < b.step_out.size(); ++i)
        if (w.out[i]) roots.push_back(b.step_out[i]);
      reached.assign(b.graph.size(), 0);
      for (NodeId id : topological(b.graph, roots)) reached[id] = 1;
      more = false;
      for (size_t i = 0; i < carry.size(); ++i)
        if (!carry[i] && reached[b.carry_in[i]]) carry[i] = 1, more = true;
    }
    for (NodeId id : b.sequence_in) sequence.push_back(reached[id]);
    for (NodeId id : b.constant_in) constant.push_back(reached[id]);
  }
};

// [x, h] · W is x · W' + h · W'': the part that does not depend on a carry can then be hoisted.
std::vector<NodeId> split_concats(Graph& g, std::span<const NodeId> roots, std::span<const NodeId> carries) {
  std::vector<char> carried(g.size(), 0);
  for (NodeId id : carries) carried[id] = 1;
  for (NodeId id : topological(g, roots))
    for (NodeId in : g[id].in) carried[id] |= carried[in];
  Builder b(g);
  return rewrite(g, roots, [&](NodeId id, std::span<const NodeId> in) -> std::vector<NodeId> {
    int rank = g.shape(id).rank();
    if (g[id].op != Op::matmul || g[in[0]].op != Op::concat || g[in[0]].attrs.ints[0] != rank - 1) return {};
    const std::vector<NodeId> before = g[g[id].in[0]].in, parts = g[in[0]].in;
    if (std::all_of(before.begin(), before.end(), [&](NodeId part) { return carried[part]; })) return {};
    NodeId sum = kNone;
    int64_t at = 0;
    for (size_t i = 0; i < parts.size();) {
      std::vector<NodeId> piece = {parts[i]};
      for (bool inside = carried[before[i++]]; inside && i < parts.size() && carried[before[i]];) piece.push_back(parts[i++]);
      NodeId left = piece.size() == 1 ? piece[0] : b.concat(piece, rank - 1);
      int64_t size = g.shape(left).back();
      NodeId product = g.add(Op::matmul, {left, b.slice(in[1], rank - 2, at, at + size)}, {{int64_t(DType::f32)}, {}, nullptr}, g[id].copy);
      sum = sum ? b.add(sum, product) : product;
      at += size;
    }
    return {b.cast(sum, g.dtype(id))};
  });
}

class ScanHoist {
 public:
  // `in`: the scan's operands in the graph being rewritten; kNone for those not needed.
  ScanHoist(Graph& outer, const Node& node, std::span<const NodeId> in, const Wanted& wanted, bool conv_reads_bytes)
      : outer_(outer), b_(outer), node_(node), view_(scan_view(node)) {
    const ScanBody& body = view_.body;
    Needed needed(body, wanted);
    std::unordered_map<NodeId, NodeId> known;
    std::vector<NodeId> roots;
    auto input = [&](NodeId id) { return known[id] = g_.input(body.graph.type(id), body.graph.input_name(id)); };
    size_t at = 0;
    for (size_t i = 0; i < body.carry_in.size(); ++i, ++at)
      if (needed.carry[i]) {
        Carry c;
        c.in = input(body.carry_in[i]), c.initial = in[at], c.result = i, c.entered = wanted.entered[i];
        carries_.push_back(c), roots.push_back(body.carry_out[i]);
      }
    for (size_t i = 0; i < body.sequence_in.size(); ++i, ++at)
      if (needed.sequence[i]) sequences_[input(body.sequence_in[i])] = in[at];
    for (size_t i = 0; i < body.constant_in.size(); ++i, ++at) {
      if (!needed.constant[i]) continue;
      NodeId number = in[at];
      while (outer_[number].op == Op::reshape || outer_[number].op == Op::expand) number = outer_[number].in[0];
      if (outer_[number].op == Op::literal)
        known[body.constant_in[i]] = Builder(g_).full(outer_.shape(in[at]), outer_.dtype(number), outer_[number].attrs.reals[0]);
      else
        constants_[input(body.constant_in[i])] = in[at];
    }
    for (size_t i = 0; i < body.step_out.size(); ++i)
      if (wanted.out[i]) outputs_.push_back({kNone, i}), roots.push_back(body.step_out[i]);
    std::unordered_map<NodeId, bool> changes;
    for (const auto& [id, moved] : known) changes[moved] = g_[moved].op == Op::input && !constants_.count(moved);
    roots = import_nodes(g_, body.graph, roots, known, node.copy & kRecomputed);
    // Convolutions of two changing values (dW) become products, whose sums over time are products too.
    std::function<bool(NodeId)> changing = [&](NodeId id) {
      if (auto it = changes.find(id); it != changes.end()) return it->second;
      const std::vector<NodeId> operands(g_[id].in.begin(), g_[id].in.end());
      return changes[id] = std::any_of(operands.begin(), operands.end(), changing);
    };
    roots = decompose(g_, roots, [&](NodeId id) { return g_[id].op == Op::conv && changing(g_[id].in[0]) && changing(g_[id].in[1]); });
    roots = simplify(g_, canonicalize(g_, roots, true), false, conv_reads_bytes);
    HoistedScans inner = hoist_scans(g_, roots, conv_reads_bytes);
    inner_notes_ = std::move(inner.notes);
    std::vector<NodeId> carry_inputs;
    for (const Carry& c : carries_) carry_inputs.push_back(c.in);
    set_roots(body.segment ? inner.roots : split_concats(g_, inner.roots, carry_inputs));
  }

  // A replacement for each result; kNone for unused results.
  std::vector<NodeId> run(std::vector<std::string>& notes) {
    if (view_.steps == 0) return empty();
    if (!view_.body.segment) {
      classify();
      if (split_slices()) classify();
      while (choose_leaving()) classify();
      choose_entering();
    } else {
      keep_all();
    }
    build_loop();
    std::vector<NodeId> results = collect();
    for (size_t i = 0; i < results.size(); ++i)
      if (results[i] && !(outer_.type(results[i]) == node_.types[i]))
        fail(ErrorCode::internal, "[scan_hoist] result {} became {} from {}", i, to_string(outer_.type(results[i])), to_string(node_.types[i]));
    notes.push_back(note());
    for (const std::string& n : inner_notes_) notes.push_back("  inside: " + n);
    return results;
  }

 private:
  struct Term {
    NodeId id;
    bool minus;
  };
  struct Carry {
    NodeId in = kNone, out = kNone, initial = kNone;
    size_t result = 0;
    bool entered = false;  // its value at every step is needed
    // loop: carried from step to step; same: never changes; sum: only added to, and not read until the end
    enum class Kind { loop, same, sum } kind = Kind::loop;
    bool keep = false;  // a sum that is cheaper inside the loop
    std::vector<Term> terms;
  };
  struct Output {
    NodeId node;
    size_t result;
  };

  void set_roots(const std::vector<NodeId>& roots) {
    for (size_t i = 0; i < carries_.size(); ++i) carries_[i].out = roots[i];
    for (size_t i = 0; i < outputs_.size(); ++i) outputs_[i].node = roots[carries_.size() + i];
  }
  std::vector<NodeId> roots() const {
    std::vector<NodeId> out;
    for (const Carry& c : carries_) out.push_back(c.out);
    for (const Output& o : outputs_) out.push_back(o.node);
    return out;
  }

  std::vector<NodeId> empty() {
    std::vector<NodeId> results(node_.types.size(), kNone);
    for (const Carry& c : carries_) results[c.result] = c.initial;
    for (size_t i = view_.carry.size(); i < results.size(); ++i) results[i] = b_.full(node_.types[i].shape, node_.types[i].dtype, 0);
    return results;
  }

  // acc' = acc + terms, where only the next step reads acc.
  bool find_terms(Carry& c) const {
    std::vector<NodeId> all = roots();
    std::vector<int> uses(g_.size(), 0);
    std::vector<char> from(g_.size(), 0);
    from[c.in] = 1;
    for (NodeId r : all) ++uses[r];
    for (NodeId id : topological(g_, all))
      for (NodeId in : g_[id].in) ++uses[in], from[id] |= from[in];
    c.terms.clear();
    DType type = g_.dtype(c.in);
    if (!is_float(type) && type != DType::i64) return false;  // a sum of these has a different type
    if (c.entered || uses[c.in] != 1) return false;
    for (NodeId at = c.out; at != c.in;) {
      const Node& n = g_[at];
      if (uses[at] != 1 || !from[at] || (n.op != Op::add && n.op != Op::sub)) return false;
      bool left = from[n.in[0]];
      if (!left && n.op == Op::sub) return false;
      c.terms.push_back({n.in[left ? 1 : 0], n.op == Op::sub});
      at = n.in[left ? 0 : 1];
    }
    return true;
  }

  bool is_product(NodeId id) const { return g_[id].op == Op::matmul || g_[id].op == Op::conv; }

  // Decides where each node can be computed. Inside: it depends on a carry, or cannot be lifted. Core: a later step needs it. All others
  // may be computed before or after the loop.
  void classify() {
    for (Carry& c : carries_) {
      c.kind = c.out == c.in ? Carry::Kind::same : !c.keep && find_terms(c) ? Carry::Kind::sum : Carry::Kind::loop;
      if (c.kind != Carry::Kind::sum) c.terms.clear();
    }
    for (auto* flags : {&core_, &varies_, &inside_, &early_, &movable_, &late_, &leaves_, &enters_}) flags->assign(g_.size(), 0);
    std::vector<NodeId> top;
    for (const Carry& c : carries_) {
      if (c.kind == Carry::Kind::loop) top.push_back(c.out), core_[c.out] = 1;
      for (const Term& t : c.terms) top.push_back(t.id);
    }
    for (const Output& o : outputs_) top.push_back(o.node);
    order_ = topological(g_, top);
    for (auto it = order_.rbegin(); it != order_.rend(); ++it)
      if (core_[*it])
        for (NodeId in : g_[*it].in) core_[in] = 1;

    for (const auto& [id, operand] : sequences_) varies_[id] = 1;
    for (const Carry& c : carries_)
      if (c.kind == Carry::Kind::loop) varies_[c.in] = inside_[c.in] = 1;
    for (NodeId id : order_) {
      const Node& n = g_[id];
      if (n.op == Op::input) continue;
      for (NodeId in : n.in) varies_[id] |= varies_[in], inside_[id] |= inside_[in], early_[id] |= early_[in];
      if (varies_[id] && !can_lift(g_, id, varies_)) inside_[id] = 1;
      early_[id] = varies_[id] && !inside_[id] && (is_product(id) || early_[id]);
    }
    for (NodeId id : order_) movable_[id] = inside_[id] && !core_[id] && g_[id].op != Op::input && can_lift(g_, id, varies_);
    for (auto it = order_.rbegin(); it != order_.rend(); ++it)
      if (!movable_[*it])
        for (NodeId in : g_[*it].in) movable_[in] = 0;
    // Terms of sums over time that are themselves sums: they mix the rows of a step, so the loop is better off without them.
    std::vector<NodeId> stack;
    for (const Carry& c : carries_)
      for (const Term& t : c.terms) stack.push_back(t.id);
    while (!stack.empty()) {
      const NodeId id = stack.back();
      stack.pop_back();
      if (!movable_[id] || late_[id]) continue;
      late_[id] = g_[id].op == Op::reduce_sum;
      if (is_elementwise(g_[id].op) || is_view(g_[id].op)) stack.insert(stack.end(), g_[id].in.begin(), g_[id].in.end());
    }
    for (NodeId id : order_) {
      if (!movable_[id]) continue;
      late_[id] |= is_product(id);
      for (NodeId in : g_[id].in) late_[id] |= late_[in];
    }
  }

  // Splits products of which the loop needs only some columns: dh stays, dx moves out, or is not computed at all.
  bool split_slices() {
    std::unordered_map<NodeId, std::pair<int, int>> columns;  // number of users that slice columns: core, others
    std::vector<char> other(g_.size(), 0);
    for (NodeId r : roots()) other[r] = 1;
    for (NodeId id : order_) {
      const Node& n = g_[id];
      for (NodeId in : n.in) {
        if (g_[in].op != Op::matmul || !core_[in] || !inside_[in]) continue;
        size_t rank = size_t(g_.shape(in).rank());
        bool cuts = n.op == Op::slice;
        for (size_t a = 0; cuts && a + 1 < rank; ++a) cuts = n.attrs.ints[a] == 0 && n.attrs.ints[rank + a] == g_.shape(in)[int(a)];
        if (!cuts)
          other[in] = 1;
        else
          ++(core_[id] ? columns[in].first : columns[in].second);
      }
    }
    std::erase_if(columns, [&](const auto& c) { return other[c.first] || !c.second.first || (!c.second.second && c.second.first > 1); });
    if (columns.empty()) return false;
    Builder b(g_);
    std::vector<NodeId> all = roots();
    set_roots(rewrite(g_, all, [&](NodeId id, std::span<const NodeId> in) -> std::vector<NodeId> {
      if (g_[id].op != Op::slice || !columns.count(g_[id].in[0])) return {};
      Node product = g_[in[0]];
      size_t rank = size_t(product.type().shape.rank());
      const std::vector<int64_t> cut = g_[id].attrs.ints;
      NodeId some = b.slice(product.in[1], int(rank) - 1, cut[rank - 1], cut[2 * rank - 1], cut[3 * rank - 1]);
      return {g_.add(Op::matmul, {product.in[0], some}, product.attrs, product.copy)};
    }));
    return true;
  }

  // Arithmetic on values of the loop that are much smaller: cheaper to compute again after the loop than to put out. `spread`: of its operands.
  bool is_spread(NodeId id, const std::vector<char>& spread) const {
    return (is_elementwise(g_[id].op) || g_[id].op == Op::take) && can_lift(g_, id, varies_) && std::all_of(g_[id].in.begin(), g_[id].in.end(), [&](NodeId in) {
             while (is_strided_view(g_[in].op)) in = g_[in].in[0];
             return !inside_[in] || g_.shape(in).numel() * 8 <= g_.shape(id).numel() || spread[in];
           });
  }

  bool stays_output(NodeId id) const { return inside_[id] && !late_[id]; }

  // Chooses the values that the loop outputs for computations after it. Returns true if a sum turned out to be cheaper inside the loop, and
  // everything must be classified again.
  bool choose_leaving() {
    int source = int(2 * g_.size()), sink = source + 1;
    FlowNetwork net(size_t(sink) + 1);
    std::vector<char> stored(g_.size(), 0), spread(g_.size(), 0);
    for (const Output& o : outputs_)
      if (stays_output(o.node)) stored[o.node] = 1;
    for (const Carry& c : carries_)
      if (c.entered) stored[c.in] = 1;
    auto read_outside = [&](NodeId id) {
      if (inside_[id] && !late_[id]) net.edge(int(2 * id + 1), sink, kUncut);
    };
    for (NodeId id : order_) {
      if (late_[id])
        for (NodeId in : g_[id].in) read_outside(in);
      if (!inside_[id] || late_[id]) continue;
      spread[id] = is_spread(id, spread);
      bool view = spread[id] || (is_free_view(g_[id].op) && can_lift(g_, id, varies_));
      net.edge(int(2 * id), int(2 * id + 1), stored[id] ? 0 : crossing_cost(g_, id, view));
      if (!movable_[id] && !view) net.edge(source, int(2 * id), kUncut);
      for (NodeId in : g_[id].in)
        if (inside_[in]) net.edge(int(2 * in + 1), int(2 * id), kUncut);
    }
    auto heavy = [&](const Carry& c) { return std::any_of(c.terms.begin(), c.terms.end(), [&](const Term& t) { return late_[t.id] || early_[t.id]; }); };
    for (const Carry& c : carries_)
      if (heavy(c))
        for (const Term& t : c.terms) read_outside(t.id);
    net.solve(source, sink);
    for (NodeId id : order_) leaves_[id] = inside_[id] && !late_[id] && net.before_last_cut(int(2 * id)) && !net.before_last_cut(int(2 * id + 1));
    for (const Output& o : outputs_)
      if (stays_output(o.node)) leaves_[o.node] = 1;
    // Other sums are moved out if their terms are outside already.
    std::vector<char> outside(g_.size(), 0);
    for (NodeId id : order_) {
      outside[id] = !inside_[id] || leaves_[id] || late_[id];
      if (outside[id] || !movable_[id]) continue;
      outside[id] = std::all_of(g_[id].in.begin(), g_[id].in.end(), [&](NodeId in) { return outside[in]; });
    }
    bool again = false;
    for (Carry& c : carries_) {
      if (c.kind != Carry::Kind::sum || heavy(c)) continue;
      c.keep = !std::all_of(c.terms.begin(), c.terms.end(), [&](const Term& t) { return outside[t.id]; });
      again |= c.keep;
    }
    return again;
  }

  std::vector<NodeId> loop_roots() const {
    std::vector<NodeId> out;
    for (const Carry& c : carries_)
      if (c.kind == Carry::Kind::loop) out.push_back(c.out);
    for (NodeId id : order_)
      if (leaves_[id] && g_[id].op != Op::input) out.push_back(id);
    return out;
  }

  // Chooses which values, derived from the products before the loop, the loop reads: as few bytes as possible, as close to the product as
  // possible, but including the arithmetic that fuses into the product's kernel.
  void choose_entering() {
    int source = int(2 * g_.size()), sink = source + 1;
    FlowNetwork net(size_t(sink) + 1);
    std::vector<int> behind(g_.size(), -1);  // number of elementwise nodes since the product
    for (NodeId id : order_) {
      if (!early_[id]) continue;
      if (is_product(id)) {
        behind[id] = 0;
        net.edge(source, int(2 * id), kUncut);
      } else {
        bool follows = is_elementwise(g_[id].op) || g_[id].op == Op::reshape;
        int most = 0;
        for (NodeId in : g_[id].in) {
          if (!early_[in]) continue;
          net.edge(int(2 * in + 1), int(2 * id), kUncut);
          follows &= behind[in] >= 0, most = std::max(most, behind[in]);
        }
        if (follows) behind[id] = most + (g_[id].op != Op::reshape);
      }
      int64_t cost = crossing_cost(g_, id, is_free_view(g_[id].op));
      net.edge(int(2 * id), int(2 * id + 1), cost == kUncut ? cost : cost - std::clamp(behind[id], 0, 15));
    }
    std::vector<NodeId> stack = loop_roots();
    std::vector<char> seen(g_.size(), 0);
    while (!stack.empty()) {
      NodeId id = stack.back();
      stack.pop_back();
      if (seen[id] || !varies_[id]) continue;
      seen[id] = 1;
      if (early_[id])
        net.edge(int(2 * id + 1), sink, kUncut);
      else
        stack.insert(stack.end(), g_[id].in.begin(), g_[id].in.end());
    }
    net.solve(source, sink);
    for (NodeId id : order_) enters_[id] = early_[id] && net.before_first_cut(int(2 * id)) && !net.before_first_cut(int(2 * id + 1));
  }

  // Leaves the loop unchanged.
  void keep_all() {
    order_ = topological(g_, roots());
    for (auto* flags : {&varies_, &inside_, &early_, &late_, &leaves_, &enters_}) flags->assign(g_.size(), 0);
    for (NodeId id : order_) varies_[id] = inside_[id] = 1;
    for (const Output& o : outputs_) leaves_[o.node] = 1;
  }

  // Whether it costs time in every step, although its value is the same in every step.
  bool has_work(NodeId id) {
    if (varies_[id] || g_[id].op == Op::input || g_[id].op == Op::literal || g_[id].op == Op::iota) return false;
    if (!is_strided_view(g_[id].op)) return true;
    return has_work(g_[id].in[0]);
  }

  // Whether a right operand never changes and is stored transposed: storing it once in the order it is read avoids packing it in every step.
  bool stored_once(const Node& product, NodeId right) const {
    if (product.op != Op::matmul || right != product.in[1] || varies_[right] || view_.steps < 4) return false;
    for (; is_strided_view(g_[right].op); right = g_[right].in[0])
      if (g_[right].op == Op::permute && g_[right].attrs.ints.back() != g_.shape(right).rank() - 1) return true;
    return false;
  }

  NodeId emit(NodeId id, bool once = false) {
    if (auto it = emitted_.find(id); it != emitted_.end()) return it->second;
    auto add_input = [&](std::vector<NodeId>& list, std::vector<NodeId>& operands, NodeId operand, const char* name) {
      NodeId in = body_->graph.input(g_.type(id), name);
      list.push_back(in), operands.push_back(operand);
      return emitted_[id] = in;
    };
    const Node& n = g_[id];
    if (enters_[id]) return add_input(body_->sequence_in, sequence_operands_, over_->stacked(id), "before");
    if (auto it = sequences_.find(id); it != sequences_.end()) return add_input(body_->sequence_in, sequence_operands_, it->second, "x");
    if (auto it = constants_.find(id); it != constants_.end()) return add_input(body_->constant_in, constant_operands_, it->second, "constant");
    bool moved = once || n.op == Op::input || (has_work(id) && !is_strided_view(n.op));
    if (moved && n.types.size() == 1) {
      ++once_;
      return add_input(body_->constant_in, constant_operands_, over_->value(id), "once");
    }
    std::vector<NodeId> in;
    for (NodeId i : n.in) in.push_back(emit(i, stored_once(n, i)));
    return emitted_[id] = body_->graph.add(n.op, in, n.attrs, n.copy);
  }

  void build_loop() {
    over_.emplace(outer_, g_, view_.steps);
    for (auto [id, operand] : sequences_) over_->each(id, operand);
    for (auto [id, operand] : constants_) over_->once(id, operand);
    body_ = std::make_shared<ScanBody>();
    body_->segment = view_.body.segment;
    std::vector<NodeId> initial;
    for (const Carry& c : carries_) {
      if (c.kind == Carry::Kind::same) over_->once(c.in, c.initial);
      if (c.kind != Carry::Kind::loop) continue;
      NodeId in = body_->graph.input(g_.type(c.in), g_.input_name(c.in));
      emitted_[c.in] = in, body_->carry_in.push_back(in), initial.push_back(c.initial);
    }
    for (const Carry& c : carries_)
      if (c.kind == Carry::Kind::loop) body_->carry_out.push_back(emit(c.out));
    std::vector<NodeId> emitted_outputs;
    for (NodeId id : order_)
      if (leaves_[id] && (g_[id].op != Op::input || view_.body.segment)) emitted_outputs.push_back(id), body_->step_out.push_back(emit(id));
    if (body_->carry_in.empty() && emitted_outputs.empty()) return;
    ScanResult r = scan(outer_, body_, initial, sequence_operands_, constant_operands_, view_.steps, view_.reverse, node_.copy);
    for (size_t i = 0; i < emitted_outputs.size(); ++i) over_->each(emitted_outputs[i], r.outputs[i]);
    size_t at = 0;
    for (const Carry& c : carries_)
      if (c.kind == Carry::Kind::loop) {
        final_[c.in] = r.carry[at];
        if (!emitted_output(emitted_outputs, c.in)) over_->each(c.in, r.entered[at]);
        ++at;
      }
    emitted_count_ = emitted_outputs.size();
  }

  static bool emitted_output(const std::vector<NodeId>& list, NodeId id) { return std::find(list.begin(), list.end(), id) != list.end(); }

  std::vector<NodeId> collect() {
    std::vector<NodeId> results(node_.types.size(), kNone);
    size_t outputs = view_.body.step_out.size();
    for (const Carry& c : carries_) {
      NodeId& last = results[c.result];
      if (c.kind == Carry::Kind::loop) last = final_.at(c.in);
      if (c.kind != Carry::Kind::loop) last = c.initial;
      if (c.kind == Carry::Kind::sum)
        for (const Term& t : c.terms) last = b_.binary(t.minus ? Op::sub : Op::add, last, over_->total(t.id));
      if (c.entered) results[view_.carry.size() + outputs + c.result] = over_->stacked(c.in);
    }
    for (const Output& o : outputs_) results[view_.carry.size() + o.result] = over_->stacked(o.node);
    return results;
  }

  std::string note() const {
    int before = 0, after = 0, kept = 0, sums = 0;
    for (NodeId id : order_)
      if (is_product(id)) ++(late_[id] ? after : early_[id] ? before : kept);
    for (const Carry& c : carries_) sums += c.kind == Carry::Kind::sum;
    return fmt::format("scan of {}{}: {} in the loop, {} before it, {} after it; {} over time and {} moved out, {} put out", counted(view_.steps, "step"),
                       view_.body.segment ? " (segments)" : "", counted(kept, "product"), before, after, counted(sums, "sum"), counted(once_, "constant"),
                       counted(emitted_count_, "value"));
  }

  Graph& outer_;
  Builder b_;
  const Node& node_;
  ScanView view_;
  Graph g_;  // the cleaned body
  std::vector<Carry> carries_;
  std::vector<Output> outputs_;
  std::unordered_map<NodeId, NodeId> sequences_, constants_;  // inputs of the body -> their operands
  std::vector<NodeId> order_;
  std::vector<char> core_, varies_, inside_, movable_;
  std::vector<char> early_, late_;     // products before and after the loop, and what depends on them there
  std::vector<char> enters_, leaves_;  // values that cross the loop boundary
  std::optional<OverTime> over_;
  std::shared_ptr<ScanBody> body_;
  std::unordered_map<NodeId, NodeId> emitted_, final_;
  std::vector<NodeId> sequence_operands_, constant_operands_;
  size_t emitted_count_ = 0;
  int once_ = 0;
  std::vector<std::string> inner_notes_;
};

}  // namespace

HoistedScans hoist_scans(Graph& graph, std::span<const NodeId> roots, bool conv_reads_bytes) {
  // Backwards: which results of each scan are needed, and which of its operands they need.
  NodeId end = graph.size();
  std::vector<char> live(end, 0);
  std::unordered_map<NodeId, Wanted> wanted;
  auto want = [&](NodeId scan, size_t result) {
    wanted.try_emplace(scan, scan_view(graph[scan]).body).first->second.mark(result);
    live[scan] = 1;
  };
  for (NodeId r : roots) live[r] = 1;
  for (NodeId id = end; id-- > 1;) {
    if (!live[id]) continue;
    const Node& n = graph[id];
    if (n.op == Op::get && graph[n.in[0]].op == Op::scan) {
      want(n.in[0], size_t(n.attrs.ints[0]));
    } else if (n.op == Op::scan) {
      if (n.types.size() == 1) want(id, 0);
      ScanView v = scan_view(n);
      Needed needed(v.body, wanted.at(id));
      size_t at = 0;
      for (auto* list : {&needed.carry, &needed.sequence, &needed.constant})
        for (char yes : *list) {
          if (yes) live[n.in[at]] = 1;
          ++at;
        }
    } else {
      for (NodeId in : n.in) live[in] = 1;
    }
  }
  HoistedScans out;
  if (wanted.empty()) {
    out.roots.assign(roots.begin(), roots.end());
    return out;
  }
  std::vector<NodeId> to(end, kNone);
  std::unordered_map<NodeId, std::vector<NodeId>> results;
  for (NodeId id = 1; id < end; ++id) {
    if (!live[id]) continue;
    const Node& n = graph[id];
    std::vector<NodeId> in;
    bool same = true;
    for (NodeId i : n.in) in.push_back(to[i]), same &= to[i] == i;
    if (n.op == Op::get && graph[n.in[0]].op == Op::scan) {
      to[id] = results.at(n.in[0])[size_t(n.attrs.ints[0])];
    } else if (n.op == Op::scan) {
      results[id] = ScanHoist(graph, n, in, wanted.at(id), conv_reads_bytes).run(out.notes);
      to[id] = results[id][0];
    } else {
      to[id] = same ? id : graph.add(n.op, in, n.attrs, n.copy);
    }
  }
  for (NodeId r : roots) out.roots.push_back(to[r]);
  return out;
}

}  // namespace ridge
