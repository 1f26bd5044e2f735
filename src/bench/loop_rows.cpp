#include "bench/loop_rows.h"

#include <fmt/format.h>

#include <memory>

#include "autograd/gradients.h"
#include "graph/scan.h"

namespace ridge::bench {
namespace {

// Collects the operands of a scan and of its step together.
class LoopTrace {
 public:
  LoopTrace(Builder& b, int64_t steps) : b_(b), steps_(steps), body_(std::make_shared<ScanBody>()), s(body_->graph) {}

  NodeId carry(const Shape& shape) { return add(body_->carry_in, carry_, shape, shape, false); }
  NodeId sequence(const Shape& shape, DType dtype = DType::f32) {
    Shape all = shape;
    all.insert(0, steps_);
    return add(body_->sequence_in, sequences_, shape, all, false, dtype);
  }
  NodeId weight(const Shape& shape) { return add(body_->constant_in, constants_, shape, shape, true); }

  // Outputs and the gradients of all weights, or of the first sequence if there are none.
  Formula finish(std::vector<NodeId> next, NodeId out, bool reverse = false) {
    body_->carry_out = std::move(next), body_->step_out = {out};
    const ScanResult r = scan(b_.graph(), body_, carry_, sequences_, constants_, steps_, reverse);
    const NodeId cotangent = input(b_, f_, b_.shape(r.outputs[0]));
    if (weights_.empty()) weights_.push_back(sequences_[0]);
    f_.outputs = vector_jacobian(b_.graph(), r.outputs, {&cotangent, 1}, weights_);
    f_.outputs.push_back(r.outputs[0]);
    return std::move(f_);
  }

 private:
  NodeId add(std::vector<NodeId>& inner, std::vector<NodeId>& outer, const Shape& one, const Shape& all, bool weight, DType dtype = DType::f32) {
    inner.push_back(body_->graph.input({dtype, one}, "step"));
    outer.push_back(input(b_, f_, all, dtype));
    if (weight) weights_.push_back(outer.back());
    return inner.back();
  }

  Builder& b_;
  int64_t steps_;
  std::shared_ptr<ScanBody> body_;
  Formula f_;
  std::vector<NodeId> carry_, sequences_, constants_, weights_;

