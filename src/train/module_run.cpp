#include "train/module_run.h"

#include <cstring>

#include "base/text.h"
#include "step/compiled_step.h"
#include "step/step_work.h"

namespace ridge {

void ModuleRun::fill_parameters() {
  for (size_t i = 0; i < weights_.size(); ++i)
    step->fill_parameter(i, [&](std::span<float> values) { std::memcpy(values.data(), weights_[i].tensor->data(), values.size_bytes()); });
}

void ModuleRun::read_weights() const {
  for (size_t i = 0; i < weights_.size(); ++i) {
    std::vector<float> values(size_t(weights_[i].tensor->size()));
    step->read(TrainStep::Held::parameter, i, values);
    std::memcpy(weights_[i].tensor->mutable_data(), values.data(), values.size() * sizeof(float));
  }
}

RunNeeds ModuleRun::module_needs(const config::Resolved& s, const RunOptions& o, const char* name, const Step& model, const std::vector<BatchSpec>& batch) {
  RunNeeds needs;
  needs.task = name, needs.batch = batch[0].shape[0];
  needs.loading.depth = int(s.get<int64_t>("prefetch_factor")), needs.loading.threaded = s.get<bool>("enable_async_loading");
  needs.copies = s.get<std::string>("checkpoint_interval") != "none" ? 3 : 1;
  needs.step = step_options(s), needs.step.seed = o.seed;
  const auto traced = std::make_shared<const StepModel>(step_model(model, batch));
  parameters = traced->parameters, needs.parameters = parameter_count();
  needs.work = step_work(*traced);
  needs.fill = [this](size_t i, std::span<float> values) { std::memcpy(values.data(), weights_[i].tensor->data(), values.size_bytes()); };
  needs.make_step = [this, traced](const StepOptions& options) {
    own_step_.reset();  // free its programs before compiling others
    own_step_ = std::make_unique<TrainStep>(*traced, options);
    return own_step_.get();
  };
  return needs;
}

void ModuleRun::add_files(RunSummary& summary, const char* purpose) const {
  summary.files = {{"model/", fmt::format("the last weights, with what is needed to {}", purpose)},
                   {"checkpoints/", "to resume from, and the best weights"},
                   {"metrics.jsonl", fmt::format("every {}", step_word(unit))}};
}

std::pair<std::string, std::string> ModuleRun::resume_command(const RunSummary& summary, const char* length_key, int64_t twice, const char* target_key) const {
  const std::string endless = summary.outcome.end == Outcome::End::target ? fmt::format(" {}=none", target_key) : "";
  const bool left = summary.outcome.steps < trainer.schedule.steps;
  return {
      fmt::format("ridge train {} --resume {}{}{}", task, shell_word(summary.folder.string()), left ? "" : fmt::format(" {}={}", length_key, twice), endless),
      left ? "resumes" : "trains twice as long"};
}

BenchStep module_bench(const Step& step, const std::vector<BatchSpec>& batch) {
  BenchStep bench;
  bench.model = step_model(step, batch), bench.options.optimizer = step.optimizer();
  bench.fill = [weights = step.parameters()](size_t i, std::span<float> values) { std::memcpy(values.data(), weights[i].tensor->data(), values.size_bytes()); };
  return bench;
}

std::map<std::string, std::string> training_words(const config::Resolved& settings, std::initializer_list<const char*> more) {
  std::map<std::string, std::string> words;
  for (const char* key :
       {"steps", "batch", "lr", "min_lr", "warmup", "schedule", "optimizer", "weight_decay", "beta1", "beta2", "muon_momentum", "muon_scale", "clip", "seed"})
    words[key] = settings.get<std::string>(key);
  for (const char* key : more) words[key] = settings.get<std::string>(key);
  return words;
}

}  // namespace ridge
