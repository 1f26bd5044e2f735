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
      // Lists of synapses by target, [lanes, targets]: sources, then padding that the mask removes. Their gradient sums lists by source.
      const bool lists = s.model == "ltcs";
      NodeId sources = kNone, present = kNone, spread = kNone, spread_mask = kNone;
      NodeId mask = wiring(n, 0.25, false), mask_in = wiring(s.inputs, 0.5, false);
      NodeId num_in, den_in, num, den, v = h;
      synapses(g.reshape(x, {batch, s.inputs, 1}), loop.fixed(b.mul(plus(p[6]), mask_in)), loop.fixed(p[7]), loop.fixed(p[8]),
               loop.fixed(wiring(s.inputs, 0, true)), num_in, den_in);
      NodeId lw = b.mul(plus(p[3]), mask), lsigma = p[4], lmu = p[5], lsigns = wiring(n, 0, true);
      int64_t lanes = n;
      if (lists) {
        std::vector<int64_t> in_degree(size_t(n), 0), out_degree(size_t(n), 0);
        for (int64_t i = 0; i < n * n; ++i)
          if (double(uniform_from(random_word({7, 0, uint32_t(n)}, uint64_t(i)))) < 0.25) ++in_degree[size_t(i % n)], ++out_degree[size_t(i / n)];
        lanes = *std::max_element(in_degree.begin(), in_degree.end());
        const int64_t out_lanes = *std::max_element(out_degree.begin(), out_degree.end());
        auto [by_target, source_of] = b.sort(mask, 0, true);
        auto [by_source, target_of] = b.sort(mask, 1, true);
        sources = b.slice(source_of, 0, 0, lanes), present = b.slice(by_target, 0, 0, lanes);
        auto listed = [&](NodeId dense) { return b.gather(dense, sources, 0); };
        lw = b.mul(listed(lw), present), lsigma = listed(lsigma), lmu = listed(lmu), lsigns = listed(lsigns);
        NodeId rank = b.sub(b.cumsum(mask, 0), 1.0);  // of a synapse among those of its target
        NodeId place = b.cast(b.add(b.mul(rank, double(n)), b.iota({n, n}, 1, DType::f32)), DType::i64);
        spread_mask = b.stop_gradient(b.transpose(b.slice(by_source, 1, 0, out_lanes)));
        spread = b.transpose(b.clamp(b.gather(place, b.slice(target_of, 1, 0, out_lanes), 1), 0, double(lanes * n - 1)));
        sources = loop.fixed(sources), spread = loop.fixed(spread), spread_mask = loop.fixed(spread_mask);
      }
      NodeId w = loop.fixed(lw), sigma = loop.fixed(lsigma), mu = loop.fixed(lmu), signs = loop.fixed(lsigns);
      auto rule = std::make_shared<CustomGradient>();
      rule->vjp = [=](Graph& graph, std::span<const NodeId> operands, NodeId, NodeId d) {
        Builder at(graph);
        const int64_t lane[] = {1};
        NodeId picked = at.take(at.reshape(d, {batch, lanes * n}), operands[1], 1);
        return std::vector<NodeId>{at.sum(at.mul(picked, operands[2]), lane), kNone, kNone};
      };
      NodeId cm = loop.fixed(b.mul(plus(p[2]), 6.0)), leak = loop.fixed(plus(p[0])), pull = loop.fixed(b.mul(plus(p[0]), p[1]));
      for (int i = 0; i < 6; ++i) {
        NodeId from = lists ? g.graph().add(Op::custom, {g.take(v, sources, 1), v, spread, spread_mask}, {{}, {}, rule}) : g.reshape(v, {batch, n, 1});
        synapses(from, w, sigma, mu, signs, num, den);
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
