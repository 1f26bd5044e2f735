// The task behind ridge::Trainer: a user's model and data as a TaskRun.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <utility>

#include "base/checked.h"
#include "base/error.h"
#include "base/terminal.h"
#include "base/text.h"
#include "eager/eager_device.h"
#include "eager/tensor_state.h"
#include "measure/default_team.h"
#include "step/compiled_step.h"
#include "tasks/user/data.h"
#include "train/plan_report.h"
#include "train/run_folder.h"
#include "train/step_time.h"
#include "train/stop_signals.h"

namespace ridge {
namespace {

constexpr const char* kRestartHint = "start a new run in another folder with .out";

constexpr uint64_t kLargestSeed = uint64_t(1) << 53;  // settings hold no larger whole number

int64_t bytes_of_batch(const BatchSource& source) {
  int64_t bytes = 0;
  for (const Type& t : source.types()) bytes += t.bytes();
  return bytes;
}

// Small batches are consumed faster than a thread can be woken for the next one, so more of them are prefetched.
int batches_ahead(const BatchSource& source) { return int(std::clamp<int64_t>((int64_t(256) << 10) / bytes_of_batch(source), 2, 32)); }

// A user's feed, whose batches are checked.
class CheckedFeed : public BatchFeed {
 public:
  CheckedFeed(Feed& feed, std::vector<BatchSpec> specs, uint64_t seed) : feed_(feed), specs_(std::move(specs)), seed_(seed) {}
  Batch next(int64_t step) override {
    const auto start = std::chrono::steady_clock::now();
    const detail::DrawsOfHook draws(seed_, step, detail::DrawsOfHook::Purpose::batch);
    const int64_t before = feed_.position();
    batch_ = feed_.next(step), data_ = batch_data(batch_, specs_);
    waited_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return {before, {data_.data(), batch_.size()}};
  }
  double waited_seconds() const override { return waited_; }  // no step runs meanwhile
  int64_t position() const override { return feed_.position(); }
  void seek(int64_t position, const std::vector<int64_t>&) override { feed_.seek(position); }
  bool on_policy() const override { return true; }

 private:
  Feed& feed_;
  std::vector<BatchSpec> specs_;
  uint64_t seed_;
  std::vector<Tensor> batch_;
  std::array<const void*, kMaxBatchTensors> data_ = {};
  double waited_ = 0;
};

std::vector<StateTensor> state_of(const Feed& feed) {
  std::vector<StateTensor> state;
  for (const auto& [name, tensor] : feed.save()) {
    const auto* bytes = static_cast<const std::byte*>(tensor.data());
    state.push_back({name, tensor.dtype(), tensor.shape(), {bytes, bytes + Type{tensor.dtype(), tensor.shape()}.bytes()}});
  }
  return state;
}

void restore_state(Feed& feed, const SafetensorsFile& file) {
  std::map<std::string, Tensor> state;
  for (const SafetensorView& view : file.tensors()) state[view.name] = Tensor::from_bytes(view.shape, view.dtype, view.data.data());
  feed.restore(state);
}

}  // namespace

struct Trainer::State final : TaskRun {
  State(const Step& learnt, Data train, TrainerArgs given, Data validation)
      : model(learnt), args(std::move(given)), train_data(std::move(train)), validation_data(std::move(validation)) {
    check();
    specs = batch_specs(train_data, args.batch);
    batch = specs[0].shape.rank() > 0 ? specs[0].shape[0] : 1;
    checked_product("trainer", "samples", {{"steps", args.steps}, {"batch", batch}});
    source = training_batches(train_data, specs, args.seed);
    if (validation_data.state()) {
      const std::vector<BatchSpec> others = batch_specs(validation_data, batch);
      bool same = others.size() == specs.size();
      for (size_t i = 0; same && i < specs.size(); ++i) same = others[i].shape == specs[i].shape && others[i].dtype == specs[i].dtype;
      if (!same)
        fail(ErrorCode::shape, "[trainer] validation data has different tensors from training data: {} and {}", identity(validation_data),
             identity(train_data));
      validation_source = validation_batches(validation_data, specs);
    }
    device = &step_device(args.device);
    const bool begun = !args.out.empty() && !CheckpointStore(std::filesystem::path(args.out) / "checkpoints").steps().empty();
    if (begun && !args.resume) fail(ErrorCode::usage, "[trainer] {} already contains a run; {}", args.out, kRestartHint);
    options.seed = args.seed, options.folder = args.out, options.resume = begun, options.tune = true;
    plan(options);
    if (args.out.empty() || begun) return;
    if (const std::optional<std::string> file = conflicting_file(args.out, true, settings))
      fail(ErrorCode::usage, "[trainer] {} holds files that a run would overwrite: {}; move them away, or {}", args.out, *file, kRestartHint);
  }

