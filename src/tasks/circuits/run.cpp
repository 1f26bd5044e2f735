// A run of a recurrent model: planned, trained, and reported against the best possible error and simple predictors.
#include <cstring>

#include <nlohmann/json.hpp>

#include "base/checked.h"
#include "base/error.h"
#include "base/text.h"
#include "io/atomic_file.h"
#include "step/compiled_step.h"
#include "tasks/circuits/task.h"
#include "train/checkpoint.h"

namespace ridge {

std::string_view checksum_in(std::string_view identity) {
  const size_t open = identity.rfind('(');
  return open == identity.npos || !identity.ends_with(')') ? std::string_view() : identity.substr(open);
}

namespace {

using config::Resolved;

int64_t required_count(const Resolved& s, const char* key) {
  if (const std::optional<int64_t> value = s.get<std::optional<int64_t>>(key)) return *value;
  fail(ErrorCode::usage, "[cfc] {0} is not given: set {0}=N or a preset that has it (preset=table)", key);
}

// A resumed run looks for its data where it was.
std::unique_ptr<Series> open_data(const Resolved& s, const RunOptions& o) try { return open_series(s, o.data); } catch (const Error& error) {
  std::error_code ignored;
  if (!o.resume || error.code() != ErrorCode::io || std::filesystem::exists(o.data, ignored)) throw;
  throw Error(error.code(),
              fmt::format("{}. If the table was renamed or moved, add data=PATH: a run continues with a table of the same content", error.what()));
}

class CircuitRun final : public TaskRun {
 public:
  CircuitRun(const Resolved& s, const RunOptions& o) {
    unit = "sequences";
    RunPlanner planner(s, o, *this);
    planner.read_earlier();
    const int64_t steps = required_count(s, "steps");
    batch_ = required_count(s, "batch");
    if (o.resume) planner.refuse_finished_run(steps);
    planner.choose_named_device();
    series_ = open_data(s, o);
    notices.insert(notices.end(), series_->notices().begin(), series_->notices().end());
    find_data(planner);
    source_ = series_->fitted().empty() ? series_->form().name : table_paths(o.data);
    seed(o.seed);
    net_ = std::make_shared<CircuitNet>(make_net(s, *series_));
    weights_ = ridge::parameters(*net_);
    const SeriesForm& f = series_->form();
    trainer_schedule_ = schedule_of(s, steps, kCircuitsName);
    checked_product(kCircuitsName, "sequences", {{"steps", steps}, {"batch", batch_}});
    train_ = training_series(*series_, batch_, o.seed);
    validation_ = ordered_series(*series_, SeriesPart::validation, std::min(batch_, series_->count(SeriesPart::validation)));

    RunNeeds needs;
    needs.task = kCircuitsName, needs.train = train_.get(), needs.validation = validation_.get(), needs.batch = batch_;
    needs.loading.depth = int(s.get<int64_t>("prefetch_factor")), needs.loading.threaded = s.get<bool>("enable_async_loading");
    for (const NamedTensor& p : weights_) needs.parameters += p.tensor->size();
    needs.copies = s.get<std::string>("checkpoint_interval") != "none" ? 3 : 1;
    needs.step = step_options(s), needs.step.seed = o.seed;
    std::vector<BatchSpec> specs;
    for (const Type& t : train_->types()) specs.push_back({t.shape, t.dtype});
    const Step model(
        weights_, needs.step.optimizer, [net = net_](const std::vector<Tensor>& batch) { return net->loss(batch, true); },
        [net = net_](const std::vector<Tensor>& batch) { return net->loss(batch, false); });
    const StepModel traced = step_model(model, specs);
    parameters = traced.parameters;
    needs.make_step = [&](const StepOptions& options) {
      own_step_.reset();
      own_step_ = std::make_unique<TrainStep>(traced, options);
      return own_step_.get();
    };
    StepWork work;  // a rough estimate: a loop of a few kernels per step, forward and backward
    work.flops = 6 * double(needs.parameters) * double(batch_ * f.length), work.bytes = 40 * double(needs.parameters) + 400 * double(batch_ * f.length);
    work.launches = 12 * double(f.length) + 20, work.transfer_bytes = 8 * double(batch_ * f.length) * double(f.inputs.size() + f.outputs.size());
    planner.choose_device(work, {});
    planner.plan(needs);
    read_intervals(s, trainer);
    trainer.schedule = trainer_schedule_;
    describe(s, planner);
  }

