#include "compile/scan_saved.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "base/text.h"
#include "compile/min_cut.h"
#include "graph/ops/table.h"
#include "graph/rewrite.h"
#include "graph/scan.h"

namespace ridge {
namespace {

// What changes in a loop.
struct LoopChange {
  struct Read {
    NodeId node, loop;  // a node of the body, and the loop that puts out its value
    size_t output;
  };
  std::vector<NodeId> put_out;  // nodes of the body: all outputs of a step
  std::vector<Read> reads;
  bool is_read = false;
  int64_t bytes = 0;
};
using LoopChanges = std::unordered_map<NodeId, LoopChange>;

// The loop whose carries at the start of each step are a sequence of this one; kNone: there is none.
NodeId differentiated(const Graph& g, const ScanView& v) {
  for (NodeId x : v.sequences) {
    if (g[x].op != Op::get || g[g[x].in[0]].op != Op::scan) continue;
    const ScanView f = scan_view(g[g[x].in[0]]);
    if (f.steps == v.steps && !f.body.segment && g[x].attrs.ints[0] >= int64_t(f.carry.size() + f.body.step_out.size())) return g[x].in[0];
  }
  return kNone;
}

// Computing it again takes a kernel of its own, or reads much more than it gives.
bool is_heavy(const Graph& g, NodeId id) {
  const Fusion fusion = row(g[id].op).fusion;
  return fusion == Fusion::product || fusion == Fusion::alone || (is_reduction(g[id].op) && g.shape(id).numel() * 8 <= g.shape(g[id].in[0]).numel());
}

void choose_saved_of(const Graph& g, NodeId gradient, NodeId loop, LoopChanges& changes) {
  const ScanView back = scan_view(g[gradient]), f = scan_view(g[loop]);
  const Graph& b = back.body.graph;
  Graph body = f.body.graph;
  const NodeId end = body.size();
  std::vector<char> computed(end, 0), carried(end, 0);
  for (NodeId id : f.body.carry_in) carried[id] = 1;
  for (NodeId id : topological(body, results_of(f.body))) {
    computed[id] = 1;
    for (NodeId in : body[id].in) carried[id] |= carried[in];
  }
  // The node of the loop's body with the same value, by node of the gradient's body: equal nodes are one node.
  std::vector<NodeId> twin(b.size(), kNone);
  auto same = [](std::span<const NodeId> operands, NodeId x, const std::vector<NodeId>& inner) {
    const auto at = std::find(operands.begin(), operands.end(), x);
    return at == operands.end() ? kNone : inner[size_t(at - operands.begin())];
  };
  for (size_t i = 0; i < back.sequences.size(); ++i) {
    const Node& n = g[back.sequences[i]];
    const int64_t entered = n.op == Op::get && n.in[0] == loop ? n.attrs.ints[0] - int64_t(f.carry.size() + f.body.step_out.size()) : -1;
    twin[back.body.sequence_in[i]] = entered >= 0 ? f.body.carry_in[size_t(entered)] : same(f.sequences, back.sequences[i], f.body.sequence_in);
  }
  for (size_t i = 0; i < back.constants.size(); ++i) twin[back.body.constant_in[i]] = same(f.constants, back.constants[i], f.body.constant_in);

  LoopChange& kept = changes[loop];
  if (kept.put_out.empty()) kept.put_out = f.body.step_out;
  const int source = int(2 * b.size()), sink = source + 1;
  FlowNetwork net(size_t(sink) + 1);
  auto capacity = [&](NodeId id) -> int64_t {
    if (b[id].types.size() > 1 || (is_strided_view(b[id].op) && b[id].op != Op::slice) || b.shape(id).rank() >= kMaxRank) return FlowNetwork::kInfinite;
    return std::find(kept.put_out.begin(), kept.put_out.end(), twin[id]) != kept.put_out.end() ? 0 : std::max<int64_t>(b.type(id).bytes(), 1);
  };
  std::vector<NodeId> candidates;
  for (NodeId id : topological(b, results_of(back.body))) {
    const Node& n = b[id];
    if (n.op == Op::input) continue;
    std::vector<NodeId> in;
    for (NodeId i : n.in) in.push_back(twin[i]);
    if (std::find(in.begin(), in.end(), kNone) == in.end())
      if (const NodeId equal = body.add(n.op, in, n.attrs, n.copy); equal < end && computed[equal]) twin[id] = equal;
    for (NodeId i : n.in)
      if (twin[i] && b[i].op != Op::input) net.edge(int(2 * i + 1), twin[id] ? int(2 * id) : sink, FlowNetwork::kInfinite);
    if (!twin[id]) continue;
    candidates.push_back(id);
    net.edge(int(2 * id), int(2 * id + 1), capacity(id));
    if (carried[twin[id]] && is_heavy(b, id)) net.edge(source, int(2 * id), FlowNetwork::kInfinite);
  }
  for (NodeId id : results_of(back.body))
    if (twin[id] && b[id].op != Op::input) net.edge(int(2 * id + 1), sink, FlowNetwork::kInfinite);
  net.solve(source, sink);
  std::erase_if(candidates, [&](NodeId id) { return !net.before_last_cut(int(2 * id)) || net.before_last_cut(int(2 * id + 1)); });
  if (std::any_of(candidates.begin(), candidates.end(), [&](NodeId id) { return capacity(id) == FlowNetwork::kInfinite; })) return;  // no room for time
  for (NodeId id : candidates) {
    size_t output = size_t(std::find(kept.put_out.begin(), kept.put_out.end(), twin[id]) - kept.put_out.begin());
    if (output == kept.put_out.size()) kept.put_out.push_back(twin[id]), kept.bytes += f.steps * b.type(id).bytes();
    kept.is_read = true, changes[gradient].reads.push_back({id, loop, output});
  }
}

}  // namespace

SavedLoops save_in_loops(Graph& graph, std::span<const NodeId> roots, bool save) {
  SavedLoops out{{roots.begin(), roots.end()}, {}};
  LoopChanges changes;
  std::vector<NodeId> loops;
  for (NodeId id : topological(graph, roots))
    if (graph[id].op == Op::scan && !scan_view(graph[id]).body.segment)
      if (const NodeId loop = differentiated(graph, scan_view(graph[id]))) loops.push_back(loop), choose_saved_of(graph, id, loop, changes);
  for (NodeId loop : loops) {
    const ScanView v = scan_view(graph[loop]);
    if (const size_t values = changes[loop].put_out.size() - v.body.step_out.size())
      out.notes.push_back(fmt::format("scan of {}: {} for backward {}, {}", counted(v.steps, "step"), counted(int64_t(values), "value"),
                                      save ? "kept" : "computed again instead of kept", size_text(changes[loop].bytes)));
  }
  std::erase_if(changes, [&](const auto& c) { return c.second.reads.empty() && !c.second.is_read; });
  if (!save || changes.empty()) return out;
  std::unordered_map<NodeId, ScanResult> made;
  out.roots = rewrite(graph, roots, [&](NodeId id, std::span<const NodeId> in) -> std::vector<NodeId> {
    if (!changes.count(id)) return {};
    const LoopChange& change = changes.at(id);
    const ScanView v = scan_view(graph[id]);
    auto body = std::make_shared<ScanBody>();
    std::unordered_map<NodeId, NodeId> known;
    auto input = [&](std::vector<NodeId>& to, NodeId inner) {
      const Graph& from = v.body.graph;
      to.push_back(known[inner] = body->graph.input(from.type(inner), from[inner].op == Op::input ? from.input_name(inner) : "saved"));
    };
    for (NodeId inner : v.body.carry_in) input(body->carry_in, inner);
    for (NodeId inner : v.body.sequence_in) input(body->sequence_in, inner);
    for (NodeId inner : v.body.constant_in) input(body->constant_in, inner);
    if (v.body.index) body->index = known.at(v.body.index);
    const size_t carries = v.carry.size(), sequences = v.sequences.size();
    std::vector<NodeId> xs(in.begin() + long(carries), in.begin() + long(carries + sequences)), results = v.body.carry_out;
    for (const LoopChange::Read& read : change.reads) input(body->sequence_in, read.node), xs.push_back(made.at(read.loop).outputs[read.output]);
    const std::vector<NodeId>& outputs = change.put_out.empty() ? v.body.step_out : change.put_out;
    results.insert(results.end(), outputs.begin(), outputs.end());
    results = import_nodes(body->graph, v.body.graph, results, known);
    body->carry_out.assign(results.begin(), results.begin() + long(carries)), body->step_out.assign(results.begin() + long(carries), results.end());
    ScanResult r = made[id] = scan(graph, body, in.subspan(0, carries), xs, in.subspan(carries + sequences), v.steps, v.reverse, graph[id].copy);
    r.outputs.resize(v.body.step_out.size());
    std::vector<NodeId> all = r.carry;
    all.insert(all.end(), r.outputs.begin(), r.outputs.end()), all.insert(all.end(), r.entered.begin(), r.entered.end());
    return all;
  });
  return out;
}

}  // namespace ridge
