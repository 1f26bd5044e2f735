#include "train/step.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "autograd/gradients.h"
#include "base/error.h"
#include "compile/batch_axis.h"
#include "compile/plan_memory.h"
#include "compile/scan_segments.h"
#include "optim/adamw.h"
#include "optim/clip.h"
#include "optim/sgd.h"
#include "runtime/arena.h"
#include "runtime/executable.h"

namespace ridge {
namespace {

// Rounded up, so that a size that is quoted as enough is enough.
std::string size_text(int64_t bytes) {
  constexpr double kKiB = 1024, kMiB = 1024 * kKiB;
  return double(bytes) < 10 * kMiB ? fmt::format("{:.0f} KiB", std::ceil(double(bytes) / kKiB))
                                   : fmt::format("{:.1f} MiB", std::ceil(double(bytes) / kMiB * 10) / 10);
}

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Scalars that a step reads and writes: all in one small block.
struct Scalars {
  int64_t seed, step, base, applied, next_applied;
  float lr, sum, count, next_sum, next_count, loss, norm;
  uint8_t good;
};

}  // namespace

struct TrainStep::State {
  struct Body {
    int64_t samples;
    std::unique_ptr<Executable> exe;
  };

  StepModel model;
  StepOptions options;
  StepPlan plan;
  int moments = 2;
  std::vector<Body> bodies;  // one, or two with a remainder
  std::unique_ptr<Executable> update;
  std::shared_ptr<Arena> activations = std::make_shared<Arena>();
  Arena memory;  // parameters, gradients, moments, scalars
  std::vector<int64_t> parameter_at, gradient_at;
  std::vector<std::vector<int64_t>> moment_at;
  int64_t scalars_at = 0;
  int64_t steps_done = 0;
  bool has_scan = false;
  std::vector<std::string> stretches;  // how loops over time were cut
  std::vector<const void*> in;
  std::vector<void*> out;

  template <class T>
  T* at(int64_t offset) {
    return reinterpret_cast<T*>(memory.data() + offset);
  }
  Scalars& scalars() { return *at<Scalars>(scalars_at); }

  void lay_out() {
    moments = options.optimizer.kind == OptimizerOptions::Kind::sgd ? (options.optimizer.momentum > 0 ? 1 : 0) : 2;
    int64_t offset = 0;
    auto place = [&](std::vector<int64_t>& list) {
      int64_t start = offset;
      for (const Parameter& p : model.parameters) list.push_back(offset), offset += aligned(p.shape.numel() * int64_t(sizeof(float)));
      return offset - start;
    };
    plan.parameter_bytes = place(parameter_at);
    plan.gradient_bytes = place(gradient_at);
    moment_at.resize(size_t(moments));
    for (auto& list : moment_at) plan.optimizer_bytes += place(list);
    scalars_at = offset;
    memory.require(offset + aligned(int64_t(sizeof(Scalars))));
  }