  void fill_parameters() override {
    for (size_t i = 0; i < weights_.size(); ++i)
      step->fill_parameter(i, [&](std::span<float> values) { std::memcpy(values.data(), weights_[i].tensor->data(), values.size_bytes()); });
  }

  TrainerTask trainer_task(const Resolved& s) override {
    TrainerTask task;
    task.step = step, task.parameters = parameters;
    task.feed = data_feed(*train_, *step, trainer), task.validation = validation_.get();
    if (series_->form().classes) task.score = {.name = "accuracy", .unit = {}, .higher_is_better = true};
    task.texts["circuit.json"] = net_->json(*series_, source_);
    task.restart_hint = "start a new run without --resume, in another folder with --out DIR";
    task.identity = {{"data", identity_}, {"model", model_text()}, {"prediction", series_->form().what}};
    for (const char* key : {"steps",     "batch",  "lr",     "min_lr",  "warmup",           "schedule",   "weight_decay",
                            "beta1",     "beta2",  "clip",   "dropout", "optimizer",        "seed",       "time_scale",
                            "window",    "stride", "length", "split",   "validation_share", "test_share", "muon_momentum",
                            "muon_scale"})
      task.settings[key] = s.get<std::string>(key);
    task.kept = {{"window", "its errors so far are of other sequences"},
                 {"stride", "its errors so far are of other sequences"},
                 {"time_scale", "it has learnt with that scale"}};
    return task;
  }

  void add_to_summary(RunSummary& summary) const override {
    summary.what = fmt::format("{} of {} on {}", net_->rnn.args().cell, parameters_text(), series_->form().name);
    const Outcome& outcome = summary.outcome;
    if (outcome.end == Outcome::End::diverged) return;
    for (size_t i = 0; i < weights_.size(); ++i) {  // the last weights, wherever they are
      std::vector<float> values(size_t(weights_[i].tensor->size()));
      step->read(TrainStep::Held::parameter, i, values);
      std::memcpy(weights_[i].tensor->mutable_data(), values.data(), values.size() * sizeof(float));
    }
    report_ = report_circuit(*net_, *series_);
    summary.results = report_.lines();
    summary.test = report_.figures();
    if (summary.folder.empty()) return;
    const std::string folder = summary.folder.string();
    summary.files = {{"model/", "the last weights, with what is needed to use them on new data"},
                     {"checkpoints/", "to resume from, and the best weights"},
                     {"metrics.jsonl", "every step"},
                     {"train_loss.svg", "and val_loss.svg: losses as pictures"}};
    if (!report_.picture.empty()) summary.files.insert(summary.files.begin(), {"prediction.svg", "predictions and truth"});
    summary.next.push_back({fmt::format("ridge eval {}", folder), "errors with the best weights; data=FILE for other data"});
    if (!report_.classes) summary.next.push_back({fmt::format("ridge sample {}", folder), "a free-running forecast as CSV and picture"});
    const bool left = outcome.steps < trainer.schedule.steps;
    summary.next.push_back({fmt::format("ridge train cfc --resume {}{}", folder, left ? "" : fmt::format(" steps={}", 2 * outcome.steps)),
                            left ? "resumes" : "trains twice as long"});
  }

  void add_found_settings(Resolved& settings) const override {
    if (settings.get<std::vector<std::string>>("data").size() == 1) settings.replace("data", source_, settings.setting("data").source);
  }
  std::string artifact() const override { return "model"; }
  std::string artifact_remedy() const override { return "ridge eval uses the checkpoints"; }
  void write_artifact(const std::filesystem::path& folder) override {
    std::filesystem::create_directories(folder);
    net_->rnn.save((folder / "model.safetensors").string());
    write_atomically((folder / "circuit.json").string(), net_->json(*series_, source_));
    if (!report_.picture.empty()) write_atomically((folder.parent_path() / "prediction.svg").string(), report_.picture);
  }

