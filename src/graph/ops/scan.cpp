#include "graph/scan.h"

#include "base/error.h"
#include "graph/builder.h"
#include "graph/draws.h"
#include "graph/ops/rows.h"

namespace ridge {
namespace {

Shape stacked(int64_t steps, Shape s) {
  s.insert(0, steps);
  return s;
}

}  // namespace

std::vector<NodeId> results_of(const ScanBody& body) {
  std::vector<NodeId> all = body.carry_out;
  all.insert(all.end(), body.step_out.begin(), body.step_out.end());
  return all;
}

ScanView scan_view(const Node& n) {
  auto& body = *static_cast<const ScanBody*>(n.attrs.body.get());
  std::span<const NodeId> in = n.in;
  size_t c = body.carry_in.size(), s = body.sequence_in.size();
  return {body, in.subspan(0, c), in.subspan(c, s), in.subspan(c + s), n.attrs.ints[0], n.attrs.ints[1] != 0};
}

ScanResult scan(Graph& graph, std::shared_ptr<const ScanBody> body, std::span<const NodeId> carry, std::span<const NodeId> sequences,
                std::span<const NodeId> constants, int64_t steps, bool reverse, uint16_t copy) {
  Builder b(graph);
  const bool counts = body->index;
  body = count_by_step(std::move(body), steps);
  std::vector<NodeId> in(carry.begin(), carry.end());
  in.insert(in.end(), sequences.begin(), sequences.end());
  if (body->index && !counts) in.push_back(b.iota({steps}, 0));
  in.insert(in.end(), constants.begin(), constants.end());
  NodeId n = graph.add(Op::scan, in, {{steps, reverse}, {}, body}, copy);
  ScanResult r;
  int at = 0;
  auto take = [&](std::vector<NodeId>& list, size_t count) {
    for (size_t i = 0; i < count; ++i, ++at) list.push_back(graph[n].types.size() == 1 ? n : b.get(n, at));
  };
  take(r.carry, body->carry_in.size()), take(r.outputs, body->step_out.size()), take(r.entered, body->carry_in.size());
  return r;
}

namespace ops {

Types infer_scan(const InferContext& c) {
  auto* body = static_cast<const ScanBody*>(c.attrs.body.get());
  if (!body) fail(ErrorCode::internal, "[scan] has no body");
  int64_t steps = c.attrs.ints.at(0);
  const Graph& g = body->graph;
  size_t carries = body->carry_in.size(), sequences = body->sequence_in.size(), constants = body->constant_in.size();
  if (steps < 0) fail(ErrorCode::value, "[scan] {} steps", steps);
  if (c.in.size() != carries + sequences + constants)
    fail(ErrorCode::value, "[scan] got {} operands for {} carries, {} sequences and {} constants", c.in.size(), carries, sequences, constants);
  auto check = [&](const Type& got, const Type& want, const char* what, size_t i) {
    if (!(got == want)) fail(ErrorCode::shape, "[scan] {} {} is {}, the body expects {}", what, i, to_string(got), to_string(want));
  };
  for (size_t i = 0; i < carries; ++i) {
    check(c.in[i], g.type(body->carry_in[i]), "carry", i);
    check(g.type(body->carry_out[i]), g.type(body->carry_in[i]), "next carry", i);
  }
  for (size_t i = 0; i < sequences; ++i)
    check(c.in[carries + i], {g.dtype(body->sequence_in[i]), stacked(steps, g.shape(body->sequence_in[i]))}, "sequence", i);
  for (size_t i = 0; i < constants; ++i) check(c.in[carries + sequences + i], g.type(body->constant_in[i]), "constant", i);
  Types out;
  for (NodeId id : body->carry_in) out.push_back(g.type(id));
  for (NodeId id : body->step_out) out.push_back({g.dtype(id), stacked(steps, g.shape(id))});
  for (NodeId id : body->carry_in) out.push_back({g.dtype(id), stacked(steps, g.shape(id))});
  return out;
}

// A reverse scan that recomputes the body from the carry of each step and propagates gradients through it. Gradients of constants are
// carried sums; non-floating carries have no gradient.
void vjp_scan(GradContext& c) {
  Graph& graph = c.graph();
  Builder b(graph);
  ScanView v = scan_view(graph[c.node()]);
  size_t carries = v.carry.size(), outputs = v.body.step_out.size();
  auto back = std::make_shared<ScanBody>();
  back->segment = v.body.segment;
  Graph& g = back->graph;
  Builder inner(g);
  std::vector<NodeId> carry0, sequences, constants(v.constants.begin(), v.constants.end());

  // Maps the inputs of the body to inputs of the new body.
  std::unordered_map<NodeId, NodeId> known;
  auto as_input = [&](NodeId id, const char* name) { return known[id] = g.input(v.body.graph.type(id), name); };
  std::vector<NodeId> grad_carry_in, wrt;
  std::vector<size_t> float_carry, float_sequence, float_constant;
  for (size_t i = 0; i < carries; ++i)
    if (is_float(graph.dtype(v.carry[i]))) {
      float_carry.push_back(i);
      NodeId d = g.input(v.body.graph.type(v.body.carry_in[i]), "d carry");
      grad_carry_in.push_back(d), back->carry_in.push_back(d);
      NodeId arrived = c.cotangent(int(i));
      carry0.push_back(arrived ? arrived : b.like(v.carry[i], 0));
    }
  for (size_t i = 0; i < v.constants.size(); ++i)
    if (is_float(graph.dtype(v.constants[i])) && c.needs(int(carries + v.sequences.size() + i))) {
      float_constant.push_back(i);
      back->carry_in.push_back(g.input(v.body.graph.type(v.body.constant_in[i]), "d constant"));
      carry0.push_back(b.like(v.constants[i], 0));
    }
  for (size_t i = 0; i < carries; ++i) {
    back->sequence_in.push_back(as_input(v.body.carry_in[i], "carry"));
    sequences.push_back(b.get(c.node(), int(carries + outputs + i)));
  }
  for (size_t i = 0; i < v.sequences.size(); ++i) {
    back->sequence_in.push_back(as_input(v.body.sequence_in[i], "x"));
    if (v.body.sequence_in[i] == v.body.index) back->index = back->sequence_in.back();
    sequences.push_back(v.sequences[i]);
    if (is_float(graph.dtype(v.sequences[i])) && c.needs(int(carries + i))) float_sequence.push_back(i);
  }
  std::vector<NodeId> roots, cotangents;
  for (size_t i = 0; i < outputs; ++i)
    if (NodeId arrived = c.cotangent(int(carries + i))) {
      NodeId d = g.input(v.body.graph.type(v.body.step_out[i]), "d out");
      back->sequence_in.push_back(d), sequences.push_back(arrived);
      roots.push_back(v.body.step_out[i]), cotangents.push_back(d);
    }
  // The carries at the start of each step are results too: second derivatives arrive there and are added to those of the carries.
  std::vector<NodeId> grad_entered(carries, kNone);
  for (size_t i : float_carry)
    if (NodeId arrived = c.cotangent(int(carries + outputs + i))) {
      grad_entered[i] = g.input(v.body.graph.type(v.body.carry_in[i]), "d entered");
      back->sequence_in.push_back(grad_entered[i]), sequences.push_back(arrived);
    }
  for (size_t i = 0; i < v.constants.size(); ++i) back->constant_in.push_back(as_input(v.body.constant_in[i], "constant"));
  for (size_t k = 0; k < float_carry.size(); ++k) roots.push_back(v.body.carry_out[float_carry[k]]), cotangents.push_back(grad_carry_in[k]);

  std::vector<NodeId> moved = import_nodes(g, v.body.graph, roots, known, true);
  for (size_t i : float_carry) wrt.push_back(known.at(v.body.carry_in[i]));
  for (size_t i : float_constant) wrt.push_back(known.at(v.body.constant_in[i]));
  for (size_t i : float_sequence) wrt.push_back(known.at(v.body.sequence_in[i]));
  std::vector<NodeId> grads = c.pull_back(g, moved, cotangents, wrt);
  size_t at = 0;
  for (size_t i : float_carry) {
    back->carry_out.push_back(grad_entered[i] ? inner.add(grads[at], grad_entered[i]) : grads[at]);
    ++at;
  }
  for (size_t k = 0; k < float_constant.size(); ++k, ++at) back->carry_out.push_back(inner.add(back->carry_in[float_carry.size() + k], grads[at]));
  for (size_t k = 0; k < float_sequence.size(); ++k) back->step_out.push_back(grads[at++]);

  ScanResult r = scan(graph, back, carry0, sequences, constants, v.steps, !v.reverse);
  for (size_t k = 0; k < float_carry.size(); ++k) c.add(int(float_carry[k]), r.carry[k]);
  for (size_t k = 0; k < float_constant.size(); ++k) c.add(int(carries + v.sequences.size() + float_constant[k]), r.carry[float_carry.size() + k]);
  for (size_t k = 0; k < float_sequence.size(); ++k) c.add(int(carries + float_sequence[k]), r.outputs[k]);
}

Cost cost_scan(const Graph& graph, NodeId id) {
  ScanView v = scan_view(graph[id]);
  Cost cost;
  for (NodeId n : topological(v.body.graph, results_of(v.body))) {
    Cost step = row(v.body.graph[n].op).cost(v.body.graph, n);
    if (is_recomputed(v.body.graph, n)) step.again = step.flops;
    cost.flops += step.flops * double(v.steps), cost.bytes += step.bytes * double(v.steps), cost.again += step.again * double(v.steps);
  }
  return cost;
}

void samples_scan(const SampleSink& sink) {
  for (int64_t reverse : {0, 1})
    for (int64_t steps : {0, 1, 5}) {
      auto body = std::make_shared<ScanBody>();
      Builder b(body->graph);
      NodeId h = body->graph.input({DType::f32, {3, 4}}, "h"), x = body->graph.input({DType::f32, {3, 2}}, "x");
      NodeId w = body->graph.input({DType::f32, {6, 4}}, "w");
      NodeId both[] = {h, x};
      NodeId next = b.unary(Op::tanh, b.matmul(b.concat(both, 1), w));
      body->carry_in = {h}, body->sequence_in = {x}, body->constant_in = {w};
      body->carry_out = {next}, body->step_out = {b.square(next)};
      sink({{{{DType::f32, {3, 4}}}, {{DType::f32, {steps, 3, 2}}}, {{DType::f32, {6, 4}}, -1, 1}}, {{steps, reverse}, {}, body}, 0});
    }
}

}  // namespace ops
}  // namespace ridge
