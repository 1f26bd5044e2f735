#include "bench/precision_rates.h"

#include <algorithm>
#include <chrono>
#include <map>

#include <fmt/core.h>

#include "backend/registry.h"
#include "bench/compiled.h"

namespace ridge::bench {
namespace {

constexpr std::pair<Precision, DType> kFormats[] = {{Precision::fp32, DType::f32}, {Precision::bf16, DType::bf16}, {Precision::fp16, DType::f16}};
constexpr int64_t kSize = 384;

Call matmul_of(Backend& backend, DType dtype) {
  return compile({backend, State::hot}, [dtype](Builder& b) {
    Formula f;
    f.inputs = {b.graph().input({dtype, {kSize, kSize}}, "a"), b.graph().input({dtype, {kSize, kSize}}, "b")};
    f.outputs = {b.matmul(f.inputs[0], f.inputs[1])};
    return f;
  });
}

std::string key_of(Precision precision) { return fmt::format("matmul_rate/cpu/{}", name(precision)); }

}  // namespace

std::vector<std::pair<Precision, double>> measure_precision_rates(ThreadTeam& team, double seconds) {
  using Clock = std::chrono::steady_clock;
  const std::unique_ptr<Backend> backend = cpu_backend(team);
  std::vector<Call> calls;
  for (auto [precision, dtype] : kFormats) calls.push_back(matmul_of(*backend, dtype));
  std::vector<std::vector<double>> samples(calls.size());
  const auto start = Clock::now();
  for (int64_t round = 0; round < 16 || std::chrono::duration<double>(Clock::now() - start).count() < seconds; ++round)
    for (size_t c = 0; c < calls.size(); ++c) {
      const auto before = Clock::now();
      calls[c](round);
      const double took = std::chrono::duration<double>(Clock::now() - before).count();
      if (round > 0) samples[c].push_back(2e-9 * double(kSize * kSize * kSize) / took);  // the first is a warm-up
    }
  std::vector<std::pair<Precision, double>> rates;
  // The best sample of each: other programs make a run slower, never faster, and formats are compared with each other.
  for (size_t c = 0; c < calls.size(); ++c) rates.emplace_back(kFormats[c].first, *std::max_element(samples[c].begin(), samples[c].end()));
  return rates;
}

RateLookup known_precision_rates(MeasurementStore& store, ThreadTeam& team) {
  std::map<Precision, double> rates;
  for (auto [precision, dtype] : kFormats)
    if (auto known = store.number(key_of(precision))) rates[precision] = *known;
  if (rates.size() < std::size(kFormats)) {
    std::vector<NamedMeasurement> rows;
    for (auto [precision, rate] : measure_precision_rates(team)) {
      rates[precision] = rate;
      rows.push_back({key_of(precision), {.value = fmt::format("{:.6g}", rate), .samples = 1}});
    }
    store.put(rows);
  }
  return [rates](const Device& device, Precision precision) -> std::optional<double> {
    const auto found = rates.find(precision);
    return device.kind == Device::Kind::cpu && found != rates.end() ? std::optional(found->second) : std::nullopt;
  };
}

}  // namespace ridge::bench
