#include "bench/train_rows.h"

#include <algorithm>
#include <chrono>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "backend/registry.h"
#include "base/error.h"
#include "base/text.h"
#include "bench/device_ceilings.h"
#include "bench/env_rows.h"
#include "bench/loop_rows.h"
#include "machine/memory_budget.h"
#include "measure/ceilings.h"
#include "measure/default_team.h"
#include "tasks/registry.h"
#include "threads/thread_team.h"
#include "train/run_device.h"
#include "train/step_time.h"

namespace ridge::bench {
namespace {

using Clock = std::chrono::steady_clock;
double time_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// A step with weights and the addresses of its batch, as used by every row.
struct Work : BenchStep {
  std::vector<const void*> data;

  Work(const BenchStep& step) : BenchStep(step) {
    for (size_t i = 0; i < model.batch.size() && !step.collect && step.batch.empty(); ++i) {  // normal numbers, if the row has no others
      std::vector<float> values(size_t(model.batch[i].shape.numel()));
      initialize({"batch", model.batch[i].shape, 0, 1}, 2, uint32_t(i), values);
      const std::span<const std::byte> bytes = std::as_bytes(std::span(values));
      batch.emplace_back(bytes.begin(), bytes.end());
    }
    for (const auto& tensor : batch) data.push_back(tensor.data());
  }
  void start(TrainStep& step) const {
    for (size_t i = 0; i < model.parameters.size(); ++i)
      step.fill_parameter(i, [&](std::span<float> values) { fill ? fill(i, values) : initialize(model.parameters[i], 1, uint32_t(i), values); });
  }
};

// A resident loop is one kernel on a GPU, and blocks of rows for all steps on the CPU. Forward and backward may differ.
std::string loop_of(const TrainStep& step) {
  if (step.plan().recompute >= Recompute::segments) return "stretches";
  std::string text = step.dump();
  for (const std::string& line : step.plan().decisions) text += line + '\n';
  auto says = [&](std::string_view words) { return text.find(words) != text.npos; };
  const bool resident = says("steps, resident:") || says("all steps at a time"), unrolled = says("steps, unrolled:") || says("all rows, step by step");
  return resident && unrolled ? "resident, unrolled" : resident ? "resident" : "unrolled";
}

void sum_up(TrainResult& r, const std::vector<double>& times, const TrainStep& step, int64_t units) {
  const Measured m = summarize(times);
  r.ms = 1e3 * m.median, r.spread = m.spread, r.samples = m.samples;
  for (double t : times) r.times_us.push_back(1e6 * t);
  r.tokens_s = double(units) / m.median, r.tflops = 1e-12 * step.plan().flops / m.median;
  if (r.time_steps > 0) r.loop = loop_of(step), r.loop_kernels = loop_lines(step.dump());
}

// Batches that are collected with the current weights: a sample is the time of a whole group of steps, with all that its data takes. Steps follow each other as
// in training. least: the shortest time of a step at current rates.
TrainResult measure_feed(const Work& work, TrainStep& step, TrainResult r, double seconds, const std::function<double()>& least) {
  const BenchStep::Collected own = work.collect(step);
  BatchFeed& feed = *own.feed;
  int64_t number = 0;
  double data = 0;
  auto group = [&] {
    for (const int64_t end = number + feed.group(); number < end; ++number) {
      const auto start = Clock::now();
      const BatchFeed::Batch batch = feed.next(number);
      data += time_since(start);
      batch.on_device ? step.enqueue_in_place(batch.tensors) : step.enqueue(batch.tensors, feed.rate(work.options.optimizer.lr));
      for (const int64_t left = step.behind() && !feed.needs_results(number + 1) ? 1 : 0; step.pending() > left;) feed.collected(step.collect());
    }
  };
  group();  // also loads kernels
  group();  // and records what is launched again
  std::vector<double> times, roofs;
  const double playing = own.playing_seconds();
  double total = 0;
  data = 0;
  for (double left = least(); times.size() < 5 || total < seconds;) {
    const auto start = Clock::now();
    group();
    inject_slowdown(start);
    times.push_back(time_since(start)), total += times.back();
    const double right = least();
    roofs.push_back(0.5 * double(feed.group()) * (left + right) / times.back());
    left = right;
  }
  sum_up(r, times, step, work.units);
  r.tflops *= double(feed.group());
  r.roof = summarize(roofs).median, r.steps_s = r.tokens_s, r.frames_s = r.steps_s * own.frames, r.environment = own.environment;
  r.playing = (own.playing_seconds() - playing) / total, r.preparing = data / total - r.playing;
  return r;
}

// Short steps follow each other as in training, several between two measurements of the ceilings.
TrainResult measure(const Work& work, const config::Resolved& settings, ThreadTeam& team, double seconds) {
  constexpr double kStretch = 0.2;  // seconds of steps in a row
  TrainResult r;
  r.threads = team.size();
  r.batch = work.model.batch[0].shape[0], r.time_steps = work.time_steps;
  const std::unique_ptr<Backend> backend = cpu_backend(team);
  StepOptions options = work.options;
  options.backend = backend.get();
  const std::string requested = settings.get<std::string>("precision");
  constexpr int64_t kRoom = int64_t(1) << 30;
  const RateLookup rates =
      parse_precision(requested) || !work.try_formats ? RateLookup() : work.try_formats(team, kRoom, Figures::measured).rates;  // as a training run would
  options.precision = choose_precision(requested, Fallback::forbid, backend->arithmetic(), rates).precision;
  r.precision = std::string(name(options.precision));
  TrainStep step(work.model, options);
  const int64_t before = resident_bytes();  // nothing is mapped yet
  if (work.collect) {
    work.start(step);
    r.planned_bytes = step.plan().planned_bytes;
    FmaWindow fma(team, 300, options.precision == Precision::bf16 ? DType::bf16 : DType::f32);
    BandwidthWindow copy(team, Movement::copy, 0.3, array_bytes_of(Movement::copy, step.plan().planned_bytes));
    r = measure_feed(work, step, r, seconds, [&] { return step.min_seconds(1e9 * fma.gflops(), 1e9 * copy.gbs()); });
    r.peak_bytes = resident_bytes() - before;
    return r;
  }
  work.start(step);
  for (int i = 0; i < 2; ++i) step.run(work.data);
  r.peak_bytes = resident_bytes() - before, r.planned_bytes = step.plan().planned_bytes;

  r.expected_ms = 1e3 * expected_seconds(step.kernels(), measure_kernel_rates(team, kRoom, options.precision));
  FmaWindow fma(team, 300, options.precision == Precision::bf16 ? DType::bf16 : DType::f32);
  BandwidthWindow copy(team, Movement::copy, 0.3, array_bytes_of(Movement::copy, step.plan().planned_bytes));  // the level that holds the step
  std::vector<double> times, roofs;
  auto least = [&] { return step.min_seconds(1e9 * fma.gflops(), 1e9 * copy.gbs()); };
  step.run(work.data);
  const auto start = Clock::now();
  for (double left = least(); times.size() < 5 || time_since(start) < seconds;) {
    step.run(work.data);  // the ceilings have filled the caches with other data
    const size_t first = times.size();
    for (const auto begin = Clock::now(); times.size() == first || time_since(begin) < kStretch;) {
      const auto last = Clock::now();
      step.run(work.data);
      inject_slowdown(last);
      times.push_back(time_since(last));
    }
    const double right = least();
    roofs.push_back(0.5 * (left + right) / summarize({times.begin() + ptrdiff_t(first), times.end()}).median);
    left = right;
  }
  sum_up(r, times, step, work.units);
  r.roof = summarize(roofs).median;
  return r;
}

// Steps follow each other as in training: one is enqueued while the previous one runs. A sample is the time between the ends of two steps.
TrainResult measure_on(const Work& work, const config::Resolved& settings, const Options& o) {
  TrainResult r;
  r.threads = 0, r.device = o.device;
  r.batch = work.model.batch[0].shape[0], r.time_steps = work.time_steps;
  const DeviceMemory before = o.backend->memory();
  StepOptions options = work.options;
  options.backend = o.backend.get(), options.evaluation = false;
  options.precision = choose_precision(settings.get<std::string>("precision"), Fallback::forbid, o.backend->arithmetic()).precision;
  if (settings.get<bool>("offload_optimizer")) options.offload = true;
  choose_products(*o.backend, options.precision, settings.get<std::string>("matmul_precision"));
  if (const std::optional<int64_t> parts = settings.get<std::optional<int64_t>>("accumulation")) options.micro = (r.batch + *parts - 1) / *parts;
  constexpr int64_t kDriver = int64_t(160) << 20;  // for kernels, graphs and libraries that are loaded later
  const int64_t free = int64_t(double(before.free) * settings.get<double>("memory_fraction"));
  if (const std::optional<int64_t> requested = settings.get<std::optional<int64_t>>("memory"))
    options.memory = std::max<int64_t>(1, std::min(free, *requested - before.held - kDriver));
  else
    options.memory = free;
  const Precision products = product_format(*o.backend, options.precision);
  r.precision = std::string(name(options.precision));
  if (options.precision == Precision::fp32 && products != Precision::fp32)
    r.precision = products == Precision::tf32 ? "tf32" : fmt::format("fp32, products {}", name(products));
  TrainStep step(work.model, options);
  step.touch();
  work.start(step);
  if (work.collect) {
    const DeviceCeilings ceilings = measure_ceilings(*o.backend, products);
    r = measure_feed(work, step, r, o.seconds, [&] { return step.min_seconds(1e9 * ceilings.matmul_gflops, 1e9 * ceilings.memory_gbs); });
    const DeviceMemory after = o.backend->memory();
    r.peak_bytes = before.free - after.free + before.held, r.planned_bytes = step.plan().planned_bytes + after.held;
    return r;
  }
  step.run(work.data);  // loads and records the graph
  const auto second = Clock::now();
  step.run(work.data);
  const double once = time_since(second);
  const bool long_steps = once > 0.5, very_long = once > 4;
  if (!long_steps) step.run(work.data);
  const DeviceMemory after = o.backend->memory();
  r.peak_bytes = before.free - after.free + before.held, r.planned_bytes = step.plan().planned_bytes + after.held;
  std::vector<double> times;
  const double lr = options.optimizer.lr;
  if (very_long) times.push_back(once);  // many micro-batches: the fixed cost of a step is negligible
  if (!very_long) step.enqueue(work.data, lr), step.enqueue(work.data, lr), step.collect();
  const auto start = Clock::now();
  for (auto last = start; times.size() < size_t(very_long ? 1 : long_steps ? 3 : 20) || (!very_long && times.size() < 2000 && time_since(start) < o.seconds);) {
    step.enqueue(work.data, lr);
    step.collect();
    inject_slowdown(last);
    times.push_back(time_since(last)), last = Clock::now();
  }
  step.discard();
  sum_up(r, times, step, work.units);
  r.expected_ms = 1e3 * gpu_step_time(step, *o.backend, Figures::kept).expected;
  const DeviceCeilings ceilings = measure_ceilings(*o.backend, product_format(*o.backend, options.precision));
  r.roof = step.min_seconds(1e9 * ceilings.matmul_gflops, 1e9 * ceilings.memory_gbs) / (1e-3 * r.ms);
  return r;
}

// The rival's commands in the number format of a row, on the CPU with one thread and with as many as Ridge; empty: the rival does not have it.
std::string rival_of(const BenchRow& row, const TrainResult& r) {
  std::string text = row.rival;
  if (text.empty()) return text;
  if (r.precision != "fp32") {
    const auto flags = std::ranges::find(row.rival_flags, r.precision, &std::pair<std::string, std::string>::first);
    if (flags == row.rival_flags.end()) return {};
    text += " " + flags->second;
  }
  if (r.device == "cpu") text += r.threads > 1 ? " --threads $n" : " --threads 1";
  if (!row.rival_option.empty()) text += fmt::format("; {} {}", text, row.rival_option);
  if (r.device == "cpu" && r.threads > 1) text = fmt::format("for n in 1 {}; do {}; done", r.threads, text);
  return row.rival_line.empty() ? text : fmt::format("{} | grep '{}'", text, row.rival_line);
}

}  // namespace

void run_train(const Options& options, const RowSettings& settings, const std::function<void(const TrainResult&)>& sink) {
  const auto filter = row_filter(options.filter);
  // Feeds share the default team, so rows run in it too: two teams would compete for the cores.
  ThreadTeam* team = nullptr;
  std::optional<ThreadTeam> other;
  if (options.backend->host_memory())
    team = options.threads == 0 || options.threads == default_team().size() ? &default_team() : &other.emplace(TeamOptions{.threads = options.threads});
  bool any = false;
  std::string rows;
  for (const EnvRow& row : env_rows()) {
    rows += " " + row.name;
    if (!filter(row.name)) continue;
    any = true;
    TrainResult r = measure_below_roof([&] { return measure_environment(row, options, team); });
    r.name = row.name;
    sink(r);
  }
  for (const Task& task : tasks())
    for (const BenchRow& row : task.bench_rows(!team)) {
      rows += " " + row.name;
      if (!filter(row.name)) continue;
      any = true;
      TrainResult r = measure_below_roof([&] {
        const config::Resolved resolved = settings(task.keys, row.settings);
        const Work work(task.bench_step(row, resolved));
        return team ? measure(work, resolved, *team, options.seconds) : measure_on(work, resolved, options);
      });
      r.name = row.name, r.rival = rival_of(row, r);
      sink(r);
    }
  if (!any) fail(ErrorCode::usage, "[bench] no row matches '{}'; there are{}", options.filter, rows);
}

std::string to_json(const TrainResult& r, bool raw) {
  nlohmann::ordered_json j;
  j["suite"] = "train", j["name"] = r.name, j["device"] = r.device, j["threads"] = r.threads, j["precision"] = r.precision, j["batch"] = r.batch;
  j["ms"] = r.ms, j["median_us"] = 1e3 * r.ms, j["spread"] = r.spread, j["samples"] = r.samples, j["tokens_s"] = r.tokens_s, j["tflops"] = r.tflops,
  j["roof"] = r.roof, j["others"] = r.others;
  j["planned_bytes"] = r.planned_bytes, j["peak_bytes"] = r.peak_bytes;
  if (r.expected_ms > 0) j["expected_ms"] = r.expected_ms;
  if (r.steps_s > 0) j["steps_s"] = r.steps_s, j["frames_s"] = r.frames_s, j["environment"] = r.environment;
  if (r.playing > 0) j["playing"] = r.playing, j["preparing"] = r.preparing, j["learning"] = 1 - r.playing - r.preparing;
  if (r.time_steps > 0) j["sequences_s"] = 1e3 * double(r.batch) / r.ms, j["us_per_time_step"] = 1e3 * r.ms / double(r.time_steps), j["loop"] = r.loop;
  if (!r.loop_kernels.empty()) j["loop_kernels"] = r.loop_kernels;
  if (!r.rival.empty()) j["rival"] = r.rival;
  std::string text = j.dump();
  text.pop_back();
  return text + "," + timing_json(r.times_us, raw) + "}";
}

std::string train_table_head() {
  return fmt::format("{:<24} {:>6} {:>9} {:>9} {:>9} {:>7} {:>10} {:>8} {:>6} {:>11} {:>11}", "row", "batch", "precision", "ms", "expected", "spread",
                     "tokens/s", "TFLOP/s", "roof", "planned", "taken");
}

std::string to_table_line(const TrainResult& r) {
  return fmt::format("{:<24} {:>6} {:>9} {:>9.2f} {:>9} {:>6.0f}% {:>10.0f} {:>8.3f} {:>6.3f} {:>11} {:>11}{}", r.name, r.batch, r.precision, r.ms,
                     r.expected_ms > 0 ? fmt::format("{:.2f}", r.expected_ms) : "-", 100 * r.spread, r.tokens_s, r.tflops, r.roof, size_text(r.planned_bytes),
                     size_text(r.peak_bytes), others_text(r.others)) +
         (r.time_steps > 0 ? fmt::format("\n{:<24} loop {}, {:.1f} sequences/s, {:.2f} us per time step", "", r.loop, 1e3 * double(r.batch) / r.ms,
                                         1e3 * r.ms / double(r.time_steps))
                           : "") +
         (r.steps_s > 0 ? fmt::format("\n{:<24} {:.0f} steps/s, {:.0f} frames/s: {}", "", r.steps_s, r.frames_s, r.environment) : "") +
         (r.playing > 0 ? fmt::format("\n{:<24} playing {:.0f} %, preparing minibatches {:.0f} %, learning {:.0f} %", "", 100 * r.playing, 100 * r.preparing,
                                      100 * (1 - r.playing - r.preparing))
                        : "") +
         (r.rival.empty() ? "" : fmt::format("\n{:<24} rival: {}", "", r.rival));
}

}  // namespace ridge::bench