  // With `coupling` it only looks for what mixes samples, and whether there is a loop over time.
  // Inputs: parameters, seed, step, base, batch…; with accumulation also gradients, sum, count, which are overwritten.
  // Outputs: gradients, sum, count.
  std::unique_ptr<Executable> make_body(int64_t samples, bool accumulate, Recompute level, std::string* coupling = nullptr) {
    Graph g;
    Builder b(g);
    std::vector<NodeId> params, inputs, batch, outputs;
    for (const Parameter& p : model.parameters) params.push_back(g.input({DType::f32, p.shape}, p.name));
    RandomOperands random{g.input({DType::i64, {}}, "seed"), g.input({DType::i64, {}}, "step"), g.input({DType::i64, {}}, "base"), 1};
    for (size_t i = 0; i < model.batch.size(); ++i) {
      Type t = model.batch[i];
      t.shape[0] = samples;
      batch.push_back(g.input(t, fmt::format("batch {}", i)));
    }
    Builder::SumCount loss = model.loss(b, params, batch, random);
    if (coupling) {
      NodeId both[] = {loss.sum, loss.count};
      *coupling = find_coupling(g, batch, both);
      std::vector<NodeId> order = topological(g, both);
      has_scan = std::any_of(order.begin(), order.end(), [&](NodeId id) { return g[id].op == Op::scan; });
      return nullptr;
    }
    if (has_scan && level >= Recompute::segments) {
      NodeId both[] = {loss.sum, loss.count};
      SegmentedScans cut = segment_scans(g, both);
      loss = {cut.roots[0], cut.roots[1]};
      stretches = std::move(cut.notes);
    }
    std::vector<NodeId> grads = gradients(g, loss.sum, params);
    CompileOptions o;
    o.passes = options.passes, o.team = options.team, o.recompute = level;
    o.forward = {loss.sum, loss.count};
    inputs = params;
    inputs.insert(inputs.end(), {random.seed, random.step, random.base});
    inputs.insert(inputs.end(), batch.begin(), batch.end());
    NodeId sum = b.cast(loss.sum, DType::f32), count = b.cast(loss.count, DType::f32);
    if (accumulate) {
      for (size_t i = 0; i < grads.size(); ++i) {
        NodeId acc = g.input({DType::f32, model.parameters[i].shape}, "gradient of " + model.parameters[i].name);
        o.state.push_back({int(inputs.size()), int(i)});
        inputs.push_back(acc);
        outputs.push_back(b.add(acc, grads[i]));
      }
      for (NodeId part : {sum, count}) {
        NodeId acc = g.input({DType::f32, {}}, "loss so far");
        o.state.push_back({int(inputs.size()), int(outputs.size())});
        inputs.push_back(acc);
        outputs.push_back(b.add(acc, part));
      }
    } else {
      outputs = grads;
      outputs.insert(outputs.end(), {sum, count});
    }
    return std::make_unique<Executable>(g, inputs, outputs, o);
  }

