#include "tasks/gpt/run.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <optional>

#include "tasks/gpt/files.h"
#include "tasks/gpt/sampler.h"
#include "tasks/gpt/task.h"
#include "tasks/gpt/verbs.h"
#include "train/model_folder.h"
#include "train/module_run.h"

namespace ridge {
namespace {

using config::Resolved;

// What must match on resume, and what should match for a bit-exact resume.
std::map<std::string, std::string> identity_of(const GptRun& run) {
  return {{"model", model_identity(run.model)}, {"vocabulary", std::to_string(run.data.vocab)}, {"data", data_identity(run.data)}};
}

}  // namespace

Task gpt_task() {
  return {.name = kGptName,
          .summary = "a GPT language model",
          .keys = config::task_bit(kGptName),
          .example = "data=my.txt",
          .register_keys = register_gpt_keys,
          .verbs =
              [] {
                return std::vector<Verb>{data_verb(), eval_verb(), export_verb(), sample_verb()};
              },
          .plan = [](const Resolved& settings, const RunOptions& options) -> std::unique_ptr<TaskRun> {
            return std::make_unique<GptRun>(plan_gpt_run(settings, options));
          },
          .check_data = check_gpt_data,
          .run_name = [](const Resolved& settings) { return settings.get<std::string>("preset"); },
          .bench_rows = gpt_bench_rows,
          .bench_step = gpt_bench_step,
          .owns = [](const std::filesystem::path& model) { return has_description(model, "config.json"); },
          .sizes = {{"batch", {1}}}};
}

std::string data_identity(const Dataset& data) { return fmt::format("{} ({})", data.name, data.fingerprint.substr(0, 12)); }

GptRun::GptRun() = default;
GptRun::GptRun(GptRun&&) noexcept = default;
GptRun::~GptRun() = default;

void GptRun::make_sampler(std::vector<const void*> weights) {
  sampler = std::make_unique<GptSampler>(std::make_shared<GptParameters>(model, std::move(weights)), *backend, DType::f32);
}

std::string GptRun::sample() {
  constexpr int64_t kTokens = 160;
  const Tokenizer& tokenizer = *data.tokenizer;
  std::vector<int64_t> first(1);
  data.validation.copy(data.window_starts.empty() ? 0 : data.window_starts.front(), first);
  const Token prompt[] = {Token(first[0])};
  std::string text;
  const auto start = std::chrono::steady_clock::now();
  sampler->forget();
  sampler->generate(prompt, std::min(kTokens, model.block - 1), {.seed = seed}, [&](Token t) { return text += tokenizer.bytes_of(t), true; });
  sampled_tokens += sampler->position();
  sampled_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return text;
}

std::optional<double> nats_per_character(const GptRun& run, double loss) {
  const double characters = count_characters_per_token(run.data, run.model.block, run.validation_windows);
  if (characters <= 0) return {};
  return loss / characters;
}

void GptRun::prepare() {
  step->compile_ahead();
  if (sampler) sampler->compile_ahead();
  step->touch();
  if (!sampler) return;
  std::vector<const void*> weights;
  for (size_t i = 0; i < parameters.size(); ++i) weights.push_back(step->parameter_place(i));
  make_sampler(std::move(weights));
  if (on_device()) sampler->prepare();
}

void GptRun::fill_parameters() {
  for (size_t i = 0; i < parameters.size(); ++i)
    step->fill_parameter(i, [&](std::span<float> values) {
      std::fill(values.begin(), values.end(), 0.0f);  // for the rows that pad the vocabulary
      const std::span<float> stored = values.first(size_t(parameters[i].shape.numel()));
      if (init_from)
        init_from->copy(i, stored), init_from->drop(i);
      else
        initialize(parameters[i], seed, uint32_t(i), stored);
    });
}

TrainerTask GptRun::trainer_task(const Resolved& settings) {
  init_from.reset();  // the memory plan does not include its pages
  TrainerTask task;
  task.step = step, task.parameters = parameters;
  task.feed = data_feed(*train, *step, trainer), task.validation = validation.get();
  task.identity = identity_of(*this), task.settings = training_words(settings, {"dropout"});
  task.texts["config.json"] = gpt_config_json(model);
  if (data.tokenizer) task.texts["tokenizer.json"] = data.tokenizer->json();
  if (sampler) task.sample = [this] { return sample(); };
  return task;
}

void GptRun::add_found_settings(Resolved& settings) const {
  for (const auto& [key, value] : fixed_sizes) settings.replace(key, value, "init_from");
}

void GptRun::write_artifact(const std::filesystem::path& folder) {
  std::vector<std::span<const float>> weights;
  std::deque<std::vector<float>> copies;
  const std::vector<Parameter> own = gpt_parameters(model);
  for (size_t i = 0; i < parameters.size(); ++i)
    if (step->in_place()) {
      weights.push_back(step->parameter(i));
    } else {
      weights.push_back(copies.emplace_back(size_t(own[i].shape.numel())));
      step->read(TrainStep::Held::parameter, i, copies.back());
    }
  export_gpt(folder, model, weights, data.tokenizer.get());
}

}  // namespace ridge
