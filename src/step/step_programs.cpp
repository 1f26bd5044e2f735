#include "step/step_programs.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <set>

#include "autograd/gradients.h"
#include "backend/backend.h"
#include "base/error.h"
#include "base/text.h"
#include "compile/autocast.h"
#include "compile/scan_segments.h"
#include "graph/draws.h"
#include "graph/scan.h"
#include "optim/adamw.h"
#include "optim/clip.h"
#include "optim/muon.h"
#include "optim/sgd.h"
#include "step/batch_draws.h"
#include "step/hidden_matrices.h"
#include "step/row_loop.h"

namespace ridge {
namespace {

// Includes nodes inside loops.
bool any_node(const Graph& g, std::span<const NodeId> roots, const std::function<bool(const Graph&, const Node&)>& is) {
  const std::vector<NodeId> order = topological(g, roots);
  return std::any_of(order.begin(), order.end(), [&](NodeId id) {
    return is(g, g[id]) || (g[id].op == Op::scan && any_node(scan_view(g[id]).body.graph, results_of(scan_view(g[id]).body), is));
  });
}

bool finds_bf16_products(const Graph& g, std::span<const NodeId> roots) {
  return any_node(g, roots, [](const Graph& graph, const Node& n) {
    return (n.op == Op::matmul || n.op == Op::attention || n.op == Op::conv) && graph.dtype(n.in[0]) == DType::bf16;
  });
}

// Settings outside these ranges make weights non-finite, or grow instead of shrink, however good the gradients are.
void check_settings(const StepOptions& options) {
  const Optimizer& o = options.optimizer;
  auto check = [](const char* what, double value, bool good, const char* range) {
    if (!good) fail(ErrorCode::value, "[step] {} is {}; use {}", what, value, range);
  };
  auto from_zero = [](double value) { return value >= 0 && std::isfinite(float(value)); };
  auto below_one = [](double value) { return value >= 0 && value < 1; };
  check("lr", o.lr, from_zero(o.lr), "a finite number of at least 0");
  check("decay", o.decay, from_zero(o.decay), "a finite number of at least 0");
  check("clip", options.clip, from_zero(options.clip), "a finite number above 0, or 0 for none");
  check("momentum", o.momentum, below_one(o.momentum), "a number from 0 to below 1");
  if (o.kind == Optimizer::Kind::sgd) return;
  check("scale", o.scale, from_zero(o.scale), "a finite number of at least 0");
  check("beta1", o.beta1, below_one(o.beta1), "a number from 0 to below 1");
  check("beta2", o.beta2, below_one(o.beta2), "a number from 0 to below 1");
  // Smaller values become 0 on devices without denormals, and a gradient that was always 0 would then be divided by 0.
  check("eps", o.eps, o.eps >= double(std::numeric_limits<float>::min()) && std::isfinite(float(o.eps)), "a finite number of at least 1.2e-38");
}

// Names become JSON keys and TensorBoard tags; values are summed over parts of a batch.
void check_scalars(const Graph& g, const std::vector<StepLoss::Scalar>& scalars) {
  constexpr std::string_view kSigns = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-./";
  constexpr size_t kLongest = 60;
  if (scalars.size() > kMaxScalars) fail(ErrorCode::value, "[step] the loss has {} named scalars; give at most {}", scalars.size(), kMaxScalars);
  std::set<std::string_view> names = {"loss"};
  for (const auto& [name, value] : scalars) {
    if (name.empty() || name.size() > kLongest || name.find_first_not_of(kSigns) != name.npos)
      fail(ErrorCode::value, "[step] \"{}\" cannot be the name of a scalar; use 1 to {} letters, digits, '_', '-', '.' and '/'", name, kLongest);
    if (!names.insert(name).second)
      fail(ErrorCode::value, "[step] {}; choose another name",
           name == "loss" ? "a scalar cannot be called loss" : fmt::format("there are two scalars {}", name));
    for (const NodeId id : {value.sum, value.count})
      if (g.shape(id).rank() != 0)
        fail(ErrorCode::shape, "[step] the scalar {} has a sum or count of {}; both must be single numbers, sums over samples", name, to_string(g.type(id)));
  }
}

}  // namespace

// The graph of the losses for a number of samples, with the leading inputs of every model program.
struct StepPrograms::Trace {
  int64_t samples = 0;
  Graph graph;
  std::vector<NodeId> parameters, batch;
  RandomOperands random{};
  StepLoss loss;
  std::vector<NodeId> gradients;   // only while examined
  std::vector<std::string> notes;  // how loops over time were segmented

