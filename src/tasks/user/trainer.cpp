#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include <nlohmann/json.hpp>

#include "backend/backend.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/text.h"
#include "data/prefetch.h"
#include "eager/eager_device.h"
#include "eager/tensor_state.h"
#include "io/atomic_file.h"
#include "machine/features.h"
#include "machine/memory_budget.h"
#include "machine/utilisation.h"
#include "measure/default_team.h"
#include "step/compiled_step.h"
#include "tasks/gpt/device.h"
#include "tasks/user/data.h"
#include "train/loss_plot.h"
#include "train/outputs.h"
#include "train/run_state.h"
#include "train/step_time.h"
#include "train/stop_signals.h"
#include "train/tensorboard_view.h"
#include "train/train_view.h"
#include "train/trainer.h"

namespace ridge {
namespace {

// What grows after the baseline is read and is not planned for in detail: code pages, stacks, compiled programs, logs.
constexpr int64_t kGrowth = int64_t(6) << 20;
constexpr int64_t kDeviceGrowth = int64_t(160) << 20;  // kernels, recordings and libraries that are loaded later

int64_t bytes_of_batch(const BatchSource& source) {
  int64_t bytes = 0;
  for (const Type& t : source.types()) bytes += t.bytes();
  return bytes;
}

// Small batches are used up faster than a thread can be woken for the next one, so more of them are made ahead.
int batches_ahead(const BatchSource& source) { return int(std::clamp<int64_t>((int64_t(256) << 10) / bytes_of_batch(source), 2, 32)); }

TrainingResult::End public_end(Outcome::End end) {
  switch (end) {
    case Outcome::End::time: return TrainingResult::End::time;
    case Outcome::End::interrupted: return TrainingResult::End::interrupted;
    case Outcome::End::terminated: return TrainingResult::End::terminated;
    case Outcome::End::diverged: return TrainingResult::End::diverged;
    case Outcome::End::unsaved: return TrainingResult::End::unsaved;
    default: return TrainingResult::End::finished;
  }
}

std::string_view word(TrainerArgs::Rate rate) {
  constexpr std::string_view words[] = {"cosine", "linear", "constant"};
  return words[size_t(rate)];
}

}  // namespace

struct Trainer::State {
  State(const Step& step, Data train, TrainerArgs given, Data validation)
      : args(std::move(given)), train_data(std::move(train)), validation_data(std::move(validation)) {
    if (!train_data.state()) fail(ErrorCode::value, "[trainer] there is no data to train on; give tensors or a function that fills batches");
    if (args.steps < 1) fail(ErrorCode::usage, "[trainer] {} steps; give at least 1", args.steps);
    if (args.warmup < 0) fail(ErrorCode::value, "[trainer] {} steps of warm-up; give 0 or more", args.warmup);
    if (args.min_lr && !(*args.min_lr >= 0 && std::isfinite(float(*args.min_lr))))
      fail(ErrorCode::value, "[trainer] min_lr is {}; give a finite number from 0", *args.min_lr);
    if (args.target && !std::isfinite(*args.target)) fail(ErrorCode::value, "[trainer] target is {}; give a finite number", *args.target);
    if (args.tensorboard && args.out.empty()) fail(ErrorCode::usage, "[trainer] TensorBoard's files go into the run's folder, and there is none; set .out");
    if (!args.score.is_loss() && !validation_data.state())
      fail(ErrorCode::usage, "[trainer] the score {} is of validation data, and there is none; give it as the last argument", args.score.name);
    if (!(args.max_minutes >= 0)) fail(ErrorCode::value, "[trainer] max_minutes is {}; give a number above 0, or 0 for no limit", args.max_minutes);
    const std::vector<BatchSpec> specs = batch_specs(train_data, args.batch);
    if (!specs.empty() && specs[0].shape.rank() > 0) checked_product("trainer", "samples", {{"steps", args.steps}, {"batch", specs[0].shape[0]}});
    source = training_batches(train_data, specs, args.seed);
    if (validation_data.state()) {
      const std::vector<BatchSpec> others = batch_specs(validation_data, specs[0].shape[0]);
      bool same = others.size() == specs.size();
      for (size_t i = 0; same && i < specs.size(); ++i) same = others[i].shape == specs[i].shape && others[i].dtype == specs[i].dtype;
      if (!same)
        fail(ErrorCode::shape, "[trainer] validation data has other tensors than training data: {} and {}", identity(validation_data), identity(train_data));
      validation_source = validation_batches(validation_data, specs);
    }
    schedule = {Schedule::Kind(int(args.rate)), step.optimizer().lr, args.min_lr.value_or(step.optimizer().lr / 10), args.warmup, args.steps};
    look_at_folder();
    compile(step, specs);
    describe(step);
  }

