#include "graph/rewrite.h"

#include <algorithm>

#include "graph/ops/table.h"

namespace ridge {

std::vector<NodeId> rewrite(Graph& graph, std::span<const NodeId> roots, const RewriteFn& visit) {
  std::vector<NodeId> to(graph.size(), kNone);
  std::unordered_map<NodeId, std::vector<NodeId>> many;  // nodes with several outputs that were replaced individually
  for (NodeId id : topological(graph, roots)) {
    Op op = graph[id].op;
    if (op == Op::input) {
      to[id] = id;
      continue;
    }
    if (op == Op::get)
      if (auto it = many.find(graph[id].in[0]); it != many.end()) {
        to[id] = it->second[graph[id].attrs.ints[0]];
        continue;
      }
    std::vector<NodeId> in;
    bool same = true;
    for (NodeId i : graph[id].in) in.push_back(to[i]), same &= to[i] == i;
    std::vector<NodeId> outs = visit(id, in);
    if (outs.empty())
      to[id] = same ? id : graph.add(op, in, graph[id].attrs, graph[id].copy);
    else if (graph[id].types.size() > 1)
      many[id] = std::move(outs), to[id] = id;
    else
      to[id] = outs[0];
  }
  std::vector<NodeId> out;
  for (NodeId r : roots) out.push_back(to[r]);
  return out;
}

std::vector<NodeId> all_results(Graph& graph, NodeId node) {
  if (graph[node].types.size() == 1) return {node};
  std::vector<NodeId> out;
  for (size_t i = 0; i < graph[node].types.size(); ++i) out.push_back(graph.add(Op::get, {node}, {{int64_t(i)}, {}, nullptr}));
  return out;
}

std::vector<NodeId> decompose(Graph& graph, std::span<const NodeId> roots, const std::function<bool(NodeId)>& wanted) {
  std::vector<NodeId> out(roots.begin(), roots.end());
  for (bool found = true; found;) {
    found = false;
    out = rewrite(graph, out, [&](NodeId id, std::span<const NodeId> in) -> std::vector<NodeId> {
      if (!row(graph[id].op).decompose || !wanted(id)) return {};
      found = true;
      NodeId moved = graph.add(graph[id].op, in, graph[id].attrs, graph[id].copy);
      return row(graph[id].op).decompose(graph, moved);
    });
  }
  return out;
}

}  // namespace ridge