  void check() const {
    if (!train_data.state()) fail(ErrorCode::value, "[trainer] there is no data to train on; give tensors, a function that fills batches, or a feed");
    if (args.steps < 1) fail(ErrorCode::usage, "[trainer] {} steps; give at least 1", args.steps);
    if (args.warmup < 0) fail(ErrorCode::value, "[trainer] {} steps of warm-up; give 0 or more", args.warmup);
    if (args.min_lr && !(*args.min_lr >= 0 && std::isfinite(float(*args.min_lr))))
      fail(ErrorCode::value, "[trainer] min_lr is {}; give a finite number from 0", *args.min_lr);
    if (args.target && !std::isfinite(*args.target)) fail(ErrorCode::value, "[trainer] target is {}; give a finite number", *args.target);
    if (args.tensorboard && args.out.empty()) fail(ErrorCode::usage, "[trainer] TensorBoard's files go into the run's folder, and there is none; set .out");
    if (!args.score.is_loss() && !validation_data.state() && !args.validate)
      fail(ErrorCode::usage, "[trainer] the score {} needs validation data, and there is none; pass it as the last argument, or set .validate",
           args.score.name);
    if (args.validate && validation_data.state())
      fail(ErrorCode::usage, "[trainer] there are both validation data and a function that validates; give one of them");
    if (args.target && !validation_data.state() && !args.validate)
      fail(ErrorCode::usage, "[trainer] the target {} needs validation data, and there is none; pass it as the last argument, or set .validate", *args.target);
    for (const auto& [name, interval] : {std::pair("validation_interval", args.validation_interval),
                                         {"checkpoint_interval", args.checkpoint_interval},
                                         {"sample_interval", args.sample_interval}})
      if (interval < 0) fail(ErrorCode::value, "[trainer] {} is {}; give a number of steps, or 0 to have it chosen", name, interval);
    if (!(args.max_minutes >= 0)) fail(ErrorCode::value, "[trainer] max_minutes is {}; give a number above 0, or 0 for no limit", args.max_minutes);
  }

  // The arguments as settings; everything else has its default.
  void resolve(std::string_view precision) {
    config::Sources none;
    none.working_folder.reset(), none.task = config::kProgram;
    settings = config::resolve(none);
    auto set = [&](const char* key, const auto& value) { settings.replace(key, fmt::format("{}", value), kTheProgram); };
    auto set_if = [&](bool given, const char* key, const auto& value) {
      if (given) set(key, value);
    };
    const Optimizer& o = model.optimizer();
    schedule = {args.rate, o.lr, args.min_lr.value_or(o.lr / 10), args.warmup, args.steps};
    set("steps", args.steps), set("batch", batch), set("lr", o.lr), set_if(args.min_lr.has_value(), "min_lr", schedule.min_lr),
        set("schedule", name(args.rate)), set("warmup", args.warmup);
    set("clip", args.clip), set("weight_decay", o.decay), set("beta1", o.beta1), set("beta2", o.beta2), set("optimizer", name(o.kind));
    set("data", train_data.state()->feed ? "feed" : train_data.state()->fill ? "function" : "tensors");
    set_if(args.seed <= kLargestSeed, "seed", args.seed);
    set("out", args.out), set("device", to_string(device->device)), set_if(precision != "auto", "precision", precision);
    set_if(!args.memory.empty() && args.memory != "auto", "memory", args.memory);
    set_if(args.validation_interval > 0, "eval_interval", args.validation_interval);
    set_if(args.checkpoint_interval > 0, "checkpoint_interval", args.checkpoint_interval);
    set_if(args.max_minutes > 0, "max_minutes", args.max_minutes), set_if(args.target.has_value(), "target_loss", args.target.value_or(0));
    set_if(args.deterministic, "deterministic", true), set_if(args.tensorboard, "tensorboard", true), set_if(args.profile, "profile", true);
    set_if(options.resume, "resume", true);
  }

  std::string config() const {
    std::string text = config_text(settings, args.out);
    if (const size_t line = text.find("\nseed: ") + 1; args.seed > kLargestSeed && line > 0)
      text.replace(line, text.find('\n', line) - line, fmt::format("seed: {}  # {}", args.seed, kTheProgram));
    return text;
  }