  void look_at_folder() {
    if (args.out.empty() || !args.resume) return;
    stored = CheckpointStore(std::filesystem::path(args.out) / "checkpoints").newest(notices);
    if (!stored) return;
    const auto text = stored->texts.find("state.json");
    if (text == stored->texts.end()) fail(ErrorCode::io, "[trainer] {} has no state.json; name another folder", stored->folder.string());
    earlier = run_state_from(text->second, (stored->folder / "state.json").string());
  }

  void compile(const Step& step, const std::vector<BatchSpec>& specs) {
    default_team();  // its threads belong to the baseline
    device = &step_device(args.device);
    backend = device->backend.get(), far = !backend->host_memory();
    const RateLookup rates_of = [](const Device& where, Precision p) -> std::optional<double> {
      if (where.kind != Device::Kind::cpu) return {};  // where nothing is compared
      return known_kernel_rates(measuring_team(), int64_t(1) << 28, p).matmul_gflops;
    };
    precision = step_precision(args.precision, *device, args.precision == "auto" && !stored ? rates_of : RateLookup{});
    notices.insert(notices.end(), precision.notices.begin(), precision.notices.end());
    before = backend->memory();
    const int64_t held = far ? before.held : resident_bytes();
    BudgetFacts facts = far ? device_budget(*backend) : budget_facts(read_limits(), held);
    if (!args.memory.empty() && args.memory != "auto") facts.wish = parse_bytes(args.memory);
    budget = memory_budget(facts);
    notices.insert(notices.end(), budget.notices.begin(), budget.notices.end());
    Prefetcher::Options ahead;
    ahead.depth = batches_ahead(*source);
    const int64_t batches = Prefetcher::bytes_for(*source, ahead) + (validation_source ? bytes_of_batch(*validation_source) : 0);
    const int64_t others = far ? held + kDeviceGrowth : held + kGrowth + batches;
    StepOptions o;
    o.precision = precision.precision, o.clip = args.clip, o.seed = args.seed, o.evaluation = validation_source != nullptr;
    o.memory = budget.bytes - others;
    o.memory = std::max<int64_t>(o.memory, 1);  // nothing is left: the refusal below knows what would do
    if (stored) {
      StepOptions same = o;
      honour(same, earlier.choices);
      if (args.precision != "auto") same.precision = o.precision;
      if (far && same_device(*backend, earlier.choices)) backend->use_choices(earlier.choices);
      try {
        compiled = compile_step(step, specs, same, *device);
        honoured = true;
      } catch (const Error& error) {
        if (error.code() != ErrorCode::memory && error.code() != ErrorCode::unsupported) throw;
        notices.push_back(fmt::format("the choices of the run so far cannot be used any more: {}", error.what()));
      }
    }
    if (!compiled) try {
        compiled = compile_step(step, specs, o, *device);
      } catch (const StepTooLarge& error) {
        fail(ErrorCode::memory,
             "[trainer] the budget of {} is too small: the process holds {} already, batches take {}, and the step {} at the least; the smallest budget that "
             "works "
             "is {}MiB",
             size_text(budget.bytes), size_text(held), size_text(batches), size_text(error.least), (others + error.least + (1 << 20) - 1) >> 20);
      }
    if (validation_source)  // what is left of the data is validated with fewer samples than a batch: said now, not after hours of training
      compiled->step.check_evaluation(validation_source->samples(validation_source->batches() - 1));
    planned_bytes = others + compiled->step.plan().planned_bytes;
    if (far) {
      const GpuStepTime time = gpu_step_time(compiled->step, *backend, Figures::kept);
      least_seconds = time.least, expected_step_seconds = time.expected;
      return;
    }
    const int64_t peak = peak_resident_bytes();
    const KernelRates rates = known_kernel_rates(measuring_team(), planned_bytes - others, compiled->step.plan().choices.precision);
    // Next to a very small model the first measurement on a machine is what takes most.
    if (peak_resident_bytes() > peak) planned_bytes = std::max(planned_bytes, peak_resident_bytes());
    least_seconds = compiled->step.least_seconds(1e9 * rates.fma_gflops, 1e9 * rates.copy_gbs);
    expected_step_seconds = expected_seconds(compiled->step.kernels(), rates), roof_others = rates.others;
  }

