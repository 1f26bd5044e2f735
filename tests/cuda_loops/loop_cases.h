// Loops over time whose steps are given as functions, for tests of kernels that run all steps.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "autograd/gradients.h"
#include "graph/builder.h"
#include "graph/scan.h"
#include "scan/bodies.h"
#include "support/samples.h"

namespace ridge::test {

struct LoopCase {
  using Nodes = std::vector<NodeId>;
  struct Next {
    Nodes carry, out;
  };
  std::string name;
  std::vector<Type> carry, sequences, constants;  // of one step
  std::function<Next(Builder&, const Nodes& carry, const Nodes& x, const Nodes& w)> step;
  int64_t steps = 5;
  bool reverse = false;
  bool entered = false;  // also returns the carries at the start of each step
};

inline Type floats(Shape shape) { return {DType::f32, std::move(shape)}; }

// Integers are drawn from 0 … 2.
inline Loop make_case_loop(const LoopCase& c, bool with_gradients, uint64_t seed = 1) {
  Loop loop;
  Builder b(loop.graph);
  Random random(seed);
  auto body = std::make_shared<ScanBody>();
  Builder s(body->graph);
  auto bind = [&](std::vector<NodeId>& inner, const std::vector<Type>& types, bool over_time) {
    std::vector<NodeId> outer;
    for (const Type& t : types) {
      inner.push_back(body->graph.input(t, "in"));
      Type all = t;
      if (over_time) all.shape.insert(0, c.steps);
      const NodeId id = outer.emplace_back(loop.inputs.emplace_back(loop.graph.input(all, "x")));
      loop.values[id] = is_float(t.dtype) ? draw(all, random, -0.8, 0.8) : draw(all, random, 0, t.dtype == DType::boolean ? 2 : 3);
      for (double& v : loop.values[id].f) v = reference::round_to(t.dtype, v);
      if (is_float(t.dtype)) loop.wrt.push_back(id);
    }
    return outer;
  };
  const std::vector<NodeId> carry = bind(body->carry_in, c.carry, false), sequences = bind(body->sequence_in, c.sequences, true),
                            constants = bind(body->constant_in, c.constants, false);
  const std::vector<NodeId> x = body->sequence_in;
  LoopCase::Next next = c.step(s, body->carry_in, x, body->constant_in);
  body->carry_out = next.carry, body->step_out = next.out;
  const ScanResult r = scan(loop.graph, body, carry, sequences, constants, c.steps, c.reverse);
  loop.results = r.outputs;
  loop.results.insert(loop.results.end(), r.carry.begin(), r.carry.end());
  if (c.entered) loop.results.insert(loop.results.end(), r.entered.begin(), r.entered.end());
  if (with_gradients) {
    std::vector<NodeId> real;
    for (NodeId id : loop.results)
      if (is_float(loop.graph.dtype(id))) real.push_back(id);
    for (NodeId g : gradients(loop.graph, mixed_loss(b, real), loop.wrt)) loop.results.push_back(g);
  }
  return loop;
}

// Steps without products: one thread computes a row.
inline std::vector<LoopCase> product_free_cases(int64_t batch = 17, int64_t width = 6) {
  using Nodes = LoopCase::Nodes;
  const Type row = floats({batch, width}), one = floats({batch});
  auto sigmoid = [](Builder& b, NodeId x) { return b.unary(Op::sigmoid, x); };
  static const auto sig = sigmoid;
  std::vector<LoopCase> all;
  // Generalised advantages, from the last step to the first.
  all.push_back({"advantages",
                 {one},
                 {one, one, {DType::boolean, {batch}}},
                 {},
                 [](Builder& b, const Nodes& c, const Nodes& x, const Nodes&) {
                   const NodeId go = b.cast(b.unary(Op::logical_not, x[2]), DType::f32);
                   const NodeId next = b.add(b.add(x[0], b.mul(x[1], 0.99)), b.mul(b.mul(c[0], go), 0.94));
                   return LoopCase::Next{{next}, {next}};
                 },
                 7,
                 true});
  all.push_back({"gated average",
                 {row},
                 {row, row},
                 {},
                 [](Builder& b, const Nodes& c, const Nodes& x, const Nodes&) {
                   const NodeId z = sig(b, x[0]), h = b.add(b.mul(b.binary(Op::sub, 1.0, z), c[0]), b.mul(z, x[1]));
                   return LoopCase::Next{{h}, {h}};
                 },
                 9});
  // A reset, a skip, several carries and outputs, one of them a carry of the step before.
  all.push_back({"independent units",
                 {row, row},
                 {row, {DType::boolean, {batch, 1}}},
                 {floats({width}), row},
                 [](Builder& b, const Nodes& c, const Nodes& x, const Nodes& w) {
                   const NodeId before = b.select(x[1], w[1], c[0]);
                   const NodeId h = b.unary(Op::relu, b.add(b.mul(before, w[0]), x[0])), sum = b.add(c[1], b.square(h));
                   return LoopCase::Next{{b.add(h, b.mul(x[0], 0.5)), sum}, {h, b.mul(c[1], 2.0), sum}};
                 },
                 4,
                 false,
                 true});
  // Columns of a small state that mix, a count and an index.
  all.push_back({"small state",
                 {floats({batch, 4}), {DType::i32, {batch}}},
                 {one, {DType::i64, {batch}}},
                 {floats({3})},
                 [](Builder& b, const Nodes& c, const Nodes& x, const Nodes& w) {
                   auto column = [&](int64_t i) { return b.slice(c[0], 1, i, i + 1); };
                   const int64_t last[] = {1};
                   const NodeId force = b.reshape(b.add(x[0], b.take(b.stop_gradient(w[0]), x[1], 0)), {b.shape(x[0])[0], 1});
                   const NodeId v = b.add(column(1), b.mul(b.sub(force, b.unary(Op::sin, column(2))), 0.1)), p = b.add(column(0), b.mul(v, 0.1));
                   const NodeId u = b.sub(column(3), b.mul(b.unary(Op::cos, column(2)), 0.05)), q = b.add(column(2), b.mul(u, 0.1));
                   const NodeId parts[] = {p, v, q, u};
                   const NodeId next = b.concat(parts, 1), size = b.sum(b.square(next), last, true);
                   const NodeId far = b.binary(Op::greater, size, 0.8);
                   const NodeId count = b.select(b.reshape(far, {b.shape(x[0])[0]}), b.literal(DType::i32, 0), b.add(c[1], 1.0));
                   return LoopCase::Next{{b.select(far, b.mul(next, 0.5), next), count}, {b.reshape(size, {b.shape(x[0])[0]}), count}};
                 },
                 11});
  return all;
}

// Steps with products: a block of threads computes some rows.
inline std::vector<LoopCase> product_cases(int64_t batch = 5, int64_t width = 12) {
  using Nodes = LoopCase::Nodes;
  const Type row = floats({batch, width}), square = floats({width, width});
  static const auto sig = [](Builder& b, NodeId x) { return b.unary(Op::sigmoid, x); };
  std::vector<LoopCase> all;
  // An LSTM whose gates also read the cell.
  all.push_back({"peepholes",
                 {row, row},
                 {floats({batch, 4 * width})},
                 {floats({4 * width, width}), floats({3, width})},
                 [](Builder& b, const Nodes& c, const Nodes& x, const Nodes& w) {
                   const int64_t n = b.shape(c[0])[1];
                   const NodeId gates = b.add(b.linear(c[0], w[0]), x[0]);
                   auto part = [&](int64_t i) { return b.slice(gates, 1, i * n, (i + 1) * n); };
                   auto peep = [&](int64_t i) { return b.slice(w[1], 0, i, i + 1); };
                   const NodeId i = sig(b, b.add(part(0), b.mul(c[1], peep(0)))), f = sig(b, b.add(part(1), b.mul(c[1], peep(1))));
                   const NodeId cell = b.add(b.mul(f, c[1]), b.mul(i, b.unary(Op::tanh, part(2))));
                   const NodeId h = b.mul(sig(b, b.add(part(3), b.mul(cell, peep(2)))), b.unary(Op::tanh, cell));
                   return LoopCase::Next{{h, cell}, {h}};
                 },
                 4});
  // Two carries that drive each other.
  all.push_back({"coupled oscillator",
                 {row, row},
                 {row},
                 {square, square, floats({width})},
                 [](Builder& b, const Nodes& c, const Nodes& x, const Nodes& w) {
                   const NodeId force = b.unary(Op::tanh, b.add(b.add(b.matmul(c[0], w[0]), b.matmul(c[1], w[1])), b.add(x[0], w[2])));
                   const NodeId z = b.add(c[1], b.mul(b.sub(force, b.add(c[0], b.mul(c[1], 0.3))), 0.2)), y = b.add(c[0], b.mul(z, 0.2));
                   return LoopCase::Next{{y, z}, {y}};
                 },
                 6});
  // A layer with another width, then several heads over it, a blend, and sums over a row.
  const int64_t deep = 2 * width + 4;
  all.push_back({"layers",
                 {row},
                 {floats({batch, deep}), floats({batch, 1})},
                 {floats({width, deep}), floats({deep, width}), floats({deep, width}), floats({deep, width})},
                 [](Builder& b, const Nodes& c, const Nodes& x, const Nodes& w) {
                   const int64_t last[] = {1};
                   const NodeId z = b.unary(Op::tanh, b.add(b.matmul(c[0], w[0]), x[0]));
                   const NodeId gate = sig(b, b.add(b.matmul(z, w[3]), b.mul(x[1], 0.7)));
                   const NodeId low = b.unary(Op::tanh, b.matmul(z, w[1])), high = b.unary(Op::tanh, b.matmul(z, w[2]));
                   const NodeId h = b.add(b.mul(low, b.binary(Op::sub, 1.0, gate)), b.mul(high, gate));
                   return LoopCase::Next{{b.sub(h, b.mean(h, last, true))}, {h}};
                 },
                 5,
                 true,
                 true});
  // Every pair of units, with no product: a leaky membrane with sigmoid synapses.
  all.push_back({"pairs",
                 {row},
                 {row},
                 {square, square, square},
                 [](Builder& b, const Nodes& c, const Nodes& x, const Nodes& w) {
                   const int64_t n = b.shape(c[0])[1], rows = b.shape(c[0])[0], sources[] = {1};
                   NodeId v = c[0];
                   for (int k = 0; k < 2; ++k) {
                     const NodeId s = sig(b, b.mul(b.sub(b.reshape(v, {rows, n, 1}), w[0]), w[1]));
                     const NodeId up = b.sum(b.mul(s, w[2]), sources), down = b.sum(s, sources);
                     v = b.div(b.add(b.add(b.mul(v, 3.0), up), x[0]), b.add(down, 4.0));
                   }
                   return LoopCase::Next{{v}, {v}};
                 },
                 3});
  // Pairs that are summed over both of their units: too many values of a row for registers.
  all.push_back({"pairs in both directions",
                 {row},
                 {row},
                 {square},
                 [](Builder& b, const Nodes& c, const Nodes& x, const Nodes& w) {
                   const int64_t n = b.shape(c[0])[1], rows = b.shape(c[0])[0], first[] = {1}, second[] = {2};
                   const NodeId s = b.unary(Op::tanh, b.add(b.mul(b.reshape(c[0], {rows, n, 1}), b.reshape(x[0], {rows, 1, n})), w[0]));
                   return LoopCase::Next{{b.mul(b.sub(b.sum(s, first), b.sum(s, second)), 0.3)}, {}};
                 },
                 3});
  // Lists of synapses: each unit reads some others, by number.
  all.push_back({"lists",
                 {row},
                 {row},
                 {{DType::i64, {3, width}}, floats({3, width})},
                 [](Builder& b, const Nodes& c, const Nodes& x, const Nodes& w) {
                   const int64_t lanes[] = {1};
                   const NodeId active = sig(b, b.mul(b.stop_gradient(b.take(c[0], w[0], 1)), w[1]));
                   return LoopCase::Next{{b.unary(Op::tanh, b.add(b.mul(c[0], 0.5), b.add(b.sum(active, lanes), x[0])))}, {}};
                 },
                 4});
  return all;
}

}  // namespace ridge::test