  void plan(const RunOptions& now) {
    static_cast<PlannedRun&>(*this) = {};
    unit = "samples";
    default_team();  // so that the memory baseline includes its threads, and the initial weights
    for (const NamedTensor& p : model.parameters()) p.tensor->eval();
    const RateLookup rates_of = [](const Device& where, Precision p) -> std::optional<double> {
      if (where.kind != Device::Kind::cpu) return {};  // no formats are compared there
      return known_kernel_rates(measuring_team(), int64_t(1) << 28, p).matmul_gflops;
    };
    const bool automatic = args.precision == "auto";
    const PrecisionChoice precision = step_precision(args.precision, *device, automatic && !now.resume ? rates_of : RateLookup{});
    resolve(automatic ? "auto" : name(precision.precision));
    RunPlanner planner(settings, now, *this);
    planner.read_earlier();
    planner.use_precision(precision, !automatic ? kTheProgram : device->backend->host_memory() ? "measured" : "default");
    planner.use_device({std::shared_ptr<void>(), device->backend.get()}, {"device", to_string(device->device), kTheProgram});
    RunNeeds needs;
    needs.task = "trainer", needs.train = source.get(), needs.validation = validation_source.get(), needs.batch = batch;
    needs.steps = args.steps, needs.fixed_device = true;
    needs.fill = [&](size_t i, std::span<float> values) { std::memcpy(values.data(), model.parameters()[i].tensor->data(), values.size_bytes()); };
    if (source) needs.loading.depth = batches_ahead(*source);
    for (const BatchSpec& s : specs) needs.feed_bytes += Type{s.dtype, s.shape}.bytes();
    for (const NamedTensor& p : model.parameters()) needs.parameters += p.tensor->size();
    needs.copies = args.out.empty() ? 0 : 3;
    needs.program_bytes += int64_t(model.parameters().size()) << 17;
    needs.step.clip = args.clip, needs.step.seed = args.seed, needs.step.evaluation = validation_source != nullptr;
    needs.make_step = [&](const StepOptions& o) {
      compiled.reset();  // free its programs before compiling others
      compiled = compile_step(model, specs, o, *device);
      return &compiled->step;
    };
    planner.plan(needs);
    if (validation_source)  // the last validation batch may be smaller: fail now, not after hours of training
      compiled->step.check_evaluation(validation_source->samples(validation_source->batches() - 1));
    parameters = compiled->parameters;
    read_intervals(settings, trainer);
    if (args.sample_interval > 0) trainer.sample_interval = args.sample_interval;
    trainer.schedule = schedule;
    // A run that is complete is not trained again, but its weights are loaded.
    const std::optional<RunState>& earlier = planner.earlier();
    finished = earlier && is_finished(args.out, earlier, args.steps, earlier->score == args.score ? args.target : std::nullopt);
    describe(planner);
  }

  void describe(RunPlanner& planner) {
    const Data::State& d = *train_data.state();
    Schedule shown = schedule;
    if (shown.kind == Schedule::Kind::constant) shown.min_lr = shown.lr;
    std::vector<Decision> last = {rate_decision(shown, kTheProgram), {"steps", fmt::format("{}", args.steps), kTheProgram}};
    if (!d.tensors.empty()) last.back().why = fmt::format("{:.3g} times through the data", double(args.steps) * double(batch) / double(d.samples()));
    if (!args.out.empty()) last.push_back({"folder", args.out, kTheProgram, options.resume ? "" : "a new run"});
    planner.describe({{"model", what(), kTheProgram},
                      {"data",
                       d.feed              ? "made by a feed"
                       : d.tensors.empty() ? "made by a function"
                                           : counted(d.samples(), "sample"),
                       kTheProgram}},
                     {"batch", fmt::format("{}", batch), args.batch > 0 ? kTheProgram : "default"}, last);
  }

  std::string what() const {
    const int64_t numbers = parameter_count();
    return fmt::format("{} parameter{} in {}", count_text(double(numbers)), numbers == 1 ? "" : "s", counted(int64_t(parameters.size()), "tensor"));
  }

  void prepare() override { start_step(compiled, *device, true); }
  void fill_parameters() override {}  // prepare() moved the user's weights into the step