  void describe(const Step& step) {
    const StepPlan& plan = compiled->step.plan();
    int64_t numbers = 0;
    for (const Parameter& p : compiled->parameters) numbers += p.shape.numel();
    what = fmt::format("{} parameter{} in {}", count_text(double(numbers)), numbers == 1 ? "" : "s", counted(int64_t(compiled->parameters.size()), "tensor"));
    constexpr std::string_view kinds[] = {"adamw", "adam", "sgd"};
    const Data::State& d = *train_data.state();
    const ThreadChoice& threads = default_threads();
    const std::string program = "the program";
    decisions = {
        {"model", what, program},
        {"data", d.tensors.empty() ? "made by a function" : counted(d.samples(), "sample"), program,
         d.tensors.empty() ? "" : fmt::format("{:.3g} times through", double(args.steps) * double(plan.batch) / double(d.samples()))},
        {"optimizer", std::string(kinds[size_t(step.optimizer().kind)]), program},
        {"rate", fmt::format("{:g} to {:g}, {}", schedule.lr, args.rate == TrainerArgs::Rate::constant ? schedule.lr : schedule.min_lr, word(args.rate)),
         program, args.warmup > 0 ? fmt::format("{} of warm-up", counted(args.warmup, "step")) : ""},
        {"steps", fmt::format("{}", args.steps), program},
        {"batch", fmt::format("{}", plan.batch), args.batch > 0 ? program : "default"},
        {"micro-batch", fmt::format("{} x {}{}", plan.repeats, plan.micro, plan.remainder ? fmt::format(" + {}", plan.remainder) : ""), "planned",
         why_split(plan)},
        {"memory", size_text(planned_bytes), "planned",
         fmt::format("parameters {}, gradients {}, optimizer {}, activations {}, scratch {}, all else {}", size_text(plan.parameter_bytes),
                     size_text(plan.gradient_bytes), size_text(plan.optimizer_bytes), size_text(plan.activation_bytes), size_text(plan.scratch_bytes),
                     size_text(planned_bytes - plan.planned_bytes))},
        {"budget", size_text(budget.bytes), args.memory.empty() || args.memory == "auto" ? "default" : program, budget.reason},
        {"threads", fmt::format("{}", threads.team.threads), threads.decided_by, threads.reason, threads.runner_up},
    };
    if (far)
      decisions.push_back(
          {"device", to_string(device->device), program, fmt::format("{}, {} in a step", backend->info().what, counted(plan.kernels, "kernel"))});
    else
      decisions.push_back(
          {"kernels", std::string(name(isa_tier())), "detected", fmt::format("{} in a step, the best instructions this CPU has", plan.kernels)});
    const Precision used = plan.choices.precision;
    decisions.push_back({"precision", std::string(name(used)),
                         args.precision != "auto" ? program
                         : far                    ? "default"
                                                  : "measured",
                         used == precision.precision ? precision.reason : "as in the run so far", precision.runner_up});
    decisions.push_back({"expected", fmt::format("{} in all", duration_text(expected_step_seconds * double(args.steps))), "measured",
                         fmt::format("{:.3g} ms a step, by rates of kernels on this machine", 1e3 * expected_step_seconds)});
    if (!args.out.empty())
      decisions.push_back({"folder", args.out, program, stored ? fmt::format("goes on from step {}", earlier.step.attempted) : "a new run"});
  }

  // What the step says of its choice: "micro-batch 64 of 128, recompute=free: the largest micro-batch that fits".
  std::string why_split(const StepPlan& plan) const {
    if (honoured) return "as in the run so far";
    for (const std::string& line : plan.decisions)
      if (const size_t colon = line.rfind(": "); line.starts_with("micro-batch") && colon != line.npos) return line.substr(colon + 2);
    return {};
  }