  std::vector<NodeId> inputs(NodeId scale = kNone) const {
    std::vector<NodeId> all = parameters;
    all.insert(all.end(), {random.seed, random.step, random.base});
    if (scale) all.push_back(scale);
    all.insert(all.end(), batch.begin(), batch.end());
    return all;
  }
  std::vector<NodeId> roots() const {
    std::vector<NodeId> all = {loss.sum, loss.count};
    for (const StepLoss::Scalar& s : loss.scalars) all.insert(all.end(), {s.value.sum, s.value.count});
    return all;
  }
  void rewrite(const std::vector<NodeId>& roots) {
    loss.sum = roots[0], loss.count = roots[1];
    for (size_t i = 0; i < loss.scalars.size(); ++i) loss.scalars[i].value = {roots[2 * i + 2], roots[2 * i + 3]};
  }
  BatchTrace of_batch() const {
    BatchTrace t{graph, batch, random.base, {{loss.sum, loss.count}}, samples, gradients};
    for (const StepLoss::Scalar& s : loss.scalars) t.ratios.push_back({s.value.sum, s.value.count});
    return t;
  }
};

StepPrograms::Trace StepPrograms::written(int64_t samples, const StepModel::Loss& loss) const {
  Trace t;
  t.samples = samples;
  Graph& g = t.graph;
  for (const Parameter& p : model_.parameters) t.parameters.push_back(g.input({DType::f32, p.shape}, p.name));
  t.random = {g.input({DType::i64, {}}, "seed"), g.input({DType::i64, {}}, "step"), g.input({DType::i64, {}}, "base"), 1};
  for (size_t i = 0; i < model_.batch.size(); ++i) {
    Type type = model_.batch[i];
    type.shape[0] = samples;
    t.batch.push_back(g.input(type, fmt::format("batch {}", i)));
  }
  Builder b(g);
  std::vector<NodeId> used = t.parameters;  // constants have a gradient of 0
  for (size_t i = 0; i < used.size(); ++i)
    if (model_.parameters[i].rule == ParameterRule::constant) used[i] = b.stop_gradient(used[i]);
  t.loss = loss(b, used, t.batch, t.random);
  check_scalars(g, t.loss.scalars);
  return t;
}

// Gives products the step's number format.
std::vector<NodeId> StepPrograms::narrow(Graph& graph, const std::vector<NodeId>& roots) const {
  if (options_.precision != Precision::bf16 && options_.precision != Precision::fp16) return roots;
  return autocast(graph, roots, options_.precision == Precision::bf16 ? DType::bf16 : DType::f16);
}

StepPrograms::Trace StepPrograms::trace(int64_t samples, const StepModel::Loss& loss) const {
  Trace t = written(samples, loss);
  t.rewrite(narrow(t.graph, t.roots()));
  return t;
}

StepPrograms::Trace StepPrograms::trace(int64_t samples, const StepModel::Loss& loss, const LossFacts& facts, Recompute level) const {
  Trace t = written(samples, loss);
  const int64_t whole = model_.batch[0].shape[0];
  if (samples < whole)
    if (const std::string why = find_difference(t, facts); !why.empty())
      fail(ErrorCode::unsupported,
           "[step] the batch of {} cannot be split into parts of {}: {}; train it whole, or change the loss (docs/training.md, Splitting a batch)", whole,
           samples, why);
  t.rewrite(narrow(t.graph, t.roots()));
  Graph& g = t.graph;
  if (samples < whole) {
    bool changed;
    t.rewrite(count_in_whole_batch(g, t.roots(), t.random.base, whole, facts.draws, changed));
  }
  if (has_scan_ && level >= Recompute::segments) {
    SegmentedScans cut = segment_scans(g, t.roots());
    t.rewrite(cut.roots);
    t.notes = std::move(cut.notes);
  }
  return t;
}

namespace {

// Every size of every value, including inside loops.
void collect_sizes(const Graph& g, std::span<const NodeId> roots, std::set<int64_t>& sizes) {
  for (NodeId id : topological(g, roots)) {
    for (const Type& t : g[id].types) sizes.insert(t.shape.begin(), t.shape.end());
    if (g[id].op == Op::scan) collect_sizes(scan_view(g[id]).body.graph, results_of(scan_view(g[id]).body), sizes);
  }
}

}  // namespace

// Gradients are added only for custom operations, the only ones with user code in their gradients.
void StepPrograms::add_gradients(Trace& t) const {
  if (any_node(t.graph, {&t.loss.sum, 1}, [](const Graph&, const Node& n) { return n.op == Op::custom; }))
    t.gradients = gradients(t.graph, t.loss.sum, t.parameters);
}

std::string StepPrograms::find_difference(const Trace& t, const LossFacts& facts) const {
  if (facts.examined.empty()) return "";
  const Trace &a = *facts.examined[0], &b = *facts.examined[1];
  if (t.loss.scalars.size() != a.loss.scalars.size()) return "the number of named scalars depends on the number of samples";
  // Gradients of one sample legitimately sum over fewer axes, so custom operations are not compared for exactly one sample.
  if (a.gradients.empty() || t.samples == 1) return find_unpredicted(a.of_batch(), b.of_batch(), t.of_batch());
  Trace own = t;  // a copy, so that the compiled graph has no unused nodes
  add_gradients(own);
  return find_unpredicted(a.of_batch(), b.of_batch(), own.of_batch());
}

// Traces two batches whose sample counts are primes that divide no other size, so that every size shows whether it counts samples.
// The result must also hold for the sizes that run: the whole batch and single samples are checked here, parts when they are traced.
StepPrograms::LossFacts StepPrograms::examine(const StepModel::Loss& loss) const {
  LossFacts facts;
  const int64_t batch = model_.batch[0].shape[0];
  const Trace whole = written(batch, loss);
  const std::vector<NodeId> losses = whole.roots();
  for (const StepLoss::Scalar& s : whole.loss.scalars) facts.scalars.push_back(s.name);
  for (NodeId id : topological(whole.graph, losses))
    for_each_draw_in(whole.graph, id, [&](const Graph& g, NodeId, const Draw&) { facts.draws_in_loop |= &g != &whole.graph; });
  const std::string mixes = find_coupling(whole.graph, whole.batch, losses);  // in the actual batch size
  facts.coupling = mixes;
  if (batch < 2) return facts;
  std::set<int64_t> sizes;
  collect_sizes(whole.graph, losses, sizes);
  auto usable = [&](int64_t n) {
    for (int64_t d = 2; d * d <= n; ++d)
      if (n % d == 0) return false;
    return std::none_of(sizes.begin(), sizes.end(), [&](int64_t size) { return size > 0 && size % n == 0; });
  };
  int64_t samples[2], n = 2;
  for (int64_t& s : samples) {
    while (!usable(++n)) continue;
    s = n;
  }
  int64_t traced = 0;
  auto written_for = [&](int64_t count) { return written(traced = count, loss); };
  try {
    Trace a = written_for(samples[0]), b = written_for(samples[1]);
    if (a.loss.scalars.size() != b.loss.scalars.size()) fail(ErrorCode::value, "[step] the number of named scalars depends on the number of samples");
    add_gradients(a), add_gradients(b);
    static_cast<BatchAxes&>(facts) = follow_batch(a.of_batch(), b.of_batch());
    if (facts.coupling.empty()) {
      facts.examined = {std::make_shared<const Trace>(a), std::make_shared<const Trace>(std::move(b))};
      facts.coupling = find_difference(whole, facts);
    }
    if (facts.coupling.empty() && options_.evaluation) facts.coupling = find_difference(written_for(1), facts);
    if (facts.coupling.empty()) count_in_whole_batch(a.graph, a.roots(), a.random.base, samples[1], facts.draws, facts.recounts);
  } catch (const std::exception& error) {  // includes exceptions from user code
    facts.coupling = fmt::format("with {} instead of {} it fails: {}", counted(traced, "sample"), batch, error.what());
  }
  if (!facts.coupling.empty()) facts.examined.clear();
  if (!facts.coupling.empty() && !mixes.empty()) facts.coupling = mixes;
  return facts;
}

std::string StepPrograms::redrawn(bool split, bool evaluation_split) const {
  if (training_.draws_in_loop || evaluated().draws_in_loop) return "random numbers inside loops now differ in every step";
  if ((split && training_.recounts) || (evaluation_split && evaluated().recounts))
    return "random numbers of split batches now count samples of the whole batch";
  return "";
}

StepPrograms::StepPrograms(const StepModel& model, const StepOptions& options) : model_(model), options_(options) {
  if (options.precision == Precision::tf32 && options.backend->host_memory())
    fail(ErrorCode::unsupported, "[step] tf32 is a GPU format; on the CPU use fp32, bf16 or fp16");
  check_settings(options);
  const int64_t batch = model.batch[0].shape[0];
  if (options.optimizer.kind == Optimizer::Kind::muon) {
    const Trace t = written(batch, model.loss);
    matrices_ = hidden_matrices(t.graph, t.loss.sum, t.parameters);
  }
  const Trace t = trace(batch, model.loss);
  const std::vector<NodeId> losses = t.roots();
  training_ = examine(model.loss);
  const std::vector<NodeId> order = topological(t.graph, losses);
  has_scan_ = std::any_of(order.begin(), order.end(), [&](NodeId id) { return t.graph[id].op == Op::scan; });
  multiplies_bf16_ = finds_bf16_products(t.graph, losses);
  const Node& count = t.graph[t.loss.count];
  const double expected = count.op == Op::literal ? count.attrs.reals[0] : double(batch);
  divisor_ = std::exp2(std::floor(std::log2(std::max(expected, 1.0))));
  if (has_own_evaluation()) {
    const Trace e = trace(batch, model.evaluate);
    evaluation_ = examine(model.evaluate);
    multiplies_bf16_ |= finds_bf16_products(e.graph, e.roots());
  }
}

int StepPrograms::moments(size_t parameter) const {
  const Optimizer& o = options_.optimizer;
  return o.kind == Optimizer::Kind::sgd ? o.momentum > 0 : 2 - is_matrix(parameter);
}

std::string StepPrograms::updates() const {
  if (options_.optimizer.kind != Optimizer::Kind::muon) return "";
  int64_t tensors = 0, numbers = 0, all = 0;
  for (size_t i = 0; i < matrices_.size(); ++i) {
    const int64_t size = model_.parameters[i].shape.numel();
    all += size;
    if (is_matrix(i)) ++tensors, numbers += size;
  }
  if (!tensors) return "no hidden layer has a weight matrix, so AdamW updates everything";
  return fmt::format("{} of hidden layers with {} of {} parameters; AdamW updates the others", tensors == 1 ? "1 matrix" : fmt::format("{} matrices", tensors),
                     grouped(numbers), grouped(all));
}

CompileOptions StepPrograms::compile_options() const {
  CompileOptions o(*options_.backend);
  o.passes = options_.passes;
  return o;
}

std::unique_ptr<Executable> StepPrograms::body(int64_t samples, bool accumulate, Recompute level, std::vector<std::string>* notes) const {
  Trace t = trace(samples, model_.loss, training_, level);
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
  o.forward = t.roots();
  std::vector<NodeId> inputs = t.inputs(scale), outputs;
  std::vector<NodeId> sums = t.roots();
  for (NodeId& sum : sums) sum = b.cast(sum, DType::f32);
  if (accumulate) {
    auto add_to = [&](NodeId part, const std::string& name) {
      const NodeId so_far = g.input(g.type(part), name);
      o.state.push_back({int(inputs.size()), int(outputs.size())});
      inputs.push_back(so_far);
      outputs.push_back(b.add(so_far, part));
    };
    for (size_t i = 0; i < grads.size(); ++i) add_to(grads[i], "gradient of " + model_.parameters[i].name);
    for (NodeId part : sums) add_to(part, "loss so far");
  } else {
    outputs = grads;
    outputs.insert(outputs.end(), sums.begin(), sums.end());
  }
  if (options_.join_samples && !options_.backend->host_memory() && options_.precision == Precision::fp32) {
    outputs = join_rows(g, outputs, t.batch);
    o.forward.clear();
  }
  return std::make_unique<Executable>(g, inputs, outputs, o);
}

std::unique_ptr<Executable> StepPrograms::evaluation(int64_t samples, Recompute level) const {
  Trace t = trace(samples, model_.evaluate ? model_.evaluate : model_.loss, evaluated(), level);
  Builder b(t.graph);
  std::vector<NodeId> outputs = t.roots();
  for (NodeId& sum : outputs) sum = b.cast(sum, DType::f32);
  return std::make_unique<Executable>(t.graph, t.inputs(), outputs, compile_options());
}

// The scale is lowered if gradients overflow although the loss is finite; a non-finite loss is unrelated to the scale.
StepPrograms::ScaleNodes StepPrograms::next_scale(Builder& b, NodeId scale, NodeId age, NodeId norm_finite, NodeId loss_finite, NodeId good) const {
  const LossScaleOptions& s = options_.loss_scale;
  const NodeId overflow = b.binary(Op::logical_and, b.unary(Op::logical_not, norm_finite), loss_finite);
  const NodeId lowered = b.binary(Op::logical_and, overflow, b.binary(Op::greater, scale, s.floor));
  const NodeId older = b.add(age, 1.0);
  const NodeId grown = b.binary(Op::logical_and, good, b.binary(Op::greater_equal, older, double(s.growth_interval)));
  const NodeId zero = b.literal(DType::i64, 0);
  const NodeId next =
      b.select(grown, b.binary(Op::minimum, b.mul(scale, 2.0), s.cap), b.select(lowered, b.binary(Op::maximum, b.mul(scale, 0.5), s.floor), scale));
  return {next, b.select(b.binary(Op::logical_or, grown, overflow), zero, b.select(good, older, age)), lowered};
}

// An update program under construction.
struct StepPrograms::Update {
  Update(CompileOptions o, std::shared_ptr<Arena> arena) : options(std::move(o)) { options.arena = std::move(arena); }

