// A run of a recurrent model: planned, trained, and reported against the best possible error and simple predictors.
#include "base/checked.h"
#include "base/error.h"
#include "base/text.h"
#include "io/atomic_file.h"
#include "io/checksum.h"
#include "tasks/circuits/task.h"
#include "train/module_run.h"

namespace ridge {
namespace {

using config::Resolved;

// A resumed run looks for its data where it was.
std::unique_ptr<Series> open_data(const Resolved& s, const RunOptions& o) try { return open_series(s, o.data); } catch (const Error& error) {
  std::error_code ignored;
  if (!o.resume || error.code() != ErrorCode::io || std::filesystem::exists(o.data, ignored)) throw;
  throw Error(error.code(),
              fmt::format("{}. If the table was renamed or moved, add data=PATH: a run continues with a table of the same content", error.what()));
}

class CircuitRun final : public ModuleRun {
 public:
  CircuitRun(const Resolved& s, const RunOptions& o) {
    unit = "sequences";
    RunPlanner planner(s, o, *this);
    planner.read_earlier();
    const int64_t steps = required<int64_t>(s, "steps", kCircuitsName, "table");
    batch_ = required<int64_t>(s, "batch", kCircuitsName, "table");
    if (o.resume) planner.refuse_finished_run(steps);
    planner.choose_named_device();
    series_ = open_data(s, o);
    notices.insert(notices.end(), series_->notices().begin(), series_->notices().end());
    find_data(planner);
    source_ = series_->fitted().empty() ? series_->form().name : table_paths(o.data);
    seed(o.seed);
    net_ = std::make_shared<CircuitNet>(make_net(s, *series_, planner.is_set_now("wiring") ? "" : planner.earlier_text("circuit.json")));
    if (const std::string remark = net_->rnn.args().remark(); !remark.empty()) notices.push_back(remark);
    weights_ = ridge::parameters(*net_);
    trainer.schedule = schedule_of(s, steps, kCircuitsName), read_intervals(s, trainer);
    checked_product(kCircuitsName, "sequences", {{"steps", steps}, {"batch", batch_}});
    train_ = training_series(*series_, batch_, o.seed);
    validation_ = ordered_series(*series_, SeriesPart::validation, std::min(batch_, series_->count(SeriesPart::validation)));

    std::vector<BatchSpec> specs;
    for (const Type& t : train_->types()) specs.push_back({t.shape, t.dtype});
    auto loss = [net = net_](bool training) { return [=](const std::vector<Tensor>& batch) { return net->loss(batch, training); }; };
    RunNeeds needs = module_needs(s, o, kCircuitsName, Step(weights_, {}, loss(true), loss(false)), specs);
    needs.steps = steps, needs.train = train_.get(), needs.validation = validation_.get();
    planner.choose_device(needs.work, {});
    planner.plan(needs);
    describe(s, planner);
  }

  TrainerTask trainer_task(const Resolved& s) override {
    TrainerTask task;
    task.step = step, task.parameters = parameters, task.feed = data_feed(*train_, *step, trainer), task.validation = validation_.get();
    if (series_->form().classes) task.score = {.name = "accuracy", .unit = {}, .higher_is_better = true};
    task.texts["circuit.json"] = net_->json(*series_, source_);
    task.restart_hint = "start a new run without --resume, in another folder with --out DIR";
    task.identity = {{"data", identity_}, {"model", model_text()}, {"prediction", series_->form().what}};
    task.settings = training_words(s, {"dropout", "time_scale", "unfolds", "solver", "implicit_constraints", "input_mapping", "output_mapping", "window",
                                       "stride", "length", "split", "validation_share", "test_share"});
    for (const Wiring& w : net_->rnn.args().wiring) task.settings["wiring"] += checksum_of(w.json()).substr(0, 12);
    task.kept = {{"window", "its errors so far are of other sequences"}, {"stride", "its errors so far are of other sequences"}};
    for (const char* key : {"wiring", "time_scale", "unfolds", "solver", "implicit_constraints", "input_mapping", "output_mapping"})
      task.kept[key] = "it has learnt with that";
    return task;
  }