  TrainerTask task() {
    TrainerTask t;
    t.step = &compiled->step, t.parameters = compiled->parameters;
    t.feed = data_feed(*source, compiled->step, options()), t.validation = validation_source.get();
    t.score = args.score, t.sample = args.sample;
    std::string names;
    for (const Parameter& p : compiled->parameters) names += fmt::format("{}{}{}", names.empty() ? "" : ", ", p.name, to_string(p.shape));
    t.identity = {{"parameters", names}, {"data", identity(train_data)}};
    t.anew = "begin a new run in another folder with .out";
    t.settings = {{"steps", fmt::format("{}", args.steps)}, {"lr", fmt::format("{}", schedule.lr)},     {"min_lr", fmt::format("{}", schedule.min_lr)},
                  {"rate", std::string(word(args.rate))},   {"warmup", fmt::format("{}", args.warmup)}, {"clip", fmt::format("{}", args.clip)},
                  {"seed", fmt::format("{}", args.seed)}};
    return t;
  }

  TrainerOptions options() const {
    TrainerOptions o;
    o.folder = args.out, o.resume = stored.has_value(), o.schedule = schedule;
    if (args.validation_interval > 0) o.validation_interval = args.validation_interval;
    if (args.checkpoint_interval > 0) o.checkpoint_interval = args.checkpoint_interval;
    if (args.sample_interval > 0) o.sample_interval = args.sample_interval;
    o.target = args.target;
    o.max_minutes = args.max_minutes, o.planned_bytes = planned_bytes, o.prefetch = batches_ahead(*source);
    if (far) {
      o.device_bytes = [backend = backend, before = before] { return before.free - backend->memory().free + before.held; };
      o.device_choice = to_string(device->device);
    }
    o.least_seconds = least_seconds, o.roof_others = roof_others, o.expected_step_seconds = expected_step_seconds;
    return o;
  }

  bool complete() const {
    if (!stored) return false;
    const bool reached = args.target && earlier.score == args.score && earlier.final_score && args.score.reaches(*earlier.final_score, *args.target);
    return earlier.step.attempted >= args.steps || reached;
  }

  // A run that was complete when the program started: its weights are what was asked for.
  TrainingResult complete_already() {
    const SafetensorsFile& file = stored->tensors.at("model.safetensors");
    for (size_t i = 0; i < compiled->parameters.size(); ++i) {
      const Parameter& p = compiled->parameters[i];
      const SafetensorView& view = file.at(p.name);
      if (view.dtype != DType::f32 || !(view.shape == p.shape))
        fail(ErrorCode::usage, "[trainer] {} holds a run of another model: {} is {}{}, not f32{}; name another folder", args.out, p.name, name(view.dtype),
             to_string(view.shape), to_string(p.shape));
      compiled->step.write(TrainStep::Held::parameter, i, {reinterpret_cast<const float*>(view.data.data()), view.data.size() / sizeof(float)});
    }
    compiled->step.restore(earlier.step);
    TrainingResult r;
    r.reason = fmt::format("{} done before; its weights are loaded", counted(earlier.step.attempted, "step"));
    r.steps = earlier.step.attempted, r.skipped = earlier.skipped, r.train_loss = earlier.final_train_loss();
    r.best_score = earlier.best_score, r.score = earlier.final_score, r.best_val_loss = earlier.best_val_loss, r.val_loss = earlier.final_val_loss;
    r.planned_bytes = planned_bytes, r.peak_bytes = peak_resident_bytes(), r.resumed = true;
    return r;
  }