 private:
  // A table that was renamed is still the run's table.
  void find_data(const RunPlanner& planner) {
    identity_ = series_->identity();
    if (!planner.earlier()) return;
    const auto before = planner.earlier()->identity.find("data");
    if (before == planner.earlier()->identity.end() || before->second == identity_) return;
    if (const std::string_view sum = checksum_in(identity_); sum.empty() || sum != checksum_in(before->second)) return;  // refused when the run is resumed
    notices.push_back(fmt::format("the table was {} and is now {}; its content is the same, so the run continues with it",
                                  before->second.substr(0, before->second.rfind(" (")), series_->form().name));
    identity_ = before->second;
  }

  std::string parameters_text() const { return counted(parameter_count(), "parameter"); }

  std::string model_text() const {
    const CircuitArgs& a = net_->rnn.args();
    const int64_t units = a.wiring.empty() ? a.units : a.wiring[0].units();
    std::string text = fmt::format("{}, {} units", a.cell == "cfc" && a.mode != "default" ? a.cell + " " + a.mode : a.cell, units);
    if (!a.wiring.empty()) text += fmt::format(", wired ({} synapses)", a.wiring[0].synapse_count());
    if (a.cell == "cfc" && a.wiring.empty())
      text += fmt::format(", backbone {}x{} {}", a.backbone_units.value_or(128), a.backbone_layers.value_or(1), a.activation);
    if (a.mixed_memory) text += ", mixed memory";
    if (a.layers > 1) text += fmt::format(", {} layers", a.layers);
    if (a.bidirectional) text += ", bidirectional";
    return text + fmt::format(", time as {}", net_->span && net_->input ? "timespan and input"
                                              : net_->span              ? "timespan"
                                              : net_->input             ? "input"
                                                                        : "steps only");
  }

  void describe(const Resolved& s, RunPlanner& planner) {
    const SeriesForm& f = series_->form();
    std::vector<Decision> first = {as_set(s, "cell", parameters_text(), model_text())};
    first[0].setting = "model";
    if (planner.earlier())
      first.push_back(as_set(s, "resume", fmt::format("from step {} of {}", planner.earlier()->step.attempted, trainer_schedule_.steps),
                             "with the choices of the run so far"));
    const int64_t sequences = series_->count(SeriesPart::train);
    const std::string number = sequences >= int64_t(1) << 40 ? "new sequences every step" : counted(sequences, "sequence");
    first.push_back(as_set(s, "data", fmt::format("{}, {} of {}", f.name, number, counted(f.length, "step")), f.what));
    std::vector<Decision> last = {rate_decision(trainer_schedule_, s.setting("lr").source), as_set(s, "steps", fmt::format("{}", trainer_schedule_.steps))};
    if (sequences < int64_t(1) << 40)
      last.back().why = fmt::format("{:.3g} times through the data", double(trainer_schedule_.steps) * double(batch_) / double(sequences));
    planner.describe(std::move(first), as_set(s, "batch", fmt::format("{} x {} steps", batch_, f.length)), last);
  }

  std::string identity_;  // of the data
  std::string source_;    // where the data is, independent of the working folder
  int64_t batch_ = 0;
  std::unique_ptr<Series> series_;
  std::shared_ptr<CircuitNet> net_;
  std::vector<NamedTensor> weights_;  // in the order of the step's parameters
  std::unique_ptr<BatchSource> train_, validation_;
  std::unique_ptr<TrainStep> own_step_;
  Schedule trainer_schedule_;
  mutable CircuitReport report_;
};

}  // namespace

Task circuits_task() {
  return {
      .name = kCircuitsName,
      .summary = "a recurrent model in continuous time: CfC, LTC and their relatives",
      .keys = config::task_bit(kCircuitsName),
      .example = "preset=xor",
      .register_keys = register_circuit_keys,
      .verbs =
          [] {
            return std::vector<Verb>{circuit_eval_verb(), circuit_sample_verb()};
          },
      .plan = [](const Resolved& settings, const RunOptions& options) -> std::unique_ptr<TaskRun> { return std::make_unique<CircuitRun>(settings, options); },
      .check_data = [](const Resolved& settings, const RunOptions& options) { open_series(settings, options.data); },
      .run_name = [](const Resolved& settings) { return settings.get<std::string>("cell"); },
      .bench_rows = circuit_bench_rows,
      .bench_step = circuit_bench_step,
      .owns = is_circuit};
}

}  // namespace ridge