  TrainerTask trainer_task(const config::Resolved&) override {
    TrainerTask t;
    t.step = step, t.parameters = parameters, t.validation = validation_source.get(), t.score = args.score;
    if (args.sample)
      t.sample = [this] {
        const detail::DrawsOfHook draws(args.seed, step->state().attempted, detail::DrawsOfHook::Purpose::sample);
        return args.sample();
      };
    if (Feed* feed = train_data.state()->feed.get()) {
      t.feed = std::make_shared<CheckedFeed>(*feed, specs, args.seed);
      t.save = [feed] { return state_of(*feed); }, t.restore = [feed](const SafetensorsFile& file) { restore_state(*feed, file); };
      t.restore_nothing = [feed] { feed->restore({}); };
    } else {
      t.feed = data_feed(*source, *step, trainer);
    }
    if (args.validate) {
      const bool by_loss = args.score.is_loss();
      if (!by_loss) t.validation_scalars = {args.score.name};
      t.validate = [this, by_loss](const std::function<bool()>&) {
        const detail::DrawsOfHook draws(args.seed, step->state().attempted, detail::DrawsOfHook::Purpose::validation);
        const double value = args.validate();
        return std::optional(Validation{by_loss ? value : std::numeric_limits<double>::quiet_NaN(), {value}});
      };
    }
    std::string names;
    for (const Parameter& p : parameters) names += fmt::format("{}{}{}", names.empty() ? "" : ", ", p.name, to_string(p.shape));
    t.identity = {{"parameters", names}, {"data", identity(train_data)}};
    t.restart_hint = kRestartHint;
    if (validation_source) t.validation_data = identity(validation_data);
    const Optimizer& o = model.optimizer();
    t.settings = {{"steps", fmt::format("{}", args.steps)}, {"lr", fmt::format("{}", schedule.lr)},     {"min_lr", fmt::format("{}", schedule.min_lr)},
                  {"rate", std::string(name(args.rate))},   {"warmup", fmt::format("{}", args.warmup)}, {"clip", fmt::format("{}", args.clip)},
                  {"seed", fmt::format("{}", args.seed)},   {"optimizer", std::string(name(o.kind))}};
    for (const auto& [name, value] :
         {std::pair("beta1", o.beta1), {"beta2", o.beta2}, {"eps", o.eps}, {"weight_decay", o.decay}, {"momentum", o.momentum}, {"scale", o.scale}})
      t.settings[name] = fmt::format("{}", value);
    t.settings["nesterov"] = o.nesterov ? "true" : "false";
    return t;
  }

  void add_to_summary(RunSummary& s) const override {
    s.what = what();
    if (s.folder.empty()) return;
    s.files = {{"checkpoints/", "weights, optimizer and state: the newest two and the best"},
               {"metrics.jsonl", "every step and validation"},
               {args.score.is_loss() ? "train_loss.svg, val_loss.svg" : "train_loss.svg, val_loss.svg, score.svg", "the same as pictures"},
               {"plan.json, summary.json", "what was decided, and this summary"}};
    const Outcome& o = s.outcome;
    if (o.state_lost_since || (o.end != Outcome::End::finished && o.end != Outcome::End::target && o.end != Outcome::End::diverged))
      s.next = {{"the same program again", fmt::format("resumes from step {}", o.state_lost_since.value_or(o.steps))}};
  }

  Outcome train() {
    start_run(options, [&, again = false](const RunOptions& now) mutable -> TaskRun& {
      if (std::exchange(again, true)) plan(now);
      return *this;
    });
    if (!finished) return train_in_folder(*this, settings, {.show = args.show, .tensorboard = args.tensorboard, .config = config()}).outcome;
    Outcome outcome = train_run(*this, settings, {});
    if (args.show) print_line(stdout, fmt::format("{} is finished: its weights are loaded", args.out));
    return outcome;
  }

  Step model;
  TrainerArgs args;
  Data train_data, validation_data;
  std::vector<BatchSpec> specs;
  int64_t batch = 1;
  std::unique_ptr<BatchSource> source, validation_source;
  detail::EagerDevice* device = nullptr;
  RunOptions options;
  config::Resolved settings;
  Schedule schedule;
  std::shared_ptr<CompiledStep::State> compiled;
  bool finished = false;  // nothing is left to train
  bool ran = false;
};

Trainer::Trainer(const Step& step, Data train, TrainerArgs args, Data validation)
    : state_(std::make_unique<State>(step, std::move(train), std::move(args), std::move(validation))) {}
Trainer::~Trainer() = default;
Trainer::Trainer(Trainer&&) noexcept = default;

std::string Trainer::plan() const { return plan_text(*state_, {terminal_width(), false}); }

int64_t Trainer::planned_bytes() const { return state_->planned_bytes - state_->passed_bytes; }

TrainingResult Trainer::run() {
  State& s = *state_;
  if (std::exchange(s.ran, true)) fail(ErrorCode::usage, "[trainer] run() was already called; create another Trainer to continue");
  const WritesFail quiet;  // also covers what is printed and written after the last step
  const Outcome o = s.train();
  TrainingResult r;
  r.end = o.end, r.reason = o.reason, r.state_lost_since = o.state_lost_since;
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
    std::vector<std::string> notices;
    std::optional<StoredCheckpoint> found = store.best(notices);
    if (!found) found = store.newest(notices);
    if (!found) fail(ErrorCode::io, "[weights] {} has no intact checkpoint", path);
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
