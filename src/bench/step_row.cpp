#include "bench/step_row.h"

#include <chrono>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "bench/bench.h"
#include "machine/utilisation.h"
#include "measure/ceilings.h"
#include "threads/thread_team.h"
#include "train/parts.h"

namespace ridge::bench {
namespace {

struct Enough {};  // ends a training that is only measured

}  // namespace

StepResult measure_step(const Task& task, const config::Resolved& settings, double seconds) {
  using Clock = std::chrono::steady_clock;
  constexpr size_t kWarmUp = 2, kLeast = 3;
  auto between = [](Clock::time_point a, Clock::time_point b) { return std::chrono::duration<double>(b - a).count(); };
  RunOptions options;
  const Part part = parts_of(settings, settings.get<std::string>("out")).front();
  options.data = part.data, options.seed = part.seed, options.measure = settings.get<bool>("optimize_perf");
  const std::unique_ptr<TaskRun> run = start_run(task, settings, options);
  run->trainer.folder.clear();
  run->trainer.resume = run->trainer.validate = run->trainer.samples = run->trainer.keep_checkpoints = false;
  run->fill_parameters();
  const TrainerTask own = run->trainer_task(settings);
  const int64_t group = own.feed->group();
  run->trainer.schedule.steps = std::max(run->trainer.schedule.steps, int64_t(1) << 40);

  StepResult r;
  std::vector<double> times;
  int64_t begun = 0;
  Clock::time_point last;
  run->trainer.before = [&](Phase phase, int64_t) {
    if (phase != Phase::data || begun++ % group != 0) return;
    if (begun > 1) {
      inject_slowdown(last);
      times.push_back(between(last, Clock::now()));
    } else {
      r.ready_s = between(options.started, Clock::now());
    }
    double total = 0;
    for (size_t i = kWarmUp; i < times.size(); ++i) total += times[i];
    if (times.size() >= kWarmUp + kLeast && total >= seconds) throw Enough();
    last = Clock::now();
  };
  OthersWatch watch;
  try {
    train(own, run->trainer);
  } catch (const Enough&) {
    run->step->discard();
  }
  if (times.size() < kWarmUp + kLeast)
    fail(ErrorCode::value, "[bench] the training ended after {} steps, before it could be measured; a loss may have been infinite: try a lower lr",
         times.size());
  const StepPlan& plan = run->step->plan();
  r.first_ms = 1e3 * times[0];
  times.erase(times.begin(), times.begin() + kWarmUp);
  for (double t : times) r.times_us.push_back(1e6 * t);
  const Measured m = summarize(times);
  r.ms = 1e3 * m.median, r.spread = m.spread, r.samples = m.samples, r.others = watch.others();
  r.device = run->decided("device"), r.precision = std::string(ridge::name(plan.choices.precision)), r.unit = run->unit;
  r.threads = run->on_device() ? 0 : default_team().size(), r.batch = plan.batch;
  r.units = double(group * plan.batch) * run->trainer.tokens_per_sample;
  r.tflops = 1e-12 * double(group) * plan.flops / m.median, r.planned_bytes = run->planned_bytes;
  r.name = task.name;
  return r;
}

std::string to_json(const StepResult& r, bool raw) {
  nlohmann::ordered_json j;
  j["suite"] = "configs", j["name"] = r.name, j["config"] = r.config, j["device"] = r.device, j["threads"] = r.threads, j["precision"] = r.precision;
  j["batch"] = r.batch, j["ms"] = r.ms, j["median_us"] = 1e3 * r.ms, j["spread"] = r.spread, j["samples"] = r.samples, j["unit"] = r.unit;
  j["units"] = r.units, j["units_s"] = 1e3 * r.units / r.ms, j["tflops"] = r.tflops, j["first_ms"] = r.first_ms, j["ready_s"] = r.ready_s;
  j["planned_bytes"] = r.planned_bytes, j["others"] = r.others;
  std::string text = j.dump();
  text.pop_back();
  return text + "," + timing_json(r.times_us, raw) + "}";
}

std::string step_table_head() {
  return fmt::format("{:<40} {:>8} {:>9} {:>6} {:>9} {:>7} {:>12} {:>8} {:>10} {:>9}", "row", "device", "precision", "batch", "ms", "spread", "units/s",
                     "TFLOP/s", "first ms", "ready s");
}

std::string to_table_line(const StepResult& r) {
  return fmt::format("{:<40} {:>8} {:>9} {:>6} {:>9.3f} {:>6.1f}% {:>12.0f} {:>8.3f} {:>10.1f} {:>9.2f}  {}/s{}", r.name, r.device, r.precision, r.batch, r.ms,
                     100 * r.spread, 1e3 * r.units / r.ms, r.tflops, r.first_ms, r.ready_s, r.unit, others_text(r.others));
}

}  // namespace ridge::bench
