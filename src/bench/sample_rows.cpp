#include "bench/sample_rows.h"

#include <chrono>
#include <numeric>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "backend/registry.h"
#include "base/error.h"
#include "base/text.h"
#include "bench/device_ceilings.h"
#include "measure/ceilings.h"
#include "tasks/gpt/sampler.h"
#include "tasks/gpt/task.h"
#include "threads/thread_team.h"

namespace ridge::bench {
namespace {

constexpr int64_t kCharacters = 65;  // of the plays that the preset is named after
constexpr const char* kPreset = "shakespeare-char";
constexpr int64_t kFirst = 32, kWindow = 8, kUsedTo = 2;  // first timed position; tokens compared at each end; of these, skipped as warm-up

struct Storage {
  const char* precision;
  DType type;
};
constexpr Storage kStorages[] = {{"fp32", DType::f32}, {"bf16", DType::bf16}, {"fp16", DType::f16}};

std::string row_name(const Storage& storage) { return fmt::format("sample/{} {}", kPreset, storage.precision); }

SampleResult measure(const Storage& storage, const config::Resolved& settings, const Options& options, ThreadTeam& team) {
  using Clock = std::chrono::steady_clock;
  auto since = [](Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); };
  GptConfig config = gpt_config(settings, kCharacters);
  config.padded_vocab = 0;
  if (config.block < kFirst + 2 * kWindow)
    fail(ErrorCode::usage, "[bench] block={} is too short to compare positions; use {} or more", config.block, kFirst + 2 * kWindow);
  const std::vector<Parameter> shapes = gpt_parameters(config);
  const std::unique_ptr<Backend> cpu = cpu_backend(team);
  const bool on_device = !options.backend->host_memory();
  Backend& device = on_device ? *options.backend : *cpu;
  const auto parameters = std::make_shared<GptParameters>(
      config, storage.type, [&](size_t i, std::span<float> values) { initialize(shapes[i], 1, uint32_t(i), values); }, device);
  const Precision kept = kept_precision(storage.type, device, settings.get<std::string>("kv_precision"));
  auto make_sampler = [&] { return GptSampler(parameters, device, weight_storage(kept)); };
  GptSampler sampler = make_sampler();
  SampleResult r;
  r.name = fmt::format("sample/{}", kPreset), r.precision = storage.precision, r.kv_precision = name(kept), r.device = options.device,
  r.threads = on_device ? 0 : team.size();
  r.bytes = parameters->bytes(), r.kernels = sampler.kernels();
  const SampleOptions draws{.temperature = 0.8, .top_k = 40, .seed = 1};
  const std::vector<Token> prompt(kFirst, Token(1));
  double bytes = 0;
  for (int64_t i = kFirst; i < config.block; ++i) bytes += double(sampler.bytes_read(i));

