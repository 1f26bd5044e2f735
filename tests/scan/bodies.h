// Loops over time for tests: recurrent cells written with the builder.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "autograd/gradients.h"
#include "graph/builder.h"
#include "graph/scan.h"
#include "support/samples.h"

namespace ridge::test {

struct LoopSize {
  int64_t steps = 7, batch = 3, inputs = 5, width = 4;
  bool reverse = false, reset = false;
};

// A cell: (body builder, carries, x, weights) -> next carries, output.
struct Cell {
  const char* name;
  std::vector<Shape> (*weights)(const LoopSize&);
  int carries;
  struct Next {
    std::vector<NodeId> carry;
    NodeId out;
  };
  Next (*step)(Builder&, const std::vector<NodeId>& carry, NodeId x, const std::vector<NodeId>& weights);
};

inline std::vector<Cell> cells() {
  using Nodes = const std::vector<NodeId>&;
  auto quarter = [](Builder& b, NodeId x, int i) {
    int64_t w = b.shape(x)[1] / 4;
    return b.slice(x, 1, i * w, (i + 1) * w);
  };
  static const auto part = quarter;
  return {
      {"rnn",
       [](const LoopSize& s) {
         return std::vector<Shape>{{s.inputs + s.width, s.width}, {s.width}};
       },
       1,
       [](Builder& b, Nodes c, NodeId x, Nodes w) {
         NodeId both[] = {x, c[0]};
         NodeId h = b.unary(Op::tanh, b.add(b.matmul(b.concat(both, 1), w[0]), w[1]));
         return Cell::Next{{h}, h};
       }},
      {"lstm",
       [](const LoopSize& s) {
         return std::vector<Shape>{{4 * s.width, s.inputs}, {4 * s.width, s.width}, {4 * s.width}};
       },
       2,
       [](Builder& b, Nodes c, NodeId x, Nodes w) {
         NodeId gates = b.add(b.linear(x, w[0], w[2]), b.linear(c[0], w[1]));
         NodeId i = b.unary(Op::sigmoid, part(b, gates, 0)), f = b.unary(Op::sigmoid, part(b, gates, 1));
         NodeId g = b.unary(Op::tanh, part(b, gates, 2)), o = b.unary(Op::sigmoid, part(b, gates, 3));
         NodeId cell = b.add(b.mul(f, c[1]), b.mul(i, g)), h = b.mul(o, b.unary(Op::tanh, cell));
         return Cell::Next{{h, cell}, h};
       }},
      // A closed-form continuous-time cell: a shared layer over [x, h], two candidates with a gate between them, and a readout.
      {"cfc",
       [](const LoopSize& s) {
         return std::vector<Shape>{{s.inputs + s.width, 6}, {6}, {6, s.width}, {s.width}, {6, s.width}, {s.width}, {6, s.width}, {s.width}, {s.width, 2}};
       },
       1,
       [](Builder& b, Nodes c, NodeId x, Nodes w) {
         NodeId both[] = {x, c[0]};
         NodeId z = b.mul(b.unary(Op::tanh, b.mul(b.add(b.matmul(b.concat(both, 1), w[0]), w[1]), 0.666)), 1.7159);
         NodeId low = b.unary(Op::tanh, b.add(b.matmul(z, w[2]), w[3])), high = b.unary(Op::tanh, b.add(b.matmul(z, w[4]), w[5]));
         NodeId gate = b.unary(Op::sigmoid, b.add(b.matmul(z, w[6]), w[7]));
         NodeId h = b.add(b.mul(low, b.binary(Op::sub, 1.0, gate)), b.mul(high, gate));
         return Cell::Next{{h}, b.matmul(h, w[8])};
       }},
      // Loop-invariant work, a carry that never changes, a sum and a count.
      {"sums",
       [](const LoopSize& s) {
         return std::vector<Shape>{{s.inputs, s.width}, {s.width, s.width}};
       },
       4,
       [](Builder& b, Nodes c, NodeId x, Nodes w) {
         NodeId fixed = b.unary(Op::exp, b.matmul(w[0], w[1]));
         NodeId y = b.mul(b.matmul(x, fixed), c[1]), h = b.unary(Op::tanh, b.add(y, b.mul(c[0], 0.5)));
         return Cell::Next{{h, c[1], b.add(c[2], b.mul(y, 2.0)), b.add(b.sub(c[3], h), 1.0)}, y};
       }},
  };
}

// Inputs: initial carries, x, then reset (if requested), then weights. Results: outputs over time, then final carries.
struct Loop {
  Graph graph;
  std::vector<NodeId> inputs, wrt, results;
  Values values;
};

inline ScanResult add_loop(Builder& b, const Cell& cell, const LoopSize& size, const std::vector<NodeId>& carry, NodeId x, NodeId reset,
                           const std::vector<NodeId>& weights) {
  auto body = std::make_shared<ScanBody>();
  Builder s(body->graph);
  Type state{DType::f32, {size.batch, size.width}};
  std::vector<NodeId> entering, inner_weights;
  for (int i = 0; i < cell.carries; ++i) body->carry_in.push_back(body->graph.input(state, "carry"));
  body->sequence_in.push_back(body->graph.input({DType::f32, {size.batch, size.inputs}}, "x"));
  entering = body->carry_in;
  std::vector<NodeId> sequences = {x}, constants = weights;
  for (NodeId w : weights) inner_weights.push_back(body->graph.input(b.graph().type(w), "weight"));
  body->constant_in = inner_weights;
  if (reset) {
    NodeId r = body->graph.input({DType::boolean, {size.batch}}, "reset");
    body->sequence_in.push_back(r), sequences.push_back(reset);
    for (size_t i = 0; i < carry.size(); ++i) {
      NodeId first = body->graph.input(state, "initial");
      body->constant_in.push_back(first), constants.push_back(carry[i]);
      entering[i] = s.select(s.reshape(r, {size.batch, 1}), first, entering[i]);
    }
  }
  Cell::Next next = cell.step(s, entering, body->sequence_in[0], inner_weights);
  body->carry_out = next.carry, body->step_out = {next.out};
  return scan(b.graph(), body, carry, sequences, constants, size.steps, size.reverse);
}

inline Loop make_loop(const Cell& cell, const LoopSize& size, uint64_t seed = 1) {
  Loop loop;
  Builder b(loop.graph);
  Random random(seed);
  auto input = [&](Type t, const std::string& name) {
    NodeId id = loop.graph.input(t, name);
    loop.inputs.push_back(id);
    loop.values[id] = is_float(t.dtype) ? draw(t, random, -0.8, 0.8) : draw(t, random, 0, 2);
    for (double& v : loop.values[id].f) v = reference::round_to(t.dtype, v);
    if (is_float(t.dtype)) loop.wrt.push_back(id);
    return id;
  };
  std::vector<NodeId> carry, weights;
  for (int i = 0; i < cell.carries; ++i) carry.push_back(input({DType::f32, {size.batch, size.width}}, "carry"));
  NodeId x = input({DType::f32, {size.steps, size.batch, size.inputs}}, "x"), reset = kNone;
  if (size.reset) reset = input({DType::boolean, {size.steps, size.batch}}, "reset");
  for (const Shape& s : cell.weights(size)) weights.push_back(input({DType::f32, s}, "weight"));
  ScanResult r = add_loop(b, cell, size, carry, x, reset, weights);
  loop.results = r.outputs;
  loop.results.insert(loop.results.end(), r.carry.begin(), r.carry.end());
  return loop;
}

// A scalar that depends on every result.
inline NodeId mixed_loss(Builder& b, std::span<const NodeId> results) {
  NodeId loss = kNone;
  double factor = 1;
  for (NodeId r : results) {
    NodeId part = b.mul(b.sum(b.square(b.add(r, 0.3))), factor);
    loss = loss ? b.add(loss, part) : part;
    factor *= 0.7;
  }
  return loss;
}

}  // namespace ridge::test