  void add_to_summary(RunSummary& summary) const override {
    summary.what = fmt::format("{} of {} on {}", net_->rnn.args().cell, counted(parameter_count(), "parameter"), series_->form().name);
    if (summary.outcome.end == Outcome::End::diverged) return;
    read_weights();
    report_ = report_circuit(*net_, *series_);
    summary.results = report_.lines(), summary.test = report_.figures();
    if (summary.folder.empty()) return;
    const std::string folder = shell_word(summary.folder.string());
    add_files(summary, "use them on new data");
    summary.files.emplace_back("train_loss.svg", "and val_loss.svg: losses as pictures");
    if (!report_.picture.empty()) summary.files.insert(summary.files.begin(), {"prediction.svg", "predictions and truth"});
    summary.next.push_back({fmt::format("ridge eval {}", folder), "errors with the best weights; data=FILE for other data"});
    if (!report_.classes) summary.next.push_back({fmt::format("ridge sample {}", folder), "a free-running forecast as CSV and picture"});
    summary.next.push_back(resume_command(summary, "steps", 2 * summary.outcome.steps));
  }

  void add_found_settings(Resolved& settings) const override {
    if (settings.get<std::vector<std::string>>("data").size() == 1) settings.replace("data", source_, settings.setting("data").source);
  }
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
    const std::string before = planner.earlier() && planner.earlier()->identity.contains("data") ? planner.earlier()->identity.at("data") : identity_;
    const std::string_view sum = checksum_in(identity_);
    if (before == identity_ || sum.empty() || sum != checksum_in(before)) return;  // other data is refused when the run is resumed
    notices.push_back(fmt::format("the table was {} and is now {}; its content is the same, so the run continues with it", before.substr(0, before.rfind(" (")),
                                  series_->form().name));
    identity_ = before;
  }

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
    constexpr const char* kTimes[] = {"steps only", "input", "timespan", "timespan and input"};
    return text + fmt::format(", time as {}", kTimes[2 * net_->span + net_->input]);
  }

  void describe(const Resolved& s, RunPlanner& planner) {
    const SeriesForm& f = series_->form();
    std::vector<Decision> first = {{"model", counted(parameter_count(), "parameter"), s.setting("cell").source, model_text()}};
    const int64_t sequences = series_->count(SeriesPart::train);
    const std::string number = sequences >= int64_t(1) << 40 ? "new sequences every step" : counted(sequences, "sequence");
    first.push_back(as_set(s, "data", fmt::format("{}, {} of {}", f.name, number, counted(f.length, "step")), f.about()));
    std::vector<Decision> last = {rate_decision(trainer.schedule, s.setting("lr").source), as_set(s, "steps", fmt::format("{}", trainer.schedule.steps))};
    if (sequences < int64_t(1) << 40)
      last.back().why = fmt::format("{:.3g} times through the data", double(trainer.schedule.steps) * double(batch_) / double(sequences));
    planner.describe(std::move(first), as_set(s, "batch", fmt::format("{} x {} steps", batch_, f.length)), last);
  }

  std::string identity_, source_;  // of the data, and where it is, independent of the working folder
  int64_t batch_ = 0;
  std::unique_ptr<Series> series_;
  std::shared_ptr<CircuitNet> net_;
  std::unique_ptr<BatchSource> train_, validation_;
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
      .verbs = circuit_verbs,
      .plan = [](const Resolved& settings, const RunOptions& options) -> std::unique_ptr<TaskRun> { return std::make_unique<CircuitRun>(settings, options); },
      .check_data = [](const Resolved& settings, const RunOptions& options) { open_series(settings, options.data); },
      .run_name = [](const Resolved& settings) { return settings.get<std::string>("cell"); },
      .bench_rows = circuit_bench_rows,
      .bench_step = circuit_bench_step,
      .owns = is_circuit,
      .sizes = {{"batch", {16, 32, 64, 128, 256, 512}}, {"units", {32, 64, 128, 256}}, {"backbone_units", {32, 64, 128, 256}}, {"backbone_layers", {1, 2}}},
      .uses_size =
          [](const Resolved& s, std::string_view key) {
            return key == "batch" || (s.get<std::string>("wiring").empty() && (key == "units" || s.get<std::string>("cell") == "cfc"));
          },
      .kept = {"cell", "mode", "units", "mixed_memory", "layers", "bidirectional"}};
}

}  // namespace ridge