 public:
  Builder s;  // of the step
};

NodeId sigmoid(Builder& s, NodeId x) { return s.unary(Op::sigmoid, x); }
NodeId tanh(Builder& s, NodeId x) { return s.unary(Op::tanh, x); }

Formula advantages(Builder& b, int64_t steps, int64_t batch) {
  LoopTrace t(b, steps);
  const NodeId before = t.carry({batch}), delta = t.sequence({batch}), ended = t.sequence({batch}, DType::boolean);
  const NodeId go = t.s.cast(t.s.unary(Op::logical_not, ended), DType::f32);
  const NodeId next = t.s.add(delta, t.s.mul(t.s.mul(before, go), 0.9405));
  return t.finish({next}, next, true);
}

Formula gated_average(Builder& b, int64_t steps, int64_t batch, int64_t width) {
  LoopTrace t(b, steps);
  const NodeId h = t.carry({batch, width}), z = t.sequence({batch, width}), x = t.sequence({batch, width}), gate = sigmoid(t.s, z);
  const NodeId next = t.s.add(t.s.mul(t.s.binary(Op::sub, 1.0, gate), h), t.s.mul(gate, x));
  return t.finish({next}, next);
}

Formula independent_units(Builder& b, int64_t steps, int64_t batch, int64_t width) {
  LoopTrace t(b, steps);
  const NodeId h = t.carry({batch, width}), x = t.sequence({batch, width}), w = t.weight({width});
  const NodeId next = t.s.unary(Op::relu, t.s.add(t.s.mul(h, w), x));
  return t.finish({next}, t.s.add(next, x));
}

Formula oscillator(Builder& b, int64_t steps, int64_t batch, int64_t width) {
  LoopTrace t(b, steps);
  const Shape state{batch, width}, square{width, width};
  const NodeId y = t.carry(state), z = t.carry(state), x = t.sequence(state), wy = t.weight(square), wz = t.weight(square), bias = t.weight({width});
  const NodeId force = tanh(t.s, t.s.add(t.s.add(t.s.matmul(y, wy), t.s.matmul(z, wz)), t.s.add(x, bias)));
  const NodeId next_z = t.s.add(z, t.s.mul(t.s.sub(force, t.s.add(y, t.s.mul(z, 0.3))), 0.1)), next_y = t.s.add(y, t.s.mul(next_z, 0.1));
  return t.finish({next_y, next_z}, next_y);
}

// Gates that read the cell too, if `peepholes`.
Formula lstm(Builder& b, int64_t steps, int64_t batch, int64_t inputs, int64_t width, bool peepholes) {
  LoopTrace t(b, steps);
  const Shape state{batch, width};
  const NodeId h = t.carry(state), c = t.carry(state), x = t.sequence({batch, inputs});
  const NodeId wx = t.weight({4 * width, inputs}), wh = t.weight({4 * width, width}), bias = t.weight({4 * width});
  const NodeId gates = t.s.add(t.s.linear(x, wx, bias), t.s.linear(h, wh)), peep = peepholes ? t.weight({2, width}) : kNone;
  auto part = [&](int64_t i) { return t.s.slice(gates, 1, i * width, (i + 1) * width); };
  auto seen = [&](NodeId gate, int64_t i) { return peepholes ? t.s.add(gate, t.s.mul(c, t.s.slice(peep, 0, i, i + 1))) : gate; };
  const NodeId cell = t.s.add(t.s.mul(sigmoid(t.s, seen(part(1), 1)), c), t.s.mul(sigmoid(t.s, seen(part(0), 0)), tanh(t.s, part(2))));
  const NodeId next = t.s.mul(sigmoid(t.s, part(3)), tanh(t.s, cell));
  return t.finish({next, cell}, next);
}

// A backbone over input and state, then two candidates and a gate between them that depends on the elapsed time.
Formula closed_form(Builder& b, int64_t steps, int64_t batch, int64_t inputs, int64_t width, int64_t units, int64_t layers) {
  LoopTrace t(b, steps);
  const NodeId h = t.carry({batch, width}), x = t.sequence({batch, inputs}), elapsed = t.sequence({batch, 1});
  const NodeId both[] = {x, h};
  NodeId z = t.s.concat(both, 1);
  for (int64_t i = 0; i < layers; ++i) {
    const NodeId w = t.weight({t.s.shape(z)[1], units}), bias = t.weight({units});
    z = tanh(t.s, t.s.add(t.s.matmul(z, w), bias));
  }
  auto head = [&] {
    const NodeId w = t.weight({units, width}), bias = t.weight({width});
    return t.s.add(t.s.matmul(z, w), bias);
  };
  const NodeId low = tanh(t.s, head()), high = tanh(t.s, head()), a = head(), c = head();
  const NodeId gate = sigmoid(t.s, t.s.add(t.s.mul(t.s.neg(a), elapsed), c));
  const NodeId next = t.s.add(t.s.mul(low, t.s.binary(Op::sub, 1.0, gate)), t.s.mul(gate, high));
  return t.finish({next}, next);
}

// Membranes with sigmoid synapses between all pairs, in six semi-implicit parts of a step.
Formula membranes(Builder& b, int64_t steps, int64_t batch, int64_t width) {
  LoopTrace t(b, steps);
  const Shape square{width, width};
  NodeId v = t.carry({batch, width});
  const NodeId x = t.sequence({batch, width}), mu = t.weight(square), sigma = t.weight(square), w = t.weight(square), reversal = t.weight(square);
  const int64_t sources[] = {1};
  for (int i = 0; i < 6; ++i) {
    const NodeId active = t.s.mul(sigmoid(t.s, t.s.mul(t.s.sub(t.s.reshape(v, {batch, width, 1}), mu), sigma)), w);
    const NodeId up = t.s.sum(t.s.mul(active, reversal), sources), down = t.s.sum(active, sources);
    v = t.s.div(t.s.add(t.s.add(t.s.mul(v, 3.0), up), x), t.s.add(down, 3.5));
  }
  return t.finish({v}, v);
}

}  // namespace

std::vector<LoopRow> loop_formulas() {
  return {
      {"scan/gae-128x4096", 128, [](Builder& b) { return advantages(b, 128, 4096); }},
      {"scan/mingru-256x64x256", 256, [](Builder& b) { return gated_average(b, 256, 64, 256); }},
      {"scan/indrnn-skip-128x64x128", 128, [](Builder& b) { return independent_units(b, 128, 64, 128); }},
      {"scan/oscillator-128x64x64", 128, [](Builder& b) { return oscillator(b, 128, 64, 64); }},
      {"scan/cfc-64-16-8-64-64x2", 16, [](Builder& b) { return closed_form(b, 16, 64, 8, 64, 64, 2); }},
      {"scan/cfc-64-128-8-64-64x2", 128, [](Builder& b) { return closed_form(b, 128, 64, 8, 64, 64, 2); }},
      {"scan/cfc-256-64-32-256-256x2", 64, [](Builder& b) { return closed_form(b, 64, 256, 32, 256, 256, 2); }},
      {"scan/cfc-64-32-8-64-128x1", 32, [](Builder& b) { return closed_form(b, 32, 64, 8, 64, 128, 1); }},
      {"scan/lstm-64-128-8-128", 128, [](Builder& b) { return lstm(b, 128, 64, 8, 128, false); }},
      {"scan/peephole-lstm-64-128-8-64", 128, [](Builder& b) { return lstm(b, 128, 64, 8, 64, true); }},
      {"scan/ltc-16-300-66", 300, [](Builder& b) { return membranes(b, 300, 16, 66); }},
  };
}

std::vector<Row> loop_rows() {
  std::vector<Row> rows;
  for (const LoopRow& l : loop_formulas()) {
    Row row{.suite = "ops", .name = l.name, .parts = double(l.steps), .part = "time_step"};
    row.make = [trace = l.trace](const Context& context) { return compile(context, trace); };
    rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<std::string> loop_lines(const std::string& dump) {
  const std::string mark = ": loop of ";
  std::vector<std::string> lines;
  for (size_t at = 0; (at = dump.find(mark, at)) != std::string::npos; ++at) lines.push_back(dump.substr(at + 2, dump.find('\n', at) - at - 2));
  return lines;
}

std::string loops_in(const std::string& dump) {
  bool resident = false, unrolled = false;
  for (const std::string& line : loop_lines(dump)) (line.find(" steps, resident") != std::string::npos ? resident : unrolled) = true;
  return resident && unrolled ? "resident and unrolled" : resident ? "resident" : unrolled ? "unrolled" : "";
}

int loop_stages(const std::string& dump) {
  int stages = 0;
  for (const std::string& line : loop_lines(dump)) {
    const size_t end = line.find(" stages");
    if (line.find(" steps, resident") == std::string::npos || end == std::string::npos) return 0;
    stages += std::stoi(line.substr(line.rfind(' ', end - 1) + 1));
  }
  return stages;
}

}  // namespace ridge::bench