  Graph graph;
  Builder b{graph};
  CompileOptions options;
  std::vector<NodeId> inputs, outputs, parameters, gradients;
  std::array<std::vector<NodeId>, kMaxMoments> moments;
  NodeId applied = kNone, lr = kNone, sum = kNone, count = kNone, scale = kNone, age = kNone;

  void add(std::vector<NodeId>& list, std::span<const Parameter> all, const char* what) {
    for (const Parameter& p : all) list.push_back(graph.input({DType::f32, p.shape}, what + p.name));
    inputs.insert(inputs.end(), list.begin(), list.end());
  }
  NodeId scalar(DType dtype, const char* name) {
    inputs.push_back(graph.input({dtype, {}}, name));
    return inputs.back();
  }
  // Program inputs: parameters, moments and gradients of parameters [first, last). Moments that the optimizer does not keep are kNone.
  void add_state(const StepPrograms& p, size_t first, size_t last) {
    const std::span<const Parameter> some = std::span(p.model_.parameters).subspan(first, last - first);
    add(parameters, some, "");
    for (int m = 0; m < kMaxMoments; ++m)
      for (size_t i = 0; i < some.size(); ++i) {
        const bool kept = m < p.moments(first + i);
        moments[m].push_back(kept ? graph.input({DType::f32, some[i].shape}, "moment of " + some[i].name) : kNone);
        if (kept) inputs.push_back(moments[m].back());
      }
    add(gradients, some, "gradient of ");
  }
  std::unique_ptr<Executable> compile() { return std::make_unique<Executable>(graph, inputs, outputs, options); }
};

struct StepPrograms::CheckedGradients {
  NodeId loss, norm, good;
  NodeId factor;  // multiplier of the gradients
  std::optional<ScaleNodes> scale;
};

// Reads all gradients once.
StepPrograms::CheckedGradients StepPrograms::check_gradients(Update& u) const {
  Builder& b = u.b;
  const NodeId per_loss = b.binary(Op::div, 1.0, b.binary(Op::maximum, u.count, 1.0));
  const NodeId unscale = u.scale ? b.mul(per_loss, b.binary(Op::div, divisor_, u.scale)) : per_loss;
  std::vector<NodeId> mean;
  for (NodeId d : u.gradients) mean.push_back(b.mul(d, unscale));
  CheckedGradients j{};
  j.norm = global_norm(b, mean), j.loss = b.mul(u.sum, per_loss);
  const NodeId norm_finite = b.unary(Op::is_finite, j.norm), loss_finite = b.unary(Op::is_finite, j.loss);
  j.good = b.binary(Op::logical_and, norm_finite, loss_finite);
  // The norm and the loss cover gradients and the sum. An infinite count would turn both into zeros, and neither includes the rate.
  for (const NodeId operand : {u.lr, u.count, u.scale})
    if (operand) j.good = b.binary(Op::logical_and, j.good, b.unary(Op::is_finite, operand));
  j.factor = unscale;
  if (options_.clip > 0) {
    NodeId coefficient = b.binary(Op::minimum, b.binary(Op::div, options_.clip, b.add(j.norm, 1e-6)), 1.0);
    j.factor = b.mul(unscale, coefficient);  // one scalar, so that gradients are scaled once
  }
  if (u.scale) j.scale = next_scale(b, u.scale, u.age, norm_finite, loss_finite, j.good);
  return j;
}

namespace {

template <class T>
std::vector<T> pick(const std::vector<T>& from, const std::vector<size_t>& which) {
  std::vector<T> some;
  for (size_t i : which) some.push_back(from[i]);
  return some;
}

void put(std::vector<NodeId>& to, const std::vector<size_t>& which, const std::vector<NodeId>& some) {
  for (size_t i = 0; i < some.size(); ++i) to[which[i]] = some[i];
}

}  // namespace

// Adds the new parameters and moments as the program's first outputs.
NodeId StepPrograms::apply(Update& u, size_t first, size_t last, NodeId good, NodeId factor) const {
  Builder& b = u.b;
  const std::span<const Parameter> parameters = std::span(model_.parameters).subspan(first, last - first);
  std::vector<NodeId> mean;
  for (NodeId d : u.gradients) mean.push_back(b.mul(d, factor));
  const std::vector<double> decay = decay_values(parameters, options_.optimizer.decay);
  const Optimizer& opt = options_.optimizer;
  NodeId applied = kNone;
  std::vector<NodeId> next_parameters = u.parameters;
  auto moments = u.moments;
  if (opt.kind == Optimizer::Kind::sgd) {
    SgdState s{u.parameters, opt.momentum > 0 ? u.moments[0] : std::vector<NodeId>{}};
    SgdState next = sgd(b, s, mean, u.lr, decay, {opt.momentum, opt.nesterov}, good);
    next_parameters = next.parameters, moments[0] = next.momentum;
    applied = b.select(good, b.add(u.applied, 1.0), u.applied);
  } else {
    std::vector<size_t> matrices, others;
    for (size_t i = 0; i < parameters.size(); ++i) (is_matrix(first + i) ? matrices : others).push_back(i);
    MuonState m{pick(u.parameters, matrices), pick(u.moments[0], matrices)};
    MuonState turned = muon(b, m, pick(mean, matrices), u.lr, pick(decay, matrices), {opt.momentum, opt.nesterov, opt.scale}, good);
    put(next_parameters, matrices, turned.parameters), put(moments[0], matrices, turned.momentum);
    AdamState s{pick(u.parameters, others), pick(u.moments[0], others), pick(u.moments[1], others), u.applied};
    const std::vector<NodeId> means = pick(mean, others);
    const std::vector<double> decays = pick(decay, others);
    const AdamOptions a{opt.beta1, opt.beta2, opt.eps};
    AdamState next = opt.kind == Optimizer::Kind::adam ? adam(b, s, means, u.lr, decays, a, good) : adamw(b, s, means, u.lr, decays, a, good);
    put(next_parameters, others, next.parameters), put(moments[0], others, next.first), put(moments[1], others, next.second);
    applied = next.applied;
  }
  u.outputs = next_parameters;
  for (const std::vector<NodeId>& list : moments) std::copy_if(list.begin(), list.end(), std::back_inserter(u.outputs), [](NodeId id) { return id != kNone; });
  if (!matrices_.empty()) u.outputs = narrow(u.graph, u.outputs);
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].rule == ParameterRule::nonnegative) u.outputs[i] = b.binary(Op::maximum, u.outputs[i], 0.0);
    if (parameters[i].rule == ParameterRule::constant) u.outputs[i] = u.parameters[i];
  }
  for (size_t i = 0; i < u.outputs.size(); ++i) u.options.state.push_back({int(i), int(i)});
  return applied;
}

