#include "train/step_programs.h"

#include <algorithm>
#include <cmath>

#include "autograd/gradients.h"
#include "backend/backend.h"
#include "base/error.h"
#include "compile/autocast.h"
#include "compile/batch_axis.h"
#include "compile/scan_segments.h"
#include "optim/adamw.h"
#include "optim/clip.h"
#include "optim/sgd.h"

namespace ridge {

// The losses of some samples as graph, with the inputs that every program of a model begins with.
struct StepPrograms::Trace {
  Graph graph;
  std::vector<NodeId> parameters, batch;
  RandomOperands random{};
  Builder::SumCount loss{};
  std::vector<std::string> notes;  // how loops over time were cut

  std::vector<NodeId> inputs(NodeId scale = kNone) const {
    std::vector<NodeId> all = parameters;
    all.insert(all.end(), {random.seed, random.step, random.base});
    if (scale) all.push_back(scale);
    all.insert(all.end(), batch.begin(), batch.end());
    return all;
  }
  void rewrite(const std::vector<NodeId>& roots) { loss = {roots[0], roots[1]}; }
};

StepPrograms::Trace StepPrograms::trace(int64_t samples, const StepModel::Loss& loss, Recompute level) const {
  Trace t;
  Graph& g = t.graph;
  for (const Parameter& p : model_.parameters) t.parameters.push_back(g.input({DType::f32, p.shape}, p.name));
  t.random = {g.input({DType::i64, {}}, "seed"), g.input({DType::i64, {}}, "step"), g.input({DType::i64, {}}, "base"), 1};
  for (size_t i = 0; i < model_.batch.size(); ++i) {
    Type type = model_.batch[i];
    type.shape[0] = samples;
    t.batch.push_back(g.input(type, fmt::format("batch {}", i)));
  }
  Builder b(g);
  t.loss = loss(b, t.parameters, t.batch, t.random);
  if (options_.precision == Precision::bf16 || options_.precision == Precision::fp16) {
    const NodeId roots[] = {t.loss.sum, t.loss.count};
    t.rewrite(autocast(g, roots, options_.precision == Precision::bf16 ? DType::bf16 : DType::f16));
  }
  if (has_scan_ && level >= Recompute::segments) {
    const NodeId roots[] = {t.loss.sum, t.loss.count};
    SegmentedScans cut = segment_scans(g, roots);
    t.rewrite(cut.roots);
    t.notes = std::move(cut.notes);
  }
  return t;
}

StepPrograms::StepPrograms(const StepModel& model, const StepOptions& options) : model_(model), options_(options) {
  if (options.precision == Precision::tf32 && (!options.backend || options.backend->info().host_memory))
    fail(ErrorCode::unsupported, "[step] tf32 is a GPU's format; on the CPU take fp32, bf16 or fp16");
  const OptimizerOptions& o = options.optimizer;
  moments_ = o.kind != OptimizerOptions::Kind::sgd ? 2 : o.momentum > 0 ? 1 : 0;
  const int64_t batch = model.batch[0].shape[0];
  const Trace t = trace(batch, model.loss);
  const NodeId losses[] = {t.loss.sum, t.loss.count};
  coupling_ = evaluation_coupling_ = find_coupling(t.graph, t.batch, losses);
  const std::vector<NodeId> order = topological(t.graph, losses);
  has_scan_ = std::any_of(order.begin(), order.end(), [&](NodeId id) { return t.graph[id].op == Op::scan; });
  const Node& count = t.graph[t.loss.count];
  const double expected = count.op == Op::literal ? count.attrs.reals[0] : double(batch);
  divisor_ = std::exp2(std::floor(std::log2(std::max(expected, 1.0))));
  if (options.evaluation && model.evaluate) {
    const Trace e = trace(batch, model.evaluate);
    const NodeId evaluated[] = {e.loss.sum, e.loss.count};
    evaluation_coupling_ = find_coupling(e.graph, e.batch, evaluated);
  }
}

CompileOptions StepPrograms::compile_options() const {
  CompileOptions o;
  o.passes = options_.passes, o.team = options_.team, o.backend = options_.backend;
  return o;
}

std::unique_ptr<Executable> StepPrograms::body(int64_t samples, bool accumulate, Recompute level, std::vector<std::string>* notes) const {
  Trace t = trace(samples, model_.loss, level);
  Graph& g = t.graph;
  Builder b(g);
  if (notes) *notes = t.notes;
  const NodeId scale = scaled() ? g.input({DType::f32, {}}, "loss scale") : kNone;
  std::vector<NodeId> grads;
  if (scale) {
    const NodeId cotangent = b.cast(b.mul(scale, 1 / divisor_), g.dtype(t.loss.sum));
    grads = vector_jacobian(g, {&t.loss.sum, 1}, {&cotangent, 1}, t.parameters);
  } else {
    grads = gradients(g, t.loss.sum, t.parameters);
  }
  if (options_.precision != Precision::fp32)
    for (NodeId& d : grads) d = keep_wide(g, d);
  CompileOptions o = compile_options();
  o.recompute = level;
  o.forward = {t.loss.sum, t.loss.count};
  std::vector<NodeId> inputs = t.inputs(scale), outputs;
  NodeId sum = b.cast(t.loss.sum, DType::f32), count = b.cast(t.loss.count, DType::f32);
  if (accumulate) {
    auto add_to = [&](NodeId part, const std::string& name) {
      const NodeId so_far = g.input(g.type(part), name);
      o.state.push_back({int(inputs.size()), int(outputs.size())});
      inputs.push_back(so_far);
      outputs.push_back(b.add(so_far, part));
    };
    for (size_t i = 0; i < grads.size(); ++i) add_to(grads[i], "gradient of " + model_.parameters[i].name);
    for (NodeId part : {sum, count}) add_to(part, "loss so far");
  } else {
    outputs = grads;
    outputs.insert(outputs.end(), {sum, count});
  }
  return std::make_unique<Executable>(g, inputs, outputs, o);
}

std::unique_ptr<Executable> StepPrograms::evaluation(int64_t samples, Recompute level) const {
  Trace t = trace(samples, model_.evaluate ? model_.evaluate : model_.loss, level);
  Builder b(t.graph);
  const std::vector<NodeId> outputs = {b.cast(t.loss.sum, DType::f32), b.cast(t.loss.count, DType::f32)};
  return std::make_unique<Executable>(t.graph, t.inputs(), outputs, compile_options());
}

// Lowered when gradients overflow although the loss is finite; a loss that is not finite has nothing to do with it.
StepPrograms::ScaleNodes StepPrograms::next_scale(Builder& b, NodeId scale, NodeId age, NodeId norm_finite, NodeId loss_finite) const {
  const LossScaleOptions& s = options_.loss_scale;
  const NodeId good = b.binary(Op::logical_and, norm_finite, loss_finite);
  const NodeId overflow = b.binary(Op::logical_and, b.unary(Op::logical_not, norm_finite), loss_finite);
  const NodeId lowered = b.binary(Op::logical_and, overflow, b.binary(Op::greater, scale, s.floor));
  const NodeId older = b.add(age, 1.0);
  const NodeId grown = b.binary(Op::logical_and, good, b.binary(Op::greater_equal, older, double(s.growth_interval)));
  const NodeId zero = b.literal(DType::i64, 0);
  const NodeId next =
      b.select(grown, b.binary(Op::minimum, b.mul(scale, 2.0), s.cap), b.select(lowered, b.binary(Op::maximum, b.mul(scale, 0.5), s.floor), scale));
  return {next, b.select(b.binary(Op::logical_or, grown, overflow), zero, b.select(good, older, age)), lowered};
}

std::unique_ptr<Executable> StepPrograms::update(std::shared_ptr<Arena> arena) const {
  Graph g;
  Builder b(g);
  CompileOptions o = compile_options();
  o.arena = std::move(arena);
  std::vector<NodeId> params, grads, inputs, outputs;
  std::vector<std::vector<NodeId>> moment(static_cast<size_t>(moments_));
  auto all = [&](std::vector<NodeId>& list, const char* what) {
    for (const Parameter& p : model_.parameters) list.push_back(g.input({DType::f32, p.shape}, what + p.name));
    inputs.insert(inputs.end(), list.begin(), list.end());
  };
  all(params, "");
  for (auto& m : moment) all(m, "moment of ");
  const size_t state = inputs.size();
  all(grads, "gradient of ");
  NodeId applied = g.input({DType::i64, {}}, "applied"), lr = g.input({DType::f32, {}}, "lr"), sum = g.input({DType::f32, {}}, "sum"),
         count = g.input({DType::f32, {}}, "count");
  inputs.insert(inputs.end(), {applied, lr, sum, count});
  const NodeId per_loss = b.binary(Op::div, 1.0, b.binary(Op::maximum, count, 1.0));
  NodeId unscale = per_loss, scale = kNone, age = kNone;  // by which gradients are multiplied
  if (scaled()) {
    scale = g.input({DType::f32, {}}, "loss scale"), age = g.input({DType::i64, {}}, "age of the loss scale");
    inputs.insert(inputs.end(), {scale, age});
    unscale = b.mul(per_loss, b.binary(Op::div, divisor_, scale));
  }
  std::vector<NodeId> mean;
  for (NodeId d : grads) mean.push_back(b.mul(d, unscale));
  NodeId norm = global_norm(b, mean), loss = b.mul(sum, per_loss);
  const NodeId norm_finite = b.unary(Op::is_finite, norm), loss_finite = b.unary(Op::is_finite, loss);
  const NodeId good = b.binary(Op::logical_and, norm_finite, loss_finite);
  if (options_.clip > 0) {
    NodeId coefficient = b.binary(Op::minimum, b.binary(Op::div, options_.clip, b.add(norm, 1e-6)), 1.0);
    NodeId both = b.mul(unscale, coefficient);  // one scalar, so that gradients are scaled once
    for (size_t i = 0; i < grads.size(); ++i) mean[i] = b.mul(grads[i], both);
  }
  const std::vector<double> decay = decay_values(model_.parameters, options_.optimizer.decay);
  const OptimizerOptions& opt = options_.optimizer;
  if (opt.kind == OptimizerOptions::Kind::sgd) {
    SgdState s{params, moments_ ? moment[0] : std::vector<NodeId>{}};
    SgdState next = sgd(b, s, mean, lr, decay, {opt.momentum, opt.nesterov}, good);
    outputs = next.parameters;
    outputs.insert(outputs.end(), next.momentum.begin(), next.momentum.end());
    outputs.push_back(b.select(good, b.add(applied, 1.0), applied));
  } else {
    AdamState s{params, moment[0], moment[1], applied};
    AdamOptions a{opt.beta1, opt.beta2, opt.eps};
    AdamState next = opt.kind == OptimizerOptions::Kind::adamw ? adamw(b, s, mean, lr, decay, a, good) : adam(b, s, mean, lr, decay, a, good);
    outputs = next.parameters;
    outputs.insert(outputs.end(), next.first.begin(), next.first.end());
    outputs.insert(outputs.end(), next.second.begin(), next.second.end());
    outputs.push_back(next.applied);
  }
  for (size_t i = 0; i < state; ++i) o.state.push_back({int(i), int(i)});
  outputs.insert(outputs.end(), {loss, norm, good});
  if (scale) {
    const ScaleNodes next = next_scale(b, scale, age, norm_finite, loss_finite);
    outputs.insert(outputs.end(), {next.next, next.age, next.lowered});
  }
  return std::make_unique<Executable>(g, inputs, outputs, o);
}

}  // namespace ridge
