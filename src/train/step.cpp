#include "train/step.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "base/error.h"
#include "compile/plan_memory.h"
#include "runtime/default_team.h"
#include "runtime/thread_team.h"
#include "train/step_planner.h"

namespace ridge {
namespace {

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Scalars that a step reads and writes: all in one small block.
struct Scalars {
  int64_t seed, step, base, applied, next_applied, age, next_age;
  float lr, sum, count, loss, norm, scale, next_scale;
  uint8_t good, lowered;
};

}  // namespace

struct TrainStep::State {
  StepModel model;
  StepOptions options;
  StepPlan plan;
  StepState now;
  std::optional<StepPrograms> programs;
  PlannedStep made;
  Arena memory;  // parameters, gradients, moments, scalars
  std::vector<int64_t> parameter_at, gradient_at;
  std::vector<std::vector<int64_t>> moment_at;
  int64_t scalars_at = 0;
  std::vector<const void*> in;
  std::vector<void*> out;

  template <class T>
  T* at(int64_t offset) {
    return reinterpret_cast<T*>(memory.data() + offset);
  }
  Scalars& scalars() { return *at<Scalars>(scalars_at); }

  void lay_out() {
    int64_t offset = 0;
    auto place = [&](std::vector<int64_t>& list) {
      int64_t start = offset;
      for (const Parameter& p : model.parameters) list.push_back(offset), offset += aligned(p.shape.numel() * int64_t(sizeof(float)));
      return offset - start;
    };
    plan.parameter_bytes = place(parameter_at);
    plan.gradient_bytes = place(gradient_at);
    moment_at.resize(size_t(programs->moments()));
    for (auto& list : moment_at) plan.optimizer_bytes += place(list);
    scalars_at = offset;
    memory.require(offset + aligned(int64_t(sizeof(Scalars))));
  }

  // The inputs that every program of the model begins with, for the samples from `first` on.
  void bind(std::span<const void* const> batch, int64_t first, bool scale) {
    Scalars& s = scalars();
    s.seed = int64_t(options.seed), s.step = now.attempted, s.base = first;
    in.clear(), out.clear();
    for (int64_t at_ : parameter_at) in.push_back(at<float>(at_));
    in.insert(in.end(), {&s.seed, &s.step, &s.base});
    if (scale) in.push_back(&s.scale);
    for (size_t i = 0; i < batch.size(); ++i) {
      int64_t row = model.batch[i].bytes() / model.batch[i].shape[0];
      in.push_back(static_cast<const std::byte*>(batch[i]) + first * row);
    }
  }

  void run_body(StepBody& body, std::span<const void* const> batch, int64_t first) {
    Scalars& s = scalars();
    bind(batch, first, programs->scaled());
    for (int64_t at_ : gradient_at) out.push_back(at<float>(at_));
    out.insert(out.end(), {&s.sum, &s.count});
    if (plan.micro < plan.batch) in.insert(in.end(), out.begin(), out.end());
    body.exe->run(in, out);
  }

  void run_update() {
    Scalars& s = scalars();
    in.clear(), out.clear();
    for (int64_t at_ : parameter_at) in.push_back(at<float>(at_));
    for (auto& list : moment_at)
      for (int64_t at_ : list) in.push_back(at<float>(at_));
    for (const void* p : in) out.push_back(const_cast<void*>(p));
    for (int64_t at_ : gradient_at) in.push_back(at<float>(at_));
    in.insert(in.end(), {&s.applied, &s.lr, &s.sum, &s.count});
    out.insert(out.end(), {&s.next_applied, &s.loss, &s.norm, &s.good});
    if (programs->scaled()) {
      in.insert(in.end(), {&s.scale, &s.age});
      out.insert(out.end(), {&s.next_scale, &s.next_age, &s.lowered});
    }
    made.update->run(in, out);
  }