  // One text: the time of each token after the prompt.
  std::vector<double> token_seconds(size_t(config.block - kFirst));
  auto write_text = [&] {
    sampler.forget();
    sampler.feed(prompt);
    for (size_t i = 0; i < token_seconds.size(); ++i) {
      const auto begin = Clock::now();
      const Token token = draw_token(sampler.logits(), draws, i);
      sampler.feed({&token, 1});
      inject_slowdown(begin);
      token_seconds[i] = since(begin);
    }
  };
  // Alternates between a few tokens early and late in a text, since the machine's speed varies within a text, and returns the ratio of their costs. The first
  // ones after a switch find the other text in the processor's caches.
  GptSampler early = make_sampler(), late = make_sampler();
  early.feed(prompt);
  late.feed(std::vector<Token>(size_t(config.block - kWindow), Token(1)));
  auto end_ratio = [&] {
    std::vector<double> seconds_of[2];
    for (int round = 0; round < 4; ++round)
      for (GptSampler* s : {&early, &late}) {
        s->rewind(s == &early ? kFirst : config.block - kWindow);
        for (int64_t i = 0; i < kWindow; ++i) {
          const auto begin = Clock::now();
          const Token token = 1;
          s->feed({&token, 1});
          if (i >= kUsedTo) seconds_of[s == &late].push_back(since(begin));
        }
      }
    return summarize(seconds_of[1]).median / summarize(seconds_of[0]).median;
  };
  write_text();
  std::optional<BandwidthWindow> host;
  const int64_t held = int64_t(bytes / double(token_seconds.size()));  // what a token reads on average, repeatedly
  if (!on_device) host.emplace(team, Movement::read, 0.3, array_bytes_of(Movement::read, held));
  const double copy = on_device ? measure_memory_gbs(device) : 0;  // a GPU's speed is constant
  auto bandwidth = [&] { return host ? host->gbs() : copy; };
  std::vector<double> times, roofs, ratios;
  const auto start = Clock::now();
  for (double left = bandwidth(); times.size() < 3 || since(start) < options.seconds;) {
    write_text();
    const double right = bandwidth(), total = std::accumulate(token_seconds.begin(), token_seconds.end(), 0.0);
    times.push_back(total / double(token_seconds.size()));
    roofs.push_back(bytes / (0.5e9 * (left + right)) / total);
    ratios.push_back(end_ratio());
    left = bandwidth();
  }
  const Measured m = summarize(times);
  r.us = 1e6 * m.median, r.spread = m.spread, r.samples = m.samples, r.tokens_s = 1 / m.median;
  for (double t : times) r.times_us.push_back(1e6 * t);
  r.gbs = 1e-9 * bytes / double(token_seconds.size()) / m.median;
  r.roof = summarize(roofs).median, r.end_ratio = summarize(ratios).median;
  return r;
}

}  // namespace

void run_sample(const Options& options, const RowSettings& settings, const std::function<void(const SampleResult&)>& sink) {
  const auto filter = row_filter(options.filter);
  ThreadTeam team({.threads = options.threads});
  bool any = false;
  for (const Storage& storage : kStorages) {
    if (!filter(row_name(storage))) continue;
    any = true;
    sink(measure_below_roof([&] {
      return measure(storage, settings(config::task_bit(kGptName), {fmt::format("preset={}", kPreset), "dropout=0"}), options, team);
    }));
  }
  if (any) return;
  std::string rows;
  for (const Storage& storage : kStorages) rows += fmt::format(" \"{}\"", row_name(storage));
  fail(ErrorCode::usage, "[bench] no row matches '{}'; there are{}", options.filter, rows);
}

std::string to_json(const SampleResult& r, bool raw) {
  nlohmann::ordered_json j;
  j["suite"] = "sample", j["name"] = r.name, j["device"] = r.device, j["threads"] = r.threads, j["precision"] = r.precision, j["kv_precision"] = r.kv_precision;
  j["us"] = r.us, j["median_us"] = r.us, j["spread"] = r.spread, j["samples"] = r.samples, j["tokens_s"] = r.tokens_s, j["gbs"] = r.gbs, j["roof"] = r.roof,
  j["others"] = r.others;
  j["end_ratio"] = r.end_ratio, j["bytes"] = r.bytes, j["kernels"] = r.kernels;
  std::string text = j.dump();
  text.pop_back();
  return text + "," + timing_json(r.times_us, raw) + "}";
}

std::string sample_table_head() {
  return fmt::format("{:<24} {:>9} {:>6} {:>9} {:>7} {:>9} {:>7} {:>6} {:>9} {:>10} {:>8}", "row", "weights", "cache", "us/token", "spread", "tokens/s", "GB/s",
                     "roof", "end/32", "read", "kernels");
}

std::string to_table_line(const SampleResult& r) {
  return fmt::format("{:<24} {:>9} {:>6} {:>9.1f} {:>6.0f}% {:>9.0f} {:>7.1f} {:>6.3f} {:>9.3f} {:>10} {:>8}{}", r.name, r.precision, r.kv_precision, r.us,
                     100 * r.spread, r.tokens_s, r.gbs, r.roof, r.end_ratio, size_text(r.bytes), r.kernels, others_text(r.others));
}

}  // namespace ridge::bench
