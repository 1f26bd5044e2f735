#include "graph/draws.h"

#include <algorithm>

#include "base/error.h"
#include "graph/builder.h"
#include "graph/rewrite.h"

namespace ridge {

std::optional<Draw> draw_of(const Graph& g, NodeId id) {
  const Node& n = g[id];
  if (n.op == Op::random_uniform || n.op == Op::random_bits) return Draw{uint32_t(n.attrs.ints[0]), n.type().shape, 2};
  if ((n.op != Op::attention && n.op != Op::attention_grad) || !n.attrs.ints[3]) return {};
  const Shape &q = g.shape(n.in[0]), &k = g.shape(n.in[1]);
  return Draw{uint32_t(n.attrs.ints[4]), {q[0], q[1], q[2], k[2]}, n.in.size() - (n.op == Op::attention_grad ? 4 : 1)};
}

Shape draw_strides(const Node& random) {
  Shape whole = random.type().shape;
  if (!random.attrs.reals.empty()) whole[int(random.attrs.reals[0])] = int64_t(random.attrs.reals[1]);
  return contiguous_strides(whole);
}

void for_each_draw_in(const Graph& g, NodeId id, const std::function<void(const Graph&, NodeId, const Draw&)>& visit) {
  if (const std::optional<Draw> draw = draw_of(g, id)) visit(g, id, *draw);
  if (g[id].op != Op::scan) return;
  const ScanBody& body = scan_view(g[id]).body;
  for (NodeId inner : topological(body.graph, results_of(body))) for_each_draw_in(body.graph, inner, visit);
}

namespace {

// The operand of a loop that supplies its time index.
size_t index_operand(const ScanBody& b) {
  return b.carry_in.size() + size_t(std::find(b.sequence_in.begin(), b.sequence_in.end(), b.index) - b.sequence_in.begin());
}

// The number of steps in the deepest nest of loops with draws, starting with this one.
int64_t counted_steps(const ScanBody& body, int64_t steps) {
  int64_t most = 1;
  for (NodeId id : topological(body.graph, results_of(body)))
    if (const Node& n = body.graph[id]; n.op == Op::scan && scan_view(n).body.index)
      most = std::max(most, counted_steps(scan_view(n).body, scan_view(n).steps));
  if (steps > 0 && most > kMaxCountedSteps / steps)
    fail(ErrorCode::unsupported,
         "[scan] {} steps, each of up to {} in loops inside, are more than the {} that random draws can count; draw outside of the loop", steps, most,
         kMaxCountedSteps);
  return std::max<int64_t>(most * steps, 1);
}

}  // namespace

std::shared_ptr<const ScanBody> count_by_step(std::shared_ptr<const ScanBody> body, int64_t steps) {
  const std::vector<NodeId> roots = results_of(*body), order = topological(body->graph, roots);
  std::vector<char> varies(body->graph.size(), 0);
  for (auto* list : {&body->carry_in, &body->sequence_in})
    for (NodeId id : *list) varies[id] = 1;
  // The operand to which the time index must be added: the base of a draw, or the time index of an inner loop. nullopt if the node draws
  // nothing, or already varies by step.
  auto uncounted = [&](NodeId id) -> std::optional<size_t> {
    const Node& n = body->graph[id];
    if (n.op == Op::scan) {
      const ScanBody& inner = scan_view(n).body;
      if (inner.index && !varies[n.in[index_operand(inner)]]) return index_operand(inner);
    }
    const std::optional<Draw> draw = draw_of(body->graph, id);
    if (!draw || varies[n.in[draw->base - 2]] || varies[n.in[draw->base - 1]] || varies[n.in[draw->base]]) return {};
    if (draw->shape.numel() > kElementsOfStep)
      fail(ErrorCode::unsupported, "[scan] {} draws {} numbers in every step; inside a loop at most {} can be counted: draw fewer at a time", name(n.op),
           draw->shape.numel(), kElementsOfStep);
    return draw->base;
  };
  bool any = false;
  for (NodeId id : order) {
    for (NodeId in : body->graph[id].in) varies[id] |= varies[in];
    any |= uncounted(id).has_value();
    if (body->graph[id].op == Op::random_at && !varies[id])
      fail(ErrorCode::unsupported, "[scan] random_at has the same counter in every step; give it one that the loop carries");
  }
  if (!any) return body;

  auto counted = std::make_shared<ScanBody>(*body);
  Graph& g = counted->graph;
  Builder b(g);
  if (!counted->index) counted->sequence_in.push_back(counted->index = g.input({DType::i64, {}}, "time"));
  const std::vector<NodeId> moved = rewrite(g, roots, [&](NodeId id, std::span<const NodeId> operands) -> std::vector<NodeId> {
    const std::optional<size_t> at = uncounted(id);
    if (!at) return {};
    const Node n = g[id];
    std::vector<NodeId> in(operands.begin(), operands.end());
    in[*at] = b.add(in[*at], b.mul(counted->index, double(n.op == Op::scan ? scan_view(n).steps : kElementsOfStep)));
    return all_results(g, g.add(n.op, in, n.attrs, n.copy));
  });
  counted->carry_out.assign(moved.begin(), moved.begin() + long(body->carry_out.size()));
  counted->step_out.assign(moved.begin() + long(body->carry_out.size()), moved.end());
  counted_steps(*counted, steps);
  return counted;
}

}  // namespace ridge