  // Inputs: parameters, moments…, gradients, applied, lr, sum, count. Outputs: parameters, moments…, applied, loss, norm, good.
  void make_update() {
    Graph g;
    Builder b(g);
    CompileOptions o;
    o.passes = options.passes, o.team = options.team, o.arena = activations;
    std::vector<NodeId> params, grads, inputs, outputs;
    std::vector<std::vector<NodeId>> moment(static_cast<size_t>(moments));
    auto all = [&](std::vector<NodeId>& list, const char* what) {
      for (const Parameter& p : model.parameters) list.push_back(g.input({DType::f32, p.shape}, what + p.name));
      inputs.insert(inputs.end(), list.begin(), list.end());
    };
    all(params, "");
    for (auto& m : moment) all(m, "moment of ");
    size_t state = inputs.size();
    all(grads, "gradient of ");
    NodeId applied = g.input({DType::i64, {}}, "applied"), lr = g.input({DType::f32, {}}, "lr"), sum = g.input({DType::f32, {}}, "sum"),
           count = g.input({DType::f32, {}}, "count");
    inputs.insert(inputs.end(), {applied, lr, sum, count});
    std::vector<NodeId> mean;
    NodeId scale = b.binary(Op::div, 1.0, b.binary(Op::maximum, count, 1.0));
    for (NodeId d : grads) mean.push_back(b.mul(d, scale));
    NodeId norm = global_norm(b, mean), loss = b.mul(sum, scale);
    NodeId good = b.binary(Op::logical_and, b.unary(Op::is_finite, norm), b.unary(Op::is_finite, loss));
    if (options.clip > 0) {
      NodeId coefficient = b.binary(Op::minimum, b.binary(Op::div, options.clip, b.add(norm, 1e-6)), 1.0);
      NodeId both = b.mul(scale, coefficient);  // one scalar, so that gradients are scaled once
      for (size_t i = 0; i < grads.size(); ++i) mean[i] = b.mul(grads[i], both);
    }
    std::vector<double> decay = decay_values(model.parameters, options.optimizer.decay);
    const OptimizerOptions& opt = options.optimizer;
    if (opt.kind == OptimizerOptions::Kind::sgd) {
      SgdState s{params, moments ? moment[0] : std::vector<NodeId>{}};
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
    update = std::make_unique<Executable>(g, inputs, outputs, o);
  }

  int64_t held(int64_t arena, int64_t scratch) const { return memory.bytes() + std::max(arena, update->report().arena_bytes) + scratch; }

  struct Try {
    int64_t micro;
    Recompute level;
    std::unique_ptr<Executable> exe;
    int64_t bytes;
  };
  Try attempt(int64_t micro, Recompute level) {
    Try t{micro, level, make_body(micro, micro < plan.batch, level), 0};
    t.bytes = held(t.exe->report().arena_bytes, t.exe->report().scratch_bytes);
    plan.decisions.push_back(fmt::format("tried micro-batch {} with recompute={}: {}", micro, name(level), size_text(t.bytes)));
    return t;
  }

  void choose() {
    std::string coupling;
    make_body(plan.batch, false, Recompute::free, &coupling);
    auto refuse_split = [&] {
      if (!coupling.empty())
        fail(ErrorCode::unsupported, "[step] the batch of {} cannot be split: {}; ask for the whole batch or use a norm over features", plan.batch, coupling);
    };
    int64_t limit = options.memory > 0 ? options.memory : std::numeric_limits<int64_t>::max();
    std::vector<Recompute> levels = {Recompute::free, Recompute::elementwise, Recompute::attention};
    if (has_scan) levels.push_back(Recompute::segments);
    if (options.recompute) levels = {*options.recompute};
    if (options.micro > 0) {
      if (options.micro < plan.batch) refuse_split();
      take(attempt(std::min(options.micro, plan.batch), levels[0]), "asked for");
      return;
    }
    int64_t least = std::numeric_limits<int64_t>::max();
    for (Recompute level : levels) {
      Try t = attempt(plan.batch, level);
      least = std::min(least, t.bytes);
      if (t.bytes <= limit) return take(std::move(t), level == Recompute::free ? "it fits whole" : "recomputing makes it fit whole");
    }
    // A loop runs all its steps again for every micro-batch, so what allows the largest one comes first there.
    if (has_scan) std::reverse(levels.begin(), levels.end());
    if (coupling.empty())
      for (Recompute level : levels) {  // the largest micro-batch that fits, by halving
        int64_t low = 0, high = plan.batch;
        std::optional<Try> best;
        while (high - low > 1) {
          int64_t middle = (low + high) / 2;
          Try t = attempt(middle, level);
          least = std::min(least, t.bytes);
          if (t.bytes <= limit)
            low = middle, best = std::move(t);
          else
            high = middle;
        }
        if (!best) continue;
        // Equal parts where it costs nothing: no smaller remainder than needed.
        int64_t parts = (plan.batch + low - 1) / low, even = (plan.batch + parts - 1) / parts;
        return take(even == low ? std::move(*best) : attempt(even, level), "the largest micro-batch that fits");
      }
    if (!options.recompute) {
      Try t = attempt(coupling.empty() ? 1 : plan.batch, Recompute::layers);
      least = std::min(least, t.bytes);
      if (t.bytes <= limit) return take(std::move(t), "only with everything recomputed");
    }
    refuse_split();
    fail(ErrorCode::memory,
         "[step] the budget of {} is too small: parameters, gradients and moments take {}, and one sample at a time {} in all; the smallest budget that works "
         "is {}",
         size_text(limit), size_text(plan.parameter_bytes + plan.gradient_bytes + plan.optimizer_bytes), size_text(least), size_text(least));
  }

  void take(Try t, const std::string& why) {
    plan.micro = t.micro, plan.recompute = t.level;
    plan.repeats = plan.batch / t.micro, plan.remainder = plan.batch % t.micro;
    bodies.push_back({t.micro, std::move(t.exe)});
    if (plan.remainder) bodies.push_back({plan.remainder, make_body(plan.remainder, true, t.level)});
    for (Body& body : bodies) body.exe->share(activations);
    plan.decisions.push_back(fmt::format("micro-batch {} of {}, recompute={}: {}", t.micro, plan.batch, name(t.level), why));
    if (t.level >= Recompute::segments) plan.decisions.insert(plan.decisions.end(), stretches.begin(), stretches.end());
    const std::vector<std::string>& moved = bodies[0].exe->report().scans;
    plan.decisions.insert(plan.decisions.end(), moved.begin(), moved.end());
    plan.scratch_bytes = update->report().scratch_bytes;
    for (const Body& body : bodies) {
      plan.scratch_bytes = std::max(plan.scratch_bytes, body.exe->report().scratch_bytes);
      int64_t times = body.samples == t.micro ? plan.repeats : 1;
      plan.kernels += int(times * int64_t(body.exe->report().kernels.size()));
      for (const KernelReport& k : body.exe->report().kernels) plan.flops += k.flops * double(times);
      plan.compile_ms += body.exe->report().compile_ms;
    }
    plan.kernels += int(update->report().kernels.size());
    plan.compile_ms += update->report().compile_ms;
    plan.activation_bytes = activations->bytes();
    plan.planned_bytes = memory.bytes() + activations->bytes() + plan.scratch_bytes;
  }

  void run_body(Body& body, std::span<const void* const> batch, int64_t first) {
    Scalars& s = scalars();
    s.base = first;
    in.clear(), out.clear();
    for (int64_t at_ : parameter_at) in.push_back(at<float>(at_));
    in.insert(in.end(), {&s.seed, &s.step, &s.base});
    for (size_t i = 0; i < batch.size(); ++i) {
      int64_t row = model.batch[i].bytes() / model.batch[i].shape[0];
      in.push_back(static_cast<const std::byte*>(batch[i]) + first * row);
    }
    for (int64_t at_ : gradient_at) out.push_back(at<float>(at_));
    out.insert(out.end(), {&s.sum, &s.count});
    if (plan.micro < plan.batch) in.insert(in.end(), out.begin(), out.end());
    body.exe->run(in, out);
  }
};

TrainStep::TrainStep(StepModel model, StepOptions options) : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.model = std::move(model), s.options = std::move(options);
  if (s.model.parameters.empty()) fail(ErrorCode::value, "[step] the model has no parameters to train");
  if (s.model.batch.empty()) fail(ErrorCode::value, "[step] the batch has no tensors");
  for (const Type& t : s.model.batch)
    if (t.shape.rank() == 0 || t.shape[0] != s.model.batch[0].shape[0] || t.shape[0] < 1)
      fail(ErrorCode::shape, "[step] batch tensors need the samples as their first axis: {} and {}", to_string(s.model.batch[0]), to_string(t));
  s.plan.batch = s.model.batch[0].shape[0];
  s.lay_out();
  s.make_update();
  s.choose();
  size_t most = 4 * s.model.parameters.size() + s.model.batch.size() + 16;
  s.in.reserve(most), s.out.reserve(most);
}

TrainStep::~TrainStep() = default;
TrainStep::TrainStep(TrainStep&&) noexcept = default;

StepMetrics TrainStep::run(std::span<const void* const> batch) { return run(batch, state_->options.optimizer.lr); }

StepMetrics TrainStep::run(std::span<const void* const> batch, double lr) {
  State& s = *state_;
  if (batch.size() != s.model.batch.size()) fail(ErrorCode::binding, "[step] got {} batch tensors, the step has {}", batch.size(), s.model.batch.size());
  Scalars& v = s.scalars();
  v.seed = int64_t(s.options.seed), v.step = s.steps_done++, v.lr = float(lr);
  v.sum = v.count = 0;
  if (s.plan.micro < s.plan.batch) std::memset(s.at<std::byte>(s.gradient_at[0]), 0, size_t(s.plan.gradient_bytes));
  int64_t first = 0;
  for (int64_t i = 0; i < s.plan.repeats; ++i, first += s.plan.micro) s.run_body(s.bodies[0], batch, first);
  if (s.plan.remainder) s.run_body(s.bodies[1], batch, first);
  s.in.clear(), s.out.clear();
  for (int64_t at : s.parameter_at) s.in.push_back(s.at<float>(at));
  for (auto& list : s.moment_at)
    for (int64_t at : list) s.in.push_back(s.at<float>(at));
  for (const void* p : s.in) s.out.push_back(const_cast<void*>(p));
  for (int64_t at : s.gradient_at) s.in.push_back(s.at<float>(at));
  s.in.insert(s.in.end(), {&v.applied, &v.lr, &v.sum, &v.count});
  s.out.insert(s.out.end(), {&v.next_applied, &v.loss, &v.norm, &v.good});
  s.update->run(s.in, s.out);
  v.applied = v.next_applied;
  return {v.loss, v.norm, v.good != 0};
}

const StepPlan& TrainStep::plan() const { return state_->plan; }
std::span<float> TrainStep::parameter(size_t i) { return {state_->at<float>(state_->parameter_at[i]), size_t(state_->model.parameters[i].shape.numel())}; }
std::span<float> TrainStep::gradient(size_t i) { return {state_->at<float>(state_->gradient_at[i]), size_t(state_->model.parameters[i].shape.numel())}; }
std::span<float> TrainStep::moment(size_t i, int which) {
  return {state_->at<float>(state_->moment_at[size_t(which)][i]), size_t(state_->model.parameters[i].shape.numel())};
}

double TrainStep::least_seconds(double flops_per_second, double bytes_per_second) const {
  const State& s = *state_;
  auto least = [&](const Executable& exe) {
    double sum = 0;
    for (const KernelReport& k : exe.report().kernels) sum += std::max(k.flops / flops_per_second, k.bytes / bytes_per_second);
    return sum;
  };
  double sum = least(*s.update);
  for (const auto& body : s.bodies) sum += least(*body.exe) * (body.samples == s.plan.micro ? double(s.plan.repeats) : 1.0);
  return sum;
}

std::string TrainStep::dump() const { return state_->bodies[0].exe->dump() + "update\n" + state_->update->dump(); }

std::string TrainStep::report() const {
  const State& s = *state_;
  const StepPlan& p = s.plan;
  std::string text = fmt::format("step: batch {} = {} x {}{}, recompute {}\n", p.batch, p.repeats, p.micro,
                                 p.remainder ? fmt::format(" + {}", p.remainder) : "", name(p.recompute));
  auto line = [&](const char* what, int64_t bytes) { text += fmt::format("  {:<12} {:>12}\n", what, size_text(bytes)); };
  line("parameters", p.parameter_bytes), line("gradients", p.gradient_bytes), line("optimizer", p.optimizer_bytes), line("activations", p.activation_bytes),
      line("scratch", p.scratch_bytes);
  line("planned", p.planned_bytes);
  std::map<std::string, std::pair<int, double>> kinds;
  for (const KernelReport& k : s.bodies[0].exe->report().kernels) {
    auto& [count, flops] = kinds[k.name.substr(0, k.name.find_first_of("[+x"))];
    ++count, flops += k.flops;
  }
  text += fmt::format("kernels: {} in a step, {:.3g} MFLOP, compiled in {:.0f} ms;", p.kernels, p.flops / 1e6, p.compile_ms);
  for (auto& [kind, sums] : kinds) text += fmt::format(" {} {}", sums.first, kind);
  text += fmt::format("; update {}\n", s.update->report().kernels.size());
  for (const std::string& d : p.decisions) text += "  " + d + "\n";
  return text;
}

}  // namespace ridge