  TrainerArgs args;
  Data train_data, validation_data;
  std::unique_ptr<BatchSource> source, validation_source;
  Schedule schedule;
  std::optional<StoredCheckpoint> stored;
  RunState earlier;  // of `stored`
  MemoryBudget budget;
  detail::EagerDevice* device = nullptr;
  PrecisionChoice precision;
  Backend* backend = nullptr;  // that of eager tensors
  bool far = false;            // it has memory of its own
  DeviceMemory before;         // when it was planned
  std::shared_ptr<CompiledStep::State> compiled;
  bool honoured = false;  // the choices of `stored`
  int64_t planned_bytes = 0;
  double least_seconds = 0, roof_others = 0, expected_step_seconds = 0;
  std::string what;
  std::vector<Decision> decisions;
  std::vector<std::string> notices;
  bool ran = false;
};

Trainer::Trainer(const Step& step, Data train, TrainerArgs args, Data validation)
    : state_(std::make_unique<State>(step, std::move(train), std::move(args), std::move(validation))) {}
Trainer::~Trainer() = default;
Trainer::Trainer(Trainer&&) noexcept = default;

std::string Trainer::plan() const { return decision_table(state_->decisions, {}) + "\n" + state_->compiled->step.report(); }

int64_t Trainer::planned_bytes() const { return state_->planned_bytes; }

TrainingResult Trainer::run() {
  State& s = *state_;
  if (std::exchange(s.ran, true)) fail(ErrorCode::usage, "[trainer] run() was called before; make another Trainer to go on");
  const WritesFail quiet;  // also what is printed and written after the last step
  const std::unique_ptr<RunView> screen = s.args.show ? stdout_view(false, "samples") : nullptr;
  std::vector<TrainerView*> views;
  if (screen) views.push_back(screen.get());
  std::optional<TensorboardView> events;
  if (s.args.tensorboard) views.push_back(&events.emplace(std::filesystem::path(s.args.out) / "tensorboard"));
  Outputs outputs(views);
  outputs.begin(s.decisions);
  for (const std::string& line : s.notices) outputs.on_notice(line);
  if (s.complete()) {
    TrainingResult r = s.complete_already();
    outputs.on_notice(r.reason);
    return r;
  }
  UtilisationWatch watch(cpu_groups(known_machine()));
  const TrainerTask task = s.task();
  RunSummary summary;
  summary.outcome = ridge::train(task, s.options(), {&outputs});
  const Outcome& o = summary.outcome;
  summary.what = s.what, summary.unit = "samples", summary.cores = cores_text(watch.overall());
  summary.device = to_string(s.device->device), summary.precision = name(s.compiled->step.plan().choices.precision);
  summary.threads = default_threads().team.threads, summary.planned_bytes = s.planned_bytes, summary.folder = s.args.out;
  if (!s.args.out.empty()) {
    const std::filesystem::path folder = s.args.out;
    auto write = [&](const char* name, const nlohmann::ordered_json& content) {
      outputs.write_last(name, [&] { write_atomically((folder / name).string(), content.dump(2) + "\n"); });
    };
    write("summary.json", summary_json(summary)), write("plan.json", decisions_json(s.decisions));
    outputs.write_last("a plot", [&] { write_loss_plots(folder, {folder}); });
    summary.files = {{"checkpoints/", "weights, optimizer and state: the newest two and the best"},
                     {"metrics.jsonl", "every step and validation"},
                     {s.args.score.is_loss() ? "train_loss.svg, val_loss.svg" : "train_loss.svg, val_loss.svg, score.svg", "the same as pictures"},
                     {"plan.json, summary.json", "what was decided, and this summary"}};
    if (o.state_lost_since || (o.end != Outcome::End::finished && o.end != Outcome::End::diverged))
      summary.next = {{"the same program again", fmt::format("goes on from step {}", o.state_lost_since.value_or(o.steps))}};
  }
  outputs.end(summary);
  TrainingResult r;
  r.end = public_end(o.end), r.reason = o.reason, r.state_lost_since = o.state_lost_since;
  r.steps = o.steps, r.skipped = o.skipped, r.train_loss = o.final_train_loss;
  r.best_score = o.best_score, r.score = o.final_score, r.best_val_loss = o.best_val_loss, r.val_loss = o.final_val_loss;
  r.seconds = o.seconds, r.samples_s = o.tokens_s, r.compute_samples_s = o.compute_tokens_s, r.planned_bytes = s.planned_bytes, r.peak_bytes = o.peak_bytes,
  r.resumed = o.resumed;
  return r;
}

void load_weights(const std::vector<NamedTensor>& parameters, const std::string& path) {
  std::filesystem::path file = path;
  if (std::filesystem::is_directory(file / "checkpoints")) {
    const CheckpointStore store(file / "checkpoints");
    std::vector<std::string> passed_over;
    std::optional<StoredCheckpoint> found = store.best(passed_over);
    if (!found) found = store.newest(passed_over);
    if (!found) fail(ErrorCode::io, "[weights] {} has no whole checkpoint", path);
    file = found->folder;
  }
  if (std::filesystem::is_directory(file)) file /= "model.safetensors";
  const SafetensorsFile weights(file.string());
  for (const NamedTensor& p : parameters) {
    const SafetensorView& view = weights.at(p.name);
    if (view.dtype != p.tensor->dtype() || !(view.shape == p.tensor->shape()))
      fail(ErrorCode::shape, "[weights] {} in {} is {}{}, the model has {}{}", p.name, file.string(), name(view.dtype), to_string(view.shape),
           name(p.tensor->dtype()), to_string(p.tensor->shape()));
    p.tensor->eval();
    detail::assign(*p.tensor->state(), view.data.data());
  }
}

}  // namespace ridge
