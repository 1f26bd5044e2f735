// Training steps of recurrent models, as the PyTorch comparison takes them: forward, backward and AdamW; a readout of four numbers at every step, mean squared
// error.
//   bench_loop_lab [-p PASSES] [-r LEVEL] [-n STEPS] [-b] [-v] [cfc:BATCH-TIME-INPUTS-HIDDEN-UNITSxLAYERS | lstm:BATCH-TIME-INPUTS-HIDDEN |
//   ltc:BATCH-TIME-INPUTS-NEURONS] …
// RIDGE_THREADS sets the threads; -p switches passes off (-p -row_blocks), -r sets the recompute level, -b multiplies in bf16, -v prints what the plan says
// about the loops; ltcs: lists of synapses.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <vector>

#include "base/rng.h"
#include "graph/custom.h"
#include "graph/scan.h"
#include "step/train_step.h"

namespace {

using namespace ridge;

struct Size {
  std::string model;
  int64_t batch = 64, time = 16, inputs = 8, hidden = 64, units = 64, layers = 2;
};

// Body inputs made on demand, with their operands.
struct Loop {
  std::shared_ptr<ScanBody> body = std::make_shared<ScanBody>();
  Builder b{body->graph};
  Builder& outer;
  std::vector<NodeId> carry, sequences, constants;
  explicit Loop(Builder& o) : outer(o) {}
  NodeId state(NodeId first) { return bind(body->carry_in, carry, first, outer.shape(first)); }
  NodeId step(NodeId x) {
    Shape s = outer.shape(x);
    s.erase(0);
    return bind(body->sequence_in, sequences, x, s);
  }
  NodeId fixed(NodeId w) { return bind(body->constant_in, constants, w, outer.shape(w)); }
  NodeId bind(std::vector<NodeId>& inner, std::vector<NodeId>& operands, NodeId x, const Shape& s) {
    operands.push_back(x), inner.push_back(body->graph.input({outer.dtype(x), s}, "step"));
    return inner.back();
  }
};

StepModel model_of(const Size& s) {
  StepModel m;
  const int64_t n = s.hidden;
  auto add = [&](const Shape& shape, double deviation, double mean = 0) {
    m.parameters.push_back({"p" + std::to_string(m.parameters.size()), shape, mean, deviation, true});
  };
  if (s.model == "cfc") {
    for (int64_t l = 0, in = s.inputs + n; l < s.layers; ++l, in = s.units) add({s.units, in}, 0.1), add({s.units}, 0.1);
    for (int i = 0; i < 4; ++i) add({n, s.units}, 0.1), add({n}, 0.1);
  } else if (s.model == "lstm") {
    add({4 * n, s.inputs}, 0.1), add({4 * n, n}, 0.1), add({4 * n}, 0.1), add({4 * n}, 0.1);
  } else {
    for (double mean : {0.5, 0.0, 0.5}) add({n}, 0.1, mean);           // gleak, vleak, cm
    for (double mean : {0.5, 5.5, 0.55}) add({n, n}, mean / 5, mean);  // w, sigma, mu: [source, target]
    for (double mean : {0.5, 5.5, 0.55}) add({s.inputs, n}, mean / 5, mean);
  }
  if (s.model[1] != 't') add({4, n}, 0.1), add({4}, 0.1);
  m.batch = {{DType::f32, {s.batch, s.time, s.inputs}}, {DType::f32, {s.batch, s.time, 4}}};
  m.loss = [=](Builder& b, std::span<const NodeId> p, std::span<const NodeId> in, const RandomOperands&) -> Builder::SumCount {
    const int64_t batch = b.shape(in[0])[0];
    Loop loop(b);
    Builder& g = loop.b;
    NodeId zero = b.full({batch, n}, DType::f32, 0), h = loop.state(zero), x = loop.step(b.permute(in[0], {1, 0, 2}));
    NodeId out = kNone;
    if (s.model == "cfc") {
      size_t at = 0;
      NodeId both[] = {x, h}, z = g.concat(both, 1);
      for (int64_t l = 0; l < s.layers; ++l, at += 2) z = g.unary(Op::tanh, g.linear(z, loop.fixed(p[at]), loop.fixed(p[at + 1])));
      std::vector<NodeId> weights, biases;
      for (int i = 0; i < 4; ++i, at += 2) weights.push_back(p[at]), biases.push_back(p[at + 1]);
      NodeId heads = g.linear(z, loop.fixed(b.concat(weights, 0)), loop.fixed(b.concat(biases, 0)));
      auto head = [&](int i) { return g.slice(heads, 1, i * n, (i + 1) * n); };
      NodeId t = g.unary(Op::sigmoid, g.sub(head(3), head(2)));
      NodeId low = g.unary(Op::tanh, head(0)), high = g.unary(Op::tanh, head(1));
      out = g.add(g.mul(low, g.binary(Op::sub, 1.0, t)), g.mul(t, high));
      loop.body->carry_out = {out};
    } else if (s.model == "lstm") {
      NodeId c = loop.state(zero);
      NodeId gates = g.add(g.linear(x, loop.fixed(p[0]), loop.fixed(p[2])), g.linear(h, loop.fixed(p[1]), loop.fixed(p[3])));
      auto gate = [&](Op op, int i) { return g.unary(op, g.slice(gates, 1, i * n, (i + 1) * n)); };
      NodeId cell = g.add(g.mul(gate(Op::sigmoid, 1), c), g.mul(gate(Op::sigmoid, 0), gate(Op::tanh, 2)));
      out = g.mul(gate(Op::sigmoid, 3), g.unary(Op::tanh, cell));
      loop.body->carry_out = {out, cell};
    } else {
      // A quarter of the synapses exist (half of the sensory ones), half of them inhibit. The wiring is computed from positions: there is no third input.
      auto wiring = [&](int64_t rows, double share, bool sign) {
        NodeId u = b.uniform({rows, n}, {b.literal(DType::i64, 7), b.literal(DType::i64, int(sign)), b.literal(DType::i64, 0), uint32_t(rows)});
        return b.stop_gradient(sign ? b.select(b.binary(Op::less, u, 0.5), b.full({rows, n}, DType::f32, 1), b.full({rows, n}, DType::f32, -1))
                                    : b.cast(b.binary(Op::less, u, share), DType::f32));
      };
      auto plus = [&](NodeId w) { return b.unary(Op::softplus, w); };
      auto synapses = [&](NodeId v, NodeId w, NodeId sigma, NodeId mu, NodeId signs, NodeId& num, NodeId& den) {
        NodeId a = g.mul(g.unary(Op::sigmoid, g.mul(sigma, g.sub(v, mu))), w);
        int64_t source[] = {1};
        num = g.sum(g.mul(a, signs), source), den = g.sum(a, source);
      };
      NodeId mask = wiring(n, 0.25, false), mask_in = wiring(s.inputs, 0.5, false), signs = wiring(n, 0, true);
      NodeId num_in, den_in, num, den, v = h;
      synapses(g.reshape(x, {batch, s.inputs, 1}), loop.fixed(b.mul(plus(p[6]), mask_in)), loop.fixed(p[7]), loop.fixed(p[8]),
               loop.fixed(wiring(s.inputs, 0, true)), num_in, den_in);
      NodeId w = b.mul(plus(p[3]), mask);
      // ltcs: lists of the sources of each target for the sums, of the targets of each source for their gradients (nn/cells.cpp has the same as tensors).
      std::vector<NodeId> common, of_num, of_den;
      auto rule = std::make_shared<CustomGradient>();
      if (s.model == "ltcs") {
        std::vector<int64_t> into(size_t(n), 0), out_of(size_t(n), 0);
        for (int64_t i = 0; i < n * n; ++i)
          if (double(uniform_from(random_word({7, 0, uint32_t(n)}, uint64_t(i)))) < 0.25) ++into[size_t(i % n)], ++out_of[size_t(i / n)];
        NodeId source = b.slice(b.sort(mask, 0, true).second, 0, 0, *std::max_element(into.begin(), into.end()));
        NodeId target = b.slice(b.sort(mask, 1, true).second, 1, 0, *std::max_element(out_of.begin(), out_of.end()));
        auto by_target = [&](NodeId dense) { return loop.fixed(b.stop_gradient(b.gather(dense, source, 0))); };
        auto by_source = [&](NodeId dense) { return loop.fixed(b.transpose(b.gather(dense, target, 1))); };
        common = {loop.fixed(source), loop.fixed(b.transpose(target)), by_target(p[4]), by_target(p[5]), by_source(p[4]), by_source(p[5])};
        of_num = {by_target(b.mul(w, signs)), by_source(b.mul(w, signs))}, of_den = {by_target(w), by_source(w)};
        rule->vjp = [batch, n](Graph& graph, std::span<const NodeId> in, NodeId, NodeId d) {
          Builder at(graph);
          const int64_t rows[] = {0}, lane[] = {1};
          NodeId from = at.take(d, in[2], 1), x = at.sub(at.reshape(in[0], {batch, 1, n}), in[6]), active = at.unary(Op::sigmoid, at.mul(in[5], x));
          NodeId weighted = at.mul(from, in[8]), slope = at.mul(active, at.binary(Op::sub, 1.0, active)), steep = at.mul(slope, in[5]);
          return std::vector<NodeId>{at.sum(at.mul(weighted, steep), lane),
                                     kNone,
                                     kNone,
                                     kNone,
                                     kNone,
                                     at.sum(at.mul(weighted, at.mul(slope, x)), rows),
                                     at.neg(at.sum(at.mul(weighted, steep), rows)),
                                     kNone,
                                     at.sum(at.mul(from, active), rows)};
        };
      } else {
        common = {loop.fixed(w), loop.fixed(p[4]), loop.fixed(p[5]), loop.fixed(signs)};
      }
      auto listed_sum = [&](NodeId state, const std::vector<NodeId>& weight) {
        const int64_t lane[] = {1};
        NodeId active = g.unary(Op::sigmoid, g.mul(common[2], g.sub(g.take(state, common[0], 1), common[3])));
        std::vector<NodeId> in = {g.sum(g.mul(active, weight[0]), lane), state};
        in.insert(in.end(), common.begin(), common.end()), in.insert(in.end(), weight.begin(), weight.end());
        return g.graph().add(Op::custom, in, {{}, {}, rule});
      };
      NodeId cm = loop.fixed(b.mul(plus(p[2]), 6.0)), leak = loop.fixed(plus(p[0])), pull = loop.fixed(b.mul(plus(p[0]), p[1]));
      for (int i = 0; i < 6; ++i) {
        if (s.model == "ltcs")
          num = listed_sum(v, of_num), den = listed_sum(v, of_den);
        else
          synapses(g.reshape(v, {batch, n, 1}), common[0], common[1], common[2], common[3], num, den);
        v = g.div(g.add(g.add(g.add(g.mul(cm, v), pull), num), num_in), g.add(g.add(g.add(g.add(cm, leak), den), den_in), 1e-8));
      }
      out = v;
      loop.body->carry_out = {v};
    }
    loop.body->step_out = {out};
    ScanResult r = scan(b.graph(), loop.body, loop.carry, loop.sequences, loop.constants, s.time);
    NodeId y = s.model[1] == 't' ? b.slice(r.outputs[0], 2, 0, 4) : b.linear(r.outputs[0], p[p.size() - 2], p.back());
    NodeId error = b.sub(y, b.permute(in[1], {1, 0, 2}));
    return {b.sum(b.square(error)), b.sum(b.full({batch, s.time * 4}, DType::f32, 1))};
  };
  return m;
}

double cpu_ms() {
  timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return double(t.tv_sec) * 1e3 + double(t.tv_nsec) / 1e6;
}

double median(std::vector<double> x) {
  std::nth_element(x.begin(), x.begin() + long(x.size() / 2), x.end());
  return x[x.size() / 2];
}

double run(const Size& s, const StepOptions& o, int count, bool verbose, double& loss, double& cpu) {
  StepModel m = model_of(s);
  TrainStep step(m, o);
  if (verbose)
    for (const std::string& d : step.plan().decisions) std::printf("  %s\n", d.c_str());
  if (verbose) std::printf("  activations %.1f MiB\n", double(step.plan().activation_bytes) / (1 << 20));
  for (size_t i = 0; i < m.parameters.size(); ++i) initialize(m.parameters[i], 3, uint32_t(i), step.parameter(i));
  std::vector<std::vector<float>> values;
  std::vector<const void*> batch;
  for (const Type& t : m.batch) {
    std::vector<float>& x = values.emplace_back(size_t(t.shape.numel()));
    for (size_t i = 0; i < x.size(); ++i) x[i] = 2 * uniform_from(random_word({4, 0, uint32_t(values.size())}, i)) - 1;
  }
  for (auto& x : values) batch.push_back(x.data());
  std::vector<double> ms, all;
  for (int i = 0; i < count + 3; ++i) {
    const auto t0 = std::chrono::steady_clock::now();
    const double c0 = cpu_ms();
    loss = step.run(batch).loss;
    if (i >= 3) ms.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - t0).count()), all.push_back(cpu_ms() - c0);
  }
  cpu = median(all);
  return median(ms);
}

}  // namespace