  void check(std::span<const void* const> batch) const {
    if (batch.size() != model.batch.size()) fail(ErrorCode::binding, "[step] got {} batch tensors, the step has {}", batch.size(), model.batch.size());
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
  s.programs.emplace(s.model, s.options);
  s.lay_out();
  s.made = StepPlanner(s.model, s.options, *s.programs, s.memory.bytes(), s.plan).make();
  if (s.programs->scaled()) s.now.loss_scale = s.options.loss_scale.initial;
  size_t most = 4 * s.model.parameters.size() + s.model.batch.size() + 16;
  s.in.reserve(most), s.out.reserve(most);
}

TrainStep::~TrainStep() = default;
TrainStep::TrainStep(TrainStep&&) noexcept = default;

StepMetrics TrainStep::run(std::span<const void* const> batch) { return run(batch, state_->options.optimizer.lr); }

StepMetrics TrainStep::run(std::span<const void* const> batch, double lr) {
  State& s = *state_;
  s.check(batch);
  Scalars& v = s.scalars();
  v.applied = s.now.applied, v.lr = float(lr);
  v.scale = float(s.now.loss_scale), v.age = s.now.scale_age, v.lowered = 0;
  v.sum = v.count = 0;
  if (s.plan.micro < s.plan.batch) std::memset(s.at<std::byte>(s.gradient_at[0]), 0, size_t(s.plan.gradient_bytes));
  int64_t first = 0;
  for (int64_t i = 0; i < s.plan.repeats; ++i, first += s.plan.micro) s.run_body(s.made.bodies[0], batch, first);
  if (s.plan.remainder) s.run_body(s.made.bodies[1], batch, first);
  s.run_update();
  const StepMetrics metrics{v.loss, v.norm, v.good != 0, s.now.loss_scale, v.lowered != 0};
  ++s.now.attempted, s.now.applied = v.next_applied;
  if (s.programs->scaled()) s.now.loss_scale = v.next_scale, s.now.scale_age = v.next_age;
  return metrics;
}

TrainStep::Losses TrainStep::evaluate(std::span<const void* const> batch, int64_t samples) {
  State& s = *state_;
  s.check(batch);
  if (s.made.evaluations.empty()) fail(ErrorCode::usage, "[step] this step was planned without evaluation; set StepOptions::evaluation");
  if (samples < 0 || samples > s.plan.batch) fail(ErrorCode::shape, "[step] {} samples of a batch of {} cannot be evaluated", samples, s.plan.batch);
  if (s.made.evaluations.size() == 1 && samples % s.made.evaluations[0].samples)
    fail(ErrorCode::unsupported, "[step] {} samples cannot be evaluated apart: {}; evaluate whole batches of {}", samples, s.programs->evaluation_coupling(),
         s.plan.batch);
  Losses total;
  Scalars& v = s.scalars();
  int64_t first = 0;
  for (StepBody& body : s.made.evaluations)
    for (; samples - first >= body.samples; first += body.samples) {
      s.bind(batch, first, false);
      s.out.insert(s.out.end(), {&v.sum, &v.count});
      body.exe->run(s.in, s.out);
      total.sum += double(v.sum), total.count += double(v.count);
    }
  return total;
}

StepState TrainStep::state() const { return state_->now; }

void TrainStep::restore(const StepState& state) {
  state_->now = state;
  if (!state_->programs->scaled()) state_->now.loss_scale = 1, state_->now.scale_age = 0;
}

void TrainStep::touch() {
  State& s = *state_;
  s.memory.data(), s.made.activations->data();
  ThreadTeam& team = s.options.team ? *s.options.team : default_team();
  team.reserve_scratch((s.plan.scratch_bytes + team.size() - 1) / team.size());
}

const StepPlan& TrainStep::plan() const { return state_->plan; }
std::span<float> TrainStep::parameter(size_t i) { return {state_->at<float>(state_->parameter_at[i]), size_t(state_->model.parameters[i].shape.numel())}; }
std::span<float> TrainStep::gradient(size_t i) { return {state_->at<float>(state_->gradient_at[i]), size_t(state_->model.parameters[i].shape.numel())}; }
std::span<float> TrainStep::moment(size_t i, int which) {
  return {state_->at<float>(state_->moment_at[size_t(which)][i]), size_t(state_->model.parameters[i].shape.numel())};
}

int TrainStep::moments() const { return state_->programs->moments(); }

std::vector<KernelRun> TrainStep::kernels() const {
  const State& s = *state_;
  std::vector<KernelRun> all;
  auto add = [&](const Executable& exe, int64_t times) {
    for (const KernelReport& k : exe.report().kernels) all.push_back({k, times});
  };
  for (const StepBody& body : s.made.bodies) add(*body.exe, body.samples == s.plan.micro ? s.plan.repeats : 1);
  add(*s.made.update, 1);
  return all;
}

double TrainStep::least_seconds(double flops_per_second, double bytes_per_second) const {
  double sum = 0;
  for (const auto& [kernel, times] : kernels()) sum += double(times) * std::max(kernel.flops / flops_per_second, kernel.bytes / bytes_per_second);
  return sum;
}

std::string TrainStep::dump() const { return state_->made.bodies[0].exe->dump() + "update\n" + state_->made.update->dump(); }

std::string TrainStep::report() const {
  const State& s = *state_;
  const StepPlan& p = s.plan;
  std::string text = fmt::format("step: batch {} = {} x {}{}, recompute {}, {}\n", p.batch, p.repeats, p.micro,
                                 p.remainder ? fmt::format(" + {}", p.remainder) : "", name(p.recompute), name(p.choices.precision));
  auto line = [&](const char* what, int64_t bytes) { text += fmt::format("  {:<12} {:>12}\n", what, size_rounded_up(bytes)); };
  line("parameters", p.parameter_bytes), line("gradients", p.gradient_bytes), line("optimizer", p.optimizer_bytes), line("activations", p.activation_bytes),
      line("scratch", p.scratch_bytes);
  line("planned", p.planned_bytes);
  std::map<std::string, std::pair<int, double>> kinds;
  for (const KernelReport& k : s.made.bodies[0].exe->report().kernels) {
    auto& [count, flops] = kinds[k.name.substr(0, k.name.find_first_of("[+x"))];
    ++count, flops += k.flops;
  }
  text += fmt::format("kernels: {} in a step, {:.3g} MFLOP, compiled in {:.0f} ms;", p.kernels, p.flops / 1e6, p.compile_ms);
  for (auto& [kind, sums] : kinds) text += fmt::format(" {} {}", sums.first, kind);
  text += fmt::format("; update {}\n", s.made.update->report().kernels.size());
  for (const std::string& d : p.decisions) text += "  " + d + "\n";
  return text;
}

}  // namespace ridge
