// Whole training steps of presets, as benchmark rows.
#include <fmt/format.h>

#include <cstring>

#include "base/rng.h"
#include "tasks/gpt/format_trial.h"
#include "tasks/gpt/run.h"
#include "tasks/gpt/task.h"

namespace ridge {

std::vector<BenchRow> gpt_bench_rows(bool gpu) {
  auto row = [&](const std::string& preset, int64_t gpu_batch) {
    BenchRow r{"gpt/" + preset, {"preset=" + preset, "dropout=0"}};  // as the rivals are measured
    if (gpu) r.settings.push_back(fmt::format("batch={}", gpu_batch));
    if (preset.starts_with("gpt2")) r.settings.push_back("bias=true");  // as in GPT-2
    return r;
  };
  if (gpu) return {row("shakespeare-char", 64), row("gpt2", 64), row("gpt2-medium", 32)};
  return {row("shakespeare-cpu", 0), row("shakespeare-char", 0)};
}

BenchStep gpt_bench_step(const BenchRow&, const config::Resolved& settings) {
  constexpr int64_t kPlayCharacters = 65, kGpt2Tokens = 50304;  // of the plays that presets are named after, and of GPT-2, padded
  const GptConfig config = gpt_config(settings, settings.get<std::string>("preset").starts_with("gpt2") ? kGpt2Tokens : kPlayCharacters);
  const int64_t samples = required_size(settings, "batch");
  BenchStep step{gpt_step_model(config, samples), gpt_step_options(settings), {}, samples * config.block};
  for (uint32_t stream : {1, 2}) {  // tokens and targets
    std::vector<int64_t> tokens(size_t(step.units));
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = random_word({1, 0, stream}, i) % uint64_t(config.vocab);
    std::memcpy(step.batch.emplace_back(tokens.size() * sizeof(int64_t)).data(), tokens.data(), tokens.size() * sizeof(int64_t));
  }
  step.try_formats = [config, samples](ThreadTeam& team, int64_t memory, Figures figures) { return try_formats(config, samples, team, memory, figures); };
  return step;
}

}  // namespace ridge
