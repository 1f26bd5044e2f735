#include "tasks/gpt/format_trial.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>

#include <fmt/core.h>

#include "backend/registry.h"
#include "machine/machine.h"
#include "machine/measurement_store.h"
#include "tasks/gpt/task.h"
#include "threads/thread_team.h"

namespace ridge {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kNarrowest = 96;                                 // minimum width for products large enough to be worth the casts
constexpr int64_t kWidest = 384, kTokens = 512, kVocabulary = 64;  // limits of the trial: beyond them, formats compare in the same way

// One layer with the model's options, and enough samples for a reliable comparison.
struct Trial {
  GptConfig model;
  int64_t batch = 1;

  Trial(const GptConfig& whole, int64_t samples) : model(whole) {
    model.layers = 1, model.vocab = std::min(whole.vocab, kVocabulary), model.padded_vocab = 0;
    model.block = std::min(whole.block, kTokens / 2);
    if (model.width > kWidest) {
      const int64_t head = std::clamp<int64_t>(whole.width / std::max<int64_t>(1, whole.heads), 1, kWidest);
      model.heads = kWidest / head, model.width = model.heads * head, model.kv_heads = 0, model.hidden = 0;
    }
    batch = std::clamp<int64_t>(kTokens / model.block, 1, samples);
  }
  std::string key(const ThreadTeam& team) const {
    const GptConfig& m = model;
    return fmt::format("format_trial/{}/{}x{}x{}/{}.{}.{}.{}.{}.{}.{}.{}/bf16", team.size(), batch, m.block, m.width, m.heads, m.kv_heads, m.hidden, int(m.mlp),
                       int(m.norm), int(m.position), m.bias, m.dropout > 0);
  }
};

// A step of the trial, ready to run.
struct Runner {
  std::unique_ptr<Backend> backend;
  StepModel model;
  std::unique_ptr<TrainStep> step;
  std::vector<int64_t> tokens;

  Runner(const Trial& trial, Precision precision, ThreadTeam& team)
      : backend(cpu_backend(team)), model(gpt_step_model(trial.model, trial.batch)), tokens(size_t(trial.batch * trial.model.block), 0) {
    StepOptions options;
    options.backend = backend.get(), options.evaluation = false, options.precision = precision;
    step = std::make_unique<TrainStep>(model, options);
  }
  void fill() {
    for (size_t i = 0; i < model.parameters.size(); ++i)
      step->fill_parameter(i, [&](std::span<float> to) { initialize(model.parameters[i], 1, uint32_t(i), to); });
  }
  double seconds() {
    const void* batch[] = {tokens.data(), tokens.data()};
    const auto start = Clock::now();
    step->run(batch);
    return std::chrono::duration<double>(Clock::now() - start).count();
  }
};

struct Verdict {
  double speed = 0;   // of bf16 relative to fp32; 0: not enough memory to measure
  bool sure = false;  // more than three quarters of the pairs agree on whether bf16 pays off
};

// Alternates single steps, so that other load on the machine affects both of a pair.
Verdict compare(const Trial& trial, ThreadTeam& team, int64_t memory) {
  constexpr int kPairs = 8;
  constexpr double kWorthIt = 1.15;  // the same threshold as in choose_precision()
  Runner fp32(trial, Precision::fp32, team), bf16(trial, Precision::bf16, team);
  if (fp32.step->plan().planned_bytes + bf16.step->plan().planned_bytes > memory) return {};
  std::vector<double> ratios;
  fp32.fill(), bf16.fill();
  fp32.seconds(), bf16.seconds();
  for (int i = 0; i < kPairs; ++i) {
    const double wide = fp32.seconds();
    ratios.push_back(wide / bf16.seconds());
  }
  std::sort(ratios.begin(), ratios.end());
  return {(ratios[kPairs / 2 - 1] + ratios[kPairs / 2]) / 2, (ratios[kPairs / 4 - 1] >= kWorthIt) == (ratios[kPairs - kPairs / 4] >= kWorthIt)};
}

}  // namespace

FormatTrial try_formats(const GptConfig& whole, int64_t samples, ThreadTeam& team, int64_t memory, Figures figures) {
  // Shared by all runs of an experiment, even if the measurement store cannot be written.
  static std::mutex mutex;
  static std::map<std::string, double> found;
  const std::lock_guard lock(mutex);
  if (facts_of(Precision::bf16, arithmetic_of({}, {})).support != Support::native) return {};
  if (figures == Figures::none) return {};
  if (whole.width < kNarrowest) return {{}, fmt::format("a width of {} is too narrow for a coarser format to pay off", whole.width)};
  const Trial trial(whole, samples);
  MeasurementStore store{fingerprint(detect_machine({}))};
  const std::string key = trial.key(team);
  double speed = store.number(key).value_or(0);
  if (const auto before = found.find(store.file().string() + key); speed <= 0 && before != found.end()) speed = before->second;
  if (speed <= 0) {
    if (figures != Figures::measured) return {};
    const Verdict verdict = compare(trial, team, memory);
    if (verdict.speed <= 0) return {{}, "there is not enough memory to try a coarser format"};
    speed = verdict.speed;
    if (verdict.sure) store.put(key, {.value = fmt::format("{:.6g}", speed), .samples = 1});
    found[store.file().string() + key] = speed;
  }
  return {[speed](const Device& device, Precision precision) -> std::optional<double> {
            if (device.kind != Device::Kind::cpu) return {};
            return precision == Precision::fp32 ? std::optional(1.0) : precision == Precision::bf16 ? std::optional(speed) : std::nullopt;
          },
          {}};
}

}  // namespace ridge
