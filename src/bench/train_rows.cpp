#include "bench/train_rows.h"

#include <chrono>
#include <regex>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/rng.h"
#include "base/text.h"
#include "machine/ceilings.h"
#include "machine/memory_budget.h"
#include "runtime/thread_team.h"
#include "train/gpt_task.h"

namespace ridge::bench {
namespace {

constexpr int64_t kCharacters = 65;  // of the plays that the presets are named after

TrainResult measure(const std::string& preset, const config::Resolved& settings, ThreadTeam& team, double seconds) {
  using Clock = std::chrono::steady_clock;
  auto since = [](Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); };
  TrainResult r;
  r.name = "gpt/" + preset, r.threads = team.size();
  const GptConfig config = gpt_config(settings, preset.starts_with("gpt2") ? 50304 : kCharacters);
  r.batch = settings.get<std::optional<int64_t>>("batch").value_or(1);
  const StepModel model = gpt_step_model(config, r.batch);
  StepOptions options = gpt_step_options(settings);
  options.team = &team;
  const int64_t before = resident_bytes();
  TrainStep step(model, options);
  for (size_t i = 0; i < model.parameters.size(); ++i) initialize(model.parameters[i], 1, uint32_t(i), step.parameter(i));
  std::vector<int64_t> tokens(size_t(r.batch * config.block)), targets(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = random_word({1, 0, 1}, i) % uint64_t(config.vocab);
    targets[i] = random_word({1, 0, 2}, i) % uint64_t(config.vocab);
  }
  const void* batch[] = {tokens.data(), targets.data()};
  for (int i = 0; i < 2; ++i) step.run(batch);
  r.peak_bytes = resident_bytes() - before, r.planned_bytes = step.plan().planned_bytes;

  FmaWindow fma(team);
  BandwidthWindow copy(team, Movement::copy);
  std::vector<double> times, roofs;
  auto least = [&] { return step.least_seconds(1e9 * fma.gflops(), 1e9 * copy.gbs()); };
  step.run(batch);
  const auto start = Clock::now();
  for (double left = least(); times.size() < 5 || since(start) < seconds;) {
    step.run(batch);  // the ceilings have filled the caches with other things
    const auto begin = Clock::now();
    step.run(batch);
    times.push_back(since(begin));
    const double right = least();
    roofs.push_back(0.5 * (left + right) / times.back());
    left = right;
  }
  const Measured m = summarize(times);
  r.ms = 1e3 * m.median, r.spread = m.spread, r.samples = m.samples;
  r.tokens_s = double(tokens.size()) / m.median, r.tflops = 1e-12 * step.plan().flops / m.median;
  r.roof = summarize(roofs).median;
  return r;
}

}  // namespace

std::vector<std::string> train_presets() { return {"shakespeare-cpu", "shakespeare-char"}; }

void run_train(const Options& options, const PresetSettings& settings, const std::function<void(const TrainResult&)>& sink) {
  const std::regex filter = row_filter(options.filter);
  ThreadTeam team({.threads = options.threads});
  bool any = false;
  for (const std::string& preset : train_presets()) {
    if (!std::regex_search("gpt/" + preset, filter)) continue;
    any = true;
    sink(measure(preset, settings(preset), team, options.seconds));
  }
  if (any) return;
  std::string rows;
  for (const std::string& preset : train_presets()) rows += " gpt/" + preset;
  fail(ErrorCode::usage, "[bench] no row matches '{}'; there are{}", options.filter, rows);
}

std::string to_json(const TrainResult& r) {
  nlohmann::ordered_json j;
  j["suite"] = "train", j["name"] = r.name, j["device"] = "cpu", j["threads"] = r.threads, j["precision"] = r.precision, j["batch"] = r.batch;
  j["ms"] = r.ms, j["spread"] = r.spread, j["samples"] = r.samples, j["tokens_s"] = r.tokens_s, j["tflops"] = r.tflops, j["roof"] = r.roof;
  j["planned_bytes"] = r.planned_bytes, j["peak_bytes"] = r.peak_bytes;
  return j.dump();
}

std::string train_table_head() {
  return fmt::format("{:<24} {:>6} {:>9} {:>7} {:>10} {:>8} {:>6} {:>11} {:>11}", "row", "batch", "ms", "spread", "tokens/s", "TFLOP/s", "roof", "planned",
                     "taken");
}

std::string to_table_line(const TrainResult& r) {
  return fmt::format("{:<24} {:>6} {:>9.2f} {:>6.0f}% {:>10.0f} {:>8.3f} {:>6.3f} {:>11} {:>11}", r.name, r.batch, r.ms, 100 * r.spread, r.tokens_s, r.tflops,
                     r.roof, size_text(r.planned_bytes), size_text(r.peak_bytes));
}

}  // namespace ridge::bench
