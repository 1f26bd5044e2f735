#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/checked.h"
#include "base/error.h"
#include "base/text.h"
#include "eager/eager_device.h"
#include "eager/tensor_state.h"
#include "io/atomic_file.h"
#include "machine/utilisation.h"
#include "measure/default_team.h"
#include "step/compiled_step.h"
#include "tasks/user/data.h"
#include "train/loss_plot.h"
#include "train/outputs.h"
#include "train/run_planner.h"
#include "train/step_time.h"
#include "train/stop_signals.h"
#include "train/tensorboard_view.h"
#include "train/train_view.h"

namespace ridge {
namespace {

int64_t bytes_of_batch(const BatchSource& source) {
  int64_t bytes = 0;
  for (const Type& t : source.types()) bytes += t.bytes();
  return bytes;
}

// Small batches are consumed faster than a thread can be woken for the next one, so more of them are prefetched.
int batches_ahead(const BatchSource& source) { return int(std::clamp<int64_t>((int64_t(256) << 10) / bytes_of_batch(source), 2, 32)); }

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
    schedule = {args.rate, step.optimizer().lr, args.min_lr.value_or(step.optimizer().lr / 10), args.warmup, args.steps};
    look_at_folder();
    plan(step, specs);
  }

  void look_at_folder() {
    if (args.out.empty() || !args.resume) return;
    stored = CheckpointStore(std::filesystem::path(args.out) / "checkpoints").newest(run.notices);
    if (!stored) return;
    const auto text = stored->texts.find("state.json");
    if (text == stored->texts.end()) fail(ErrorCode::io, "[trainer] {} has no state.json; name another folder", stored->folder.string());
    earlier = run_state_from(text->second, (stored->folder / "state.json").string());
    run.steps_done = earlier.step.attempted;
  }

  // The arguments as settings; everything else has its default.
  config::Resolved settings(std::string_view precision) const {
    config::Sources none;
    none.working_folder.reset();
    config::Resolved s = config::resolve(none);
    s.replace("precision", precision, precision == "auto" ? "default" : kTheProgram);
    if (!args.memory.empty() && args.memory != "auto") s.replace("memory", std::to_string(parse_bytes(args.memory)), kTheProgram);
    return s;
  }

  void plan(const Step& step, const std::vector<BatchSpec>& specs) {
    default_team();  // so that the memory baseline includes its threads
    device = &step_device(args.device);
    const RateLookup rates_of = [](const Device& where, Precision p) -> std::optional<double> {
      if (where.kind != Device::Kind::cpu) return {};  // no formats are compared there
      return known_kernel_rates(measuring_team(), int64_t(1) << 28, p).matmul_gflops;
    };
    const bool automatic = args.precision == "auto";
    const PrecisionChoice precision = step_precision(args.precision, *device, automatic && !stored ? rates_of : RateLookup{});
    const config::Resolved asked = settings(automatic ? "auto" : name(precision.precision));
    const RunOptions options{.seed = args.seed, .folder = args.out, .resume = stored.has_value()};
    RunPlanner planner(asked, options, run);
    if (stored) planner.set_earlier(earlier);
    planner.use_precision(precision, !automatic ? kTheProgram : device->backend->host_memory() ? "measured" : "default");
    planner.use_device({std::shared_ptr<void>(), device->backend.get()}, {"device", to_string(device->device), kTheProgram});
    RunNeeds needs;
    needs.task = "trainer", needs.train = source.get(), needs.validation = validation_source.get();
    needs.loading.depth = batches_ahead(*source);
    needs.batch = specs.empty() || specs[0].shape.rank() == 0 ? 1 : specs[0].shape[0];
    for (const NamedTensor& p : step.parameters()) needs.parameters += p.tensor->size();
    needs.copies = args.out.empty() ? 0 : 3;
    needs.program_bytes += int64_t(step.parameters().size()) << 17;
    needs.step.clip = args.clip, needs.step.seed = args.seed, needs.step.evaluation = validation_source != nullptr;
    needs.make_step = [&](const StepOptions& o) {
      compiled = compile_step(step, specs, o, *device);
      return &compiled->step;
    };
    planner.plan(needs);
    if (validation_source)  // the last validation batch may be smaller: fail now, not after hours of training
      compiled->step.check_evaluation(validation_source->samples(validation_source->batches() - 1));
    describe(planner, step);
  }

  void describe(RunPlanner& planner, const Step& step) {
    int64_t numbers = 0;
    for (const Parameter& p : compiled->parameters) numbers += p.shape.numel();
    what = fmt::format("{} parameter{} in {}", count_text(double(numbers)), numbers == 1 ? "" : "s", counted(int64_t(compiled->parameters.size()), "tensor"));
    constexpr std::string_view kinds[] = {"adamw", "adam", "sgd"};
    const Data::State& d = *train_data.state();
    const int64_t batch = compiled->step.plan().batch;
    Schedule shown = schedule;
    if (shown.kind == Schedule::Kind::constant) shown.min_lr = shown.lr;
    std::vector<Decision> last = {rate_decision(shown, kTheProgram), {"steps", fmt::format("{}", args.steps), kTheProgram}};
    if (!d.tensors.empty()) last.back().why = fmt::format("{:.3g} times through the data", double(args.steps) * double(batch) / double(d.samples()));
    if (!args.out.empty())
      last.push_back({"folder", args.out, kTheProgram, stored ? fmt::format("goes on from step {}", earlier.step.attempted) : "a new run"});
    planner.describe({{"model", what, kTheProgram},
                      {"data", d.tensors.empty() ? "made by a function" : counted(d.samples(), "sample"), kTheProgram},
                      {"optimizer", std::string(kinds[size_t(step.optimizer().kind)]), kTheProgram}},
                     {"batch", fmt::format("{}", batch), args.batch > 0 ? kTheProgram : "default"}, std::move(last));
  }

