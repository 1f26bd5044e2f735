#include "tasks/gpt/run.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <numeric>

#include "backend/backend.h"
#include "base/error.h"
#include "base/text.h"
#include "machine/limits.h"
#include "tasks/gpt/device.h"
#include "tasks/gpt/files.h"
#include "tasks/gpt/sampler.h"
#include "tasks/gpt/task.h"

namespace ridge {
namespace {

using config::Resolved;

// What a resumed run must share, and what should be the same for the same bits.
std::map<std::string, std::string> identity_of(const GptRun& run) {
  return {{"model", model_identity(run.model)}, {"vocabulary", std::to_string(run.data.vocab)}, {"data", data_identity(run.data)}};
}
std::map<std::string, std::string> settings_of(const Resolved& s) {
  std::map<std::string, std::string> words;
  for (const char* key : {"steps", "batch", "lr", "min_lr", "warmup", "schedule", "weight_decay", "beta1", "beta2", "clip", "dropout", "seed"})
    words[key] = s.get<std::string>(key);
  return words;
}

}  // namespace

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

int64_t GptRun::parameter_count() const {
  return std::accumulate(parameters.begin(), parameters.end(), int64_t(0), [](int64_t sum, const Parameter& p) { return sum + p.shape.numel(); });
}

std::optional<double> nats_per_character(const GptRun& run, double loss) {
  const double characters = characters_a_token(run.data, run.model.block, run.validation_windows);
  if (characters <= 0) return {};
  return loss / characters;
}

// The driver's own memory, now that all kernels are loaded; recordings come with the first steps.
static void count_driver(GptRun& run) {
  constexpr int64_t kRecordings = int64_t(16) << 20;
  const int64_t held = run.backend->memory().held + kRecordings;
  run.planned_bytes += held - run.memory.front().bytes;
  run.memory.front().bytes = held;
  run.trainer.planned_bytes = run.planned_bytes;
}

GptRun start_gpt_run(const Resolved& settings, const GptRunOptions& options) {
  GptRunOptions o = options;
  std::vector<std::string> replanned;
  for (int attempt = 1;; ++attempt) {
    GptRun run = settle_gpt_run(settings, o);
    const bool far = !run.backend->host_memory();
    const DeviceMemory device = run.backend->memory();
    const int64_t needed = run.planned_bytes - run.passed_bytes - (far ? device.held : resident_bytes());
    const int64_t left = options.free_memory ? options.free_memory() : far ? device.free : read_limits().memory_available;
    std::string trouble;
    if (left > 0 && needed > left) trouble = fmt::format("{} are needed and {} are left", size_text(needed), size_text(left));
    if (trouble.empty()) try {
        run.step->compile_ahead();
        if (run.sampler) run.sampler->compile_ahead();
        run.step->touch();
        if (run.sampler) {
          std::vector<const void*> weights;
          for (size_t i = 0; i < run.parameters.size(); ++i) weights.push_back(run.step->parameter_place(i));
          run.make_sampler(std::move(weights));
          if (far) run.sampler->prepare();
        }
        if (far) count_driver(run);
        run.notices.insert(run.notices.begin(), replanned.begin(), replanned.end());
        return run;
      } catch (const Error& error) {
        if (error.code() != ErrorCode::memory) throw;
        trouble = error.what();
      }
    if (attempt == 3) fail(ErrorCode::memory, "[gpt] the memory of the plan cannot be had: {}; close other programs or give a smaller memory=SIZE", trouble);
    replanned.push_back(fmt::format("others have taken memory since the plan was made ({}): planned again for what is free", trouble));
    o.free_memory = [free = std::max<int64_t>(1, left), &options] { return options.free_memory ? options.free_memory() : free; };
  }
}

void write_weights(GptRun& run, const GptWeights* from) {
  for (size_t i = 0; i < run.parameters.size(); ++i)
    run.step->fill_parameter(i, [&](std::span<float> values) {
      std::fill(values.begin(), values.end(), 0.0f);  // rows that only fill up the vocabulary
      const std::span<float> stored = values.first(size_t(run.parameters[i].shape.numel()));
      if (from)
        from->copy(i, stored), from->drop(i);
      else
        initialize(run.parameters[i], run.seed, uint32_t(i), stored);
    });
}

TrainerTask gpt_task(GptRun& run, const Resolved& settings) {
  TrainerTask task;
  task.step = run.step.get(), task.parameters = run.parameters;
  task.feed = data_feed(*run.train, *run.step, run.trainer), task.validation = run.validation.get();
  task.identity = identity_of(run), task.settings = settings_of(settings);
  task.texts["config.json"] = gpt_config_json(run.model);
  if (run.data.tokenizer) task.texts["tokenizer.json"] = run.data.tokenizer->json();
  if (run.sampler) task.sample = [&run] { return run.sample(); };
  return task;
}

void write_model(GptRun& run, const std::filesystem::path& folder) {
  std::vector<std::span<const float>> weights;
  std::deque<std::vector<float>> copies;
  const std::vector<Parameter> own = gpt_parameters(run.model);
  for (size_t i = 0; i < run.parameters.size(); ++i)
    if (run.step->in_place()) {
      weights.push_back(run.step->parameter(i));
    } else {
      weights.push_back(copies.emplace_back(size_t(own[i].shape.numel())));
      run.step->read(TrainStep::Held::parameter, i, copies.back());
    }
  export_gpt(folder, run.model, weights, run.data.tokenizer.get());
}

Outcome run_gpt(GptRun& run, const Resolved& settings, const std::vector<TrainerView*>& views) {
  if (!run.trainer.resume) write_weights(run, run.init_from.get());
  run.init_from.reset();  // its pages are not in the plan
  const Outcome outcome = train(gpt_task(run, settings), run.trainer, views);
  if (outcome.own_steps >= 50) keep_step_time(run.expected_key, run.expected_step_seconds, 1e-3 * outcome.ms);
  return outcome;
}

}  // namespace ridge
