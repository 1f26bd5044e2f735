#include "train/format_trial.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <map>

#include <fmt/core.h>

#include "machine/machine.h"
#include "machine/profile.h"
#include "runtime/thread_team.h"
#include "train/gpt_task.h"

namespace ridge {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kNarrowest = 96;                                 // of a model whose products are long enough to be worth the casts
constexpr int64_t kWidest = 384, kTokens = 512, kVocabulary = 64;  // of the trial: beyond, formats compare as they do here

// One layer with the model's own options, and as many of its samples as tell enough.
struct Trial {
  GptConfig model;
  int64_t batch = 1;

  Trial(const GptConfig& whole, int64_t samples) : model(whole) {
    const int64_t head = std::max<int64_t>(1, whole.width / std::max<int64_t>(1, whole.heads));
    model.layers = 1, model.vocab = std::min(whole.vocab, kVocabulary), model.padded_vocab = 0;
    model.block = std::min(whole.block, kTokens / 2);
    if (model.width > kWidest) model.heads = std::max<int64_t>(1, kWidest / head), model.width = model.heads * head, model.kv_heads = 0, model.hidden = 0;
    batch = std::clamp<int64_t>(kTokens / model.block, 1, samples);
  }
  std::string key(Precision precision, const ThreadTeam& team) const {
    return fmt::format("format_trial/{}/{}x{}x{}x{}/{}", team.size(), batch, model.block, model.width, model.heads, name(precision));
  }
};

// The best of a few steps: other programs make one slower, never faster.
double best_seconds(const Trial& trial, Precision precision, ThreadTeam& team) {
  constexpr int kSteps = 4;  // the first of which warms up
  const StepModel model = gpt_step_model(trial.model, trial.batch);
  StepOptions options;
  options.team = &team, options.evaluation = false, options.precision = precision;
  TrainStep step(model, options);
  for (size_t i = 0; i < model.parameters.size(); ++i)
    step.fill_parameter(i, [&](std::span<float> to) { initialize(model.parameters[i], 1, uint32_t(i), to); });
  const std::vector<int64_t> tokens(size_t(trial.batch * trial.model.block), 0);
  const void* batch[] = {tokens.data(), tokens.data()};
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kSteps; ++i) {
    const auto start = Clock::now();
    step.run(batch);
    if (i > 0) best = std::min(best, std::chrono::duration<double>(Clock::now() - start).count());
  }
  return best;
}

}  // namespace

FormatTrial try_formats(const GptConfig& whole, int64_t samples, ThreadTeam& team, bool measure) {
  constexpr Precision kFormats[] = {Precision::fp32, Precision::bf16};
  const ArithmeticUnit unit = arithmetic_of({}, {});
  if (facts_of(Precision::bf16, unit).support != Support::native) return {};
  if (whole.width < kNarrowest) return {{}, fmt::format("a width of {} is too narrow for a coarser format to pay", whole.width)};
  const Trial trial(whole, samples);
  Profile profile{fingerprint(look_at_machine({}))};
  std::map<Precision, double> rates;
  for (Precision format : kFormats)
    if (const std::optional<double> known = profile.number(trial.key(format, team))) rates[format] = *known;
  if (rates.size() < std::size(kFormats)) {
    if (!measure) return {};
    rates.clear();
    for (int round = 0; round < 2; ++round)  // taking turns, so that both see what else the machine does
      for (Precision format : kFormats) rates[format] = std::max(rates[format], 1 / best_seconds(trial, format, team));
    std::vector<NamedMeasurement> rows;
    for (auto [format, rate] : rates) rows.push_back({trial.key(format, team), {.value = fmt::format("{:.6g}", rate), .samples = 1}});
    profile.put(rows);
  }
  return {[rates](const Device& device, Precision precision) -> std::optional<double> {
            const auto found = rates.find(precision);
            return device.kind == Device::Kind::cpu && found != rates.end() ? std::optional(found->second) : std::nullopt;
          },
          {}};
}

}  // namespace ridge