  TrainerTask task() {
    TrainerTask t;
    t.step = &compiled->step, t.parameters = compiled->parameters;
    t.feed = data_feed(*source, compiled->step, options()), t.validation = validation_source.get();
    t.score = args.score, t.sample = args.sample;
    std::string names;
    for (const Parameter& p : compiled->parameters) names += fmt::format("{}{}{}", names.empty() ? "" : ", ", p.name, to_string(p.shape));
    t.identity = {{"parameters", names}, {"data", identity(train_data)}};
    t.restart_hint = "begin a new run in another folder with .out";
    t.settings = {{"steps", fmt::format("{}", args.steps)}, {"lr", fmt::format("{}", schedule.lr)},     {"min_lr", fmt::format("{}", schedule.min_lr)},
                  {"rate", std::string(name(args.rate))},   {"warmup", fmt::format("{}", args.warmup)}, {"clip", fmt::format("{}", args.clip)},
                  {"seed", fmt::format("{}", args.seed)}};
    return t;
  }

  TrainerOptions options() const {
    TrainerOptions o = run.trainer;
    o.schedule = schedule;
    if (args.validation_interval > 0) o.validation_interval = args.validation_interval;
    if (args.checkpoint_interval > 0) o.checkpoint_interval = args.checkpoint_interval;
    if (args.sample_interval > 0) o.sample_interval = args.sample_interval;
    o.target = args.target, o.max_minutes = args.max_minutes;
    return o;
  }

  bool complete() const {
    if (!stored) return false;
    const bool reached = args.target && earlier.score == args.score && earlier.final_score && args.score.reaches(*earlier.final_score, *args.target);
    return earlier.step.attempted >= args.steps || reached;
  }

  // The result of a run that was already complete when the program started; loads its weights.
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
    r.planned_bytes = run.planned_bytes, r.peak_bytes = peak_resident_bytes(), r.resumed = true;
    return r;
  }

  TrainerArgs args;
  Data train_data, validation_data;
  std::unique_ptr<BatchSource> source, validation_source;
  Schedule schedule;
  std::optional<StoredCheckpoint> stored;
  RunState earlier;  // of `stored`
  detail::EagerDevice* device = nullptr;
  PlannedRun run;
  std::shared_ptr<CompiledStep::State> compiled;
  std::string what;
  bool ran = false;
};

Trainer::Trainer(const Step& step, Data train, TrainerArgs args, Data validation)
    : state_(std::make_unique<State>(step, std::move(train), std::move(args), std::move(validation))) {}
Trainer::~Trainer() = default;
Trainer::Trainer(Trainer&&) noexcept = default;

std::string Trainer::plan() const { return decision_table(state_->run.decisions, {}) + "\n" + state_->compiled->step.report(); }

int64_t Trainer::planned_bytes() const { return state_->run.planned_bytes - state_->run.passed_bytes; }

TrainingResult Trainer::run() {
  State& s = *state_;
  if (std::exchange(s.ran, true)) fail(ErrorCode::usage, "[trainer] run() was called before; make another Trainer to go on");
  const WritesFail quiet;  // also covers what is printed and written after the last step
  const std::unique_ptr<RunView> screen = s.args.show ? stdout_view(false, "samples") : nullptr;
  std::vector<TrainerView*> views;
  if (screen) views.push_back(screen.get());
  std::optional<TensorboardView> events;
  if (s.args.tensorboard) views.push_back(&events.emplace(std::filesystem::path(s.args.out) / "tensorboard"));
  Outputs outputs(views);
  outputs.begin(s.run.decisions);
  for (const std::string& line : s.run.notices) outputs.on_notice(line);
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
  summary.threads = default_threads().team.threads, summary.planned_bytes = s.run.planned_bytes, summary.folder = s.args.out;
  if (!s.args.out.empty()) {
    const std::filesystem::path folder = s.args.out;
    auto write = [&](const char* name, const nlohmann::ordered_json& content) {
      outputs.write_last(name, [&] { write_atomically((folder / name).string(), content.dump(2) + "\n"); });
    };
    write("summary.json", summary_json(summary)), write("plan.json", decisions_json(s.run.decisions));
    outputs.write_last("a plot", [&] { write_loss_plots(folder, {folder}); });
    summary.files = {{"checkpoints/", "weights, optimizer and state: the newest two and the best"},
                     {"metrics.jsonl", "every step and validation"},
                     {s.args.score.is_loss() ? "train_loss.svg, val_loss.svg" : "train_loss.svg, val_loss.svg, score.svg", "the same as pictures"},
                     {"plan.json, summary.json", "what was decided, and this summary"}};
    if (o.state_lost_since || (o.end != Outcome::End::finished && o.end != Outcome::End::target && o.end != Outcome::End::diverged))
      summary.next = {{"the same program again", fmt::format("goes on from step {}", o.state_lost_since.value_or(o.steps))}};
  }
  outputs.end(summary);
  TrainingResult r;
  r.end = o.end, r.reason = o.reason, r.state_lost_since = o.state_lost_since;
  r.steps = o.steps, r.skipped = o.skipped, r.train_loss = o.final_train_loss;
  r.best_score = o.best_score, r.score = o.final_score, r.best_val_loss = o.best_val_loss, r.val_loss = o.final_val_loss;
  r.seconds = o.seconds, r.samples_s = o.tokens_s, r.compute_samples_s = o.compute_tokens_s, r.planned_bytes = s.run.planned_bytes, r.peak_bytes = o.peak_bytes,
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