int main(int argc, char** argv) {
  StepOptions o;
  o.evaluation = false;
  int count = 20;
  bool verbose = false;
  std::vector<std::string> rows;
  for (int i = 1; i < argc; ++i) {
    const std::string a = argv[i];
    if (a == "-p" && i + 1 < argc)
      o.passes = argv[++i];
    else if (a == "-n" && i + 1 < argc)
      count = std::atoi(argv[++i]);
    else if (a == "-r" && i + 1 < argc)
      o.recompute = Recompute(std::atoi(argv[++i]));
    else if (a == "-b")
      o.precision = Precision::bf16;
    else if (a == "-v")
      verbose = true;
    else
      rows.push_back(a);
  }
  if (rows.empty())
    rows = {"cfc:64-16-8-64-64x2", "cfc:64-32-8-64-128x1", "cfc:256-64-32-256-256x2", "lstm:64-128-8-128", "ltc:16-300-8-66", "ltcs:16-300-8-66"};
  for (const std::string& row : rows) {
    Size s;
    s.model = row.substr(0, row.find(':'));
    std::sscanf(row.c_str() + s.model.size(), ":%ld-%ld-%ld-%ld-%ldx%ld", &s.batch, &s.time, &s.inputs, &s.hidden, &s.units, &s.layers);
    double loss = 0, cpu = 0;
    const double ms = run(s, o, s.model[1] == 't' ? std::max(3, count / 5) : count, verbose, loss, cpu);
    std::printf("%-28s %8.3f ms  cpu %8.3f ms  loss %.7g\n", row.c_str(), ms, cpu, loss);
    std::fflush(stdout);
  }
}