std::unique_ptr<Executable> StepPrograms::update(std::shared_ptr<Arena> arena) const {
  Update u(compile_options(), std::move(arena));
  u.add_state(*this, 0, model_.parameters.size());
  u.applied = u.scalar(DType::i64, "applied"), u.lr = u.scalar(DType::f32, "lr");
  u.sum = u.scalar(DType::f32, "sum"), u.count = u.scalar(DType::f32, "count");
  if (scaled()) u.scale = u.scalar(DType::f32, "loss scale"), u.age = u.scalar(DType::i64, "age of the loss scale");
  const CheckedGradients j = check_gradients(u);
  const NodeId applied = apply(u, 0, model_.parameters.size(), j.good, j.factor);
  u.outputs.insert(u.outputs.end(), {applied, j.loss, j.norm, j.good});
  if (j.scale) u.outputs.insert(u.outputs.end(), {j.scale->next, j.scale->age, j.scale->lowered});
  return u.compile();
}

std::unique_ptr<Executable> StepPrograms::gradient_check(std::shared_ptr<Arena> arena) const {
  Update u(compile_options(), std::move(arena));
  u.add(u.gradients, model_.parameters, "gradient of ");
  u.applied = u.scalar(DType::i64, "applied"), u.lr = u.scalar(DType::f32, "lr");
  u.sum = u.scalar(DType::f32, "sum"), u.count = u.scalar(DType::f32, "count");
  if (scaled()) u.scale = u.scalar(DType::f32, "loss scale"), u.age = u.scalar(DType::i64, "age of the loss scale");
  const CheckedGradients j = check_gradients(u);
  u.outputs = {u.b.select(j.good, u.b.add(u.applied, 1.0), u.applied), j.loss, j.norm, j.good, j.factor};
  if (j.scale) u.outputs.insert(u.outputs.end(), {j.scale->next, j.scale->age, j.scale->lowered});
  return u.compile();
}

std::unique_ptr<Executable> StepPrograms::update_part(std::shared_ptr<Arena> arena, size_t first, size_t last) const {
  Update u(compile_options(), std::move(arena));
  u.add_state(*this, first, last);
  u.applied = u.scalar(DType::i64, "applied"), u.lr = u.scalar(DType::f32, "lr");
  const NodeId good = u.scalar(DType::boolean, "good"), factor = u.scalar(DType::f32, "factor");
  apply(u, first, last, good, factor);
  return u.compile();
}

}  // namespace ridge
