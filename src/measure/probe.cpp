#include "measure/probe.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <iterator>
#include <tuple>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "machine/caches.h"
#include "machine/measurement_store.h"
#include "machine/utilisation.h"
#include "runtime/buffer_pool.h"
#include "threads/thread_team.h"

namespace ridge {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

constexpr Movement kMovements[] = {Movement::copy, Movement::triad, Movement::read};
constexpr DType kDTypesMeasured[] = {DType::f32, DType::bf16, DType::f16, DType::f64};
constexpr std::string_view kPrefix = "ceiling/";

// Seconds per measurement of each type, and when to stop. The most important come first, so that little is lost on a slow machine.
struct Budget {
  double fma, memory, cache, fork_join, all;
  double least;  // reserved for the CPU, however long the GPUs take
};
Budget budget_of(bool quick, size_t counts) {
  if (quick) return {0.05, 0.2, 0.02, 0.02, 3.8, 2};
  const double share = 1.0 / double(counts);
  return {std::min(0.3, 1.2 * share), std::min(1.2, 5 * share), std::min(0.15, 0.6 * share), 0.05, 27, 12};
}

// Each thread's share of a cache level, the smallest over all usable kinds of cores; 0: some kind lacks it.
int64_t cache_share(const Machine& machine, int level, int threads) {
  int64_t least = 0;
  for (const CoreKind& kind : machine.usable) {
    auto cache = std::find_if(kind.caches.begin(), kind.caches.end(), [&](const Cache& c) { return c.level == level; });
    if (cache == kind.caches.end() || cache->bytes <= 0) return 0;
    const int64_t share = cache->bytes / std::clamp(threads, 1, std::max(1, cache->cores));
    least = least ? std::min(least, share) : share;
  }
  return least;
}

int64_t last_level_bytes_for(const Machine& machine, int threads) {
  int64_t slice = 0;
  for (const CoreKind& kind : machine.usable)
    for (const Cache& cache : kind.caches) slice = std::max(slice, cache.bytes);
  if (slice == 0) slice = last_level_cache_bytes();
  const int64_t all = std::max(slice, machine.topology.last_level_bytes());
  return std::min(all, slice * threads);
}

Json measured_json(const Measured& m, const char* unit) {
  Json j;
  j["value"] = m.median;
  j["unit"] = unit;
  j["spread"] = m.spread;
  j["samples"] = m.samples;
  if (!m.variant.empty()) j["variant"] = m.variant;
  return j;
}

Measured measured_from(const nlohmann::json& j, const Measurement& row) {
  return {j.value("value", 0.0), row.spread, row.samples, j.value("variant", std::string())};
}

template <class T>
Measured gpu_measured(const T& j, const char* key) {
  if (!j.contains(key)) return {};
  const auto& m = j.at(key);
  return {m.value("value", 0.0), m.value("spread", 0.0), m.value("samples", 0), m.value("variant", std::string())};
}

Json gpu_json(const GpuCeilings& gpu) {
  Json j;
  j["name"] = gpu.name;
  j["matmul"] = Json::object();
  for (const auto& rate : gpu.matmul) j["matmul"][std::string(name(rate.precision))] = measured_json(rate.gflops, "GFLOP/s");
  auto put = [&](const char* key, const Measured& m, const char* unit) {
    if (m.samples) j[key] = measured_json(m, unit);
  };
  put("copy", gpu.copy_gbs, "GB/s");
  put("launch", gpu.launch_us, "us");
  put("round_trip", gpu.round_trip_us, "us");
  put("upload_pageable", gpu.upload_pageable_gbs, "GB/s");
  put("upload_pinned", gpu.upload_pinned_gbs, "GB/s");
  put("download_pageable", gpu.download_pageable_gbs, "GB/s");
  put("download_pinned", gpu.download_pinned_gbs, "GB/s");
  if (!gpu.remarks.empty()) j["remarks"] = gpu.remarks;
  return j;
}

GpuCeilings gpu_from(const nlohmann::json& j) {
  GpuCeilings gpu;
  gpu.name = j.value("name", std::string());
  if (j.contains("matmul"))
    for (Precision precision : {Precision::fp32, Precision::tf32, Precision::bf16, Precision::fp16})
      if (const std::string key(name(precision)); j.at("matmul").contains(key)) gpu.matmul.push_back({precision, gpu_measured(j.at("matmul"), key.c_str())});
  gpu.copy_gbs = gpu_measured(j, "copy");
  gpu.launch_us = gpu_measured(j, "launch");
  gpu.round_trip_us = gpu_measured(j, "round_trip");
  gpu.upload_pageable_gbs = gpu_measured(j, "upload_pageable");
  gpu.upload_pinned_gbs = gpu_measured(j, "upload_pinned");
  gpu.download_pageable_gbs = gpu_measured(j, "download_pageable");
  gpu.download_pinned_gbs = gpu_measured(j, "download_pinned");
  gpu.remarks = j.value("remarks", std::vector<std::string>());
  return gpu;
}

std::string with_threads(int n) { return fmt::format("{} thread{}", n, n == 1 ? "" : "s"); }

std::vector<std::string> split(std::string_view text) {
  std::vector<std::string> words;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find('/', at), text.size());
    words.emplace_back(text.substr(at, end - at));
    at = end + 1;
  }
  return words;
}

// "t16"
int threads_from(const std::string& text) {
  int n = 0;
  if (text.size() > 1 && text[0] == 't') std::from_chars(text.data() + 1, text.data() + text.size(), n);
  return n;
}

NamedMeasurement row(std::string key, Json value, const Measured& m) {
  value.erase("spread"), value.erase("samples");  // stored in their own columns
  return {std::string(kPrefix) + std::move(key), {value.dump(), m.spread, m.samples}};
}

// Restores one stored row; rows of unknown types are ignored.
void take_row(MachineCeilings& c, const NamedMeasurement& stored) {
  const auto& [key, m] = stored;
  const std::vector<std::string> words = split(std::string_view(key).substr(kPrefix.size()));
  const auto j = nlohmann::json::parse(m.value, nullptr, false);
  if (!j.is_object()) return;
  c.when = std::max(c.when, m.when);
  if (words[0] == "probe") {
    c.quick = j.value("quick", false), c.seconds = j.value("seconds", 0.0), c.left_out = j.value("left_out", 0), c.others = j.value("others", 0.0);
    // Rows are read in name order, so all GPU rows have been read; rows of a GPU that is no longer present do not count.
    c.gpus.resize(std::min(c.gpus.size(), j.value("gpus", c.gpus.size())));
  } else if (words[0] == "gpu") {
    c.gpus.push_back(gpu_from(j));
  } else if (const int threads = threads_from(words.back()); threads > 0) {
    const auto movement = std::find_if(std::begin(kMovements), std::end(kMovements), [&](Movement x) { return name(x) == words[0]; });
    if (words[0] == "fork_join" && words.size() == 2)
      c.fork_joins.push_back({threads, measured_from(j, m)});
    else if (auto dtype = words.size() == 3 ? dtype_from(words[1]) : std::nullopt; words[0] == "fma" && dtype)
      c.rates.push_back({*dtype, threads, measured_from(j, m)});
    else if (movement != std::end(kMovements) && words.size() == 3)
      c.bandwidths.push_back({words[1], *movement, threads, j.value("bytes", int64_t(0)), measured_from(j, m)});
  }
}

// By type, level ("L1" < "L2" < "L3" < "memory") and movement, then by threads.
void sort_rows(MachineCeilings& c) {
  auto place = [](DType t) { return std::find(std::begin(kDTypesMeasured), std::end(kDTypesMeasured), t) - std::begin(kDTypesMeasured); };
  std::sort(c.rates.begin(), c.rates.end(), [&](auto& a, auto& b) { return std::pair(place(a.dtype), a.threads) < std::pair(place(b.dtype), b.threads); });
  std::sort(c.bandwidths.begin(), c.bandwidths.end(),
            [](auto& a, auto& b) { return std::tie(a.level, a.movement, a.threads) < std::tie(b.level, b.movement, b.threads); });
  std::sort(c.fork_joins.begin(), c.fork_joins.end(), [](auto& a, auto& b) { return a.threads < b.threads; });
}

}  // namespace

int MachineCeilings::threads() const {
  int most = 0;
  for (const RateCeiling& r : rates) most = std::max(most, r.threads);
  return most;
}

const RateCeiling* MachineCeilings::rate(DType dtype, int wanted) const {
  if (wanted == 0) wanted = threads();
  for (const RateCeiling& r : rates)
    if (r.dtype == dtype && r.threads == wanted) return &r;
  return nullptr;
}

const BandwidthCeiling* MachineCeilings::bandwidth(std::string_view level, Movement movement, int wanted) const {
  if (wanted == 0) wanted = threads();
  for (const BandwidthCeiling& b : bandwidths)
    if (b.level == level && b.movement == movement && b.threads == wanted) return &b;
  return nullptr;
}

std::vector<std::string> MachineCeilings::levels() const {
  std::vector<std::string> names;
  for (const BandwidthCeiling& b : bandwidths)
    if (std::find(names.begin(), names.end(), b.level) == names.end()) names.push_back(b.level);
  return names;
}

std::vector<int> thread_counts(int most, bool quick) {
  std::vector<int> counts;
  for (int n = 1; n < most; n *= 2)
    if (!quick || n == 1) counts.push_back(n);
  counts.push_back(std::max(1, most));
  return counts;
}

std::vector<WorkingSet> working_sets(const Machine& machine, int threads, Movement movement) {
  std::vector<WorkingSet> sets;
  int64_t inner = 0;
  for (int level : {1, 2, 3, 4}) {
    // Half of the cache, leaving the rest for other data. It must not fit into the previous level, or that one would be measured again.
    const int64_t share = cache_share(machine, level, threads);
    if (share == 0) continue;
    if (share / 2 >= 2 * inner) sets.push_back({fmt::format("L{}", level), share / 2});
    inner = std::max(inner, share);
  }
  const int64_t cache = last_level_bytes_for(machine, threads), available = machine.limits.memory_available;
  int64_t bytes = std::max(4 * cache, 8 * cache / arrays_of(movement));
  if (available > 0) bytes = std::min(bytes, available / 8);
  sets.push_back({"memory", bytes});
  return sets;
}

MachineCeilings probe(const Machine& machine, const ProbeOptions& options) {
  const auto start = Clock::now();
  OthersWatch watch;
  auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  const std::vector<int> counts = thread_counts(options.threads ? options.threads : machine.parallel(), options.quick);
  Budget budget = budget_of(options.quick, counts.size());
  if (options.seconds > 0) budget.all = options.seconds;

  MachineCeilings c;
  c.quick = options.quick;
  int done = 0, total = int(options.gpus.size());
  for (int threads : counts) {
    total += int(std::size(kDTypesMeasured)) + 1;
    for (Movement movement : kMovements) total += int(working_sets(machine, threads, movement).size()) + (options.quick ? 0 : 1);
  }
  auto measure = [&](const std::string& what, const std::function<void()>& body) {
    if (options.progress) options.progress(what, done, total);
    if (elapsed() < budget.all)
      body();
    else
      ++c.left_out;
    ++done;
  };

  // GPUs first, since their drivers' start-up time is unknown: the CPU's measurements fill the remaining time.
  for (const GpuProbe& gpu : options.gpus) {
    if (options.progress) options.progress("GPUs", done, total);
    ++done;
    GpuFindings found = gpu(options.quick);
    std::move(found.gpus.begin(), found.gpus.end(), std::back_inserter(c.gpus));
    if (!found.none.empty()) c.no_gpus.push_back(std::move(found.none));
  }
  if (options.seconds == 0) budget.all = std::max(budget.all, elapsed() + budget.least);

  // All threads first, then one: the counts in between are what a slow machine can skip.
  std::vector<int> order(counts.rbegin(), counts.rend());
  if (order.size() > 2) std::rotate(order.begin() + 1, order.end() - 1, order.end());

  BufferPool pool;  // its pages stay mapped between measurements
  auto measure_memory = [&](ThreadTeam& team, Movement movement, int64_t bytes) {
    return BandwidthWindow(team, movement, budget.memory, bytes, &pool).measured();
  };
  for (int threads : order) {
    ThreadTeam team({.threads = threads});
    const std::string with = with_threads(threads);
    for (DType dtype : kDTypesMeasured)
      measure(fmt::format("{} multiply-adds, {}", name(dtype), with), [&] {
        Measured m = measure_fma(team, budget.fma, dtype);
        if (m.samples) c.rates.push_back({dtype, threads, std::move(m)});
      });
    measure(fmt::format("fork-join, {}", with), [&] { c.fork_joins.push_back({threads, measure_fork_join(team, budget.fork_join)}); });
    for (Movement movement : kMovements)
      for (const WorkingSet& set : working_sets(machine, threads, movement))
        measure(fmt::format("{} in {}, {}", name(movement), set.level, with), [&] {
          const bool memory = set.level == "memory";
          c.bandwidths.push_back({set.level, movement, threads, memory ? set.bytes * arrays_of(movement) : set.bytes,
                                  memory ? measure_memory(team, movement, set.bytes) : measure_cache(team, movement, set.bytes, budget.cache)});
        });
  }
  // Memory again, some seconds later: on a virtual machine its bandwidth depends on where the host runs the threads. The better result counts.
  for (int threads : options.quick ? std::vector<int>() : order) {
    ThreadTeam team({.threads = threads});
    for (BandwidthCeiling& b : c.bandwidths)
      if (b.level == "memory" && b.threads == threads && elapsed() < budget.all)
        measure(fmt::format("{} in memory again, {}", name(b.movement), with_threads(threads)), [&] {
          if (Measured m = measure_memory(team, b.movement, b.bytes / arrays_of(b.movement)); m.median > b.gbs.median) b.gbs = std::move(m);
        });
  }
  sort_rows(c);
  c.seconds = elapsed();
  c.others = watch.others();
  c.when = std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  return c;
}

void keep(MeasurementStore& store, const MachineCeilings& c) {
  std::vector<NamedMeasurement> rows;
  for (const RateCeiling& r : c.rates) rows.push_back(row(fmt::format("fma/{}/t{}", name(r.dtype), r.threads), measured_json(r.gflops, "GFLOP/s"), r.gflops));
  for (const BandwidthCeiling& b : c.bandwidths) {
    Json value = measured_json(b.gbs, "GB/s");
    value["bytes"] = b.bytes;
    rows.push_back(row(fmt::format("{}/{}/t{}", name(b.movement), b.level, b.threads), std::move(value), b.gbs));
  }
  for (const ForkJoinCeiling& f : c.fork_joins) rows.push_back(row(fmt::format("fork_join/t{}", f.threads), measured_json(f.us, "us"), f.us));
  for (size_t i = 0; i < c.gpus.size(); ++i) rows.push_back(row(fmt::format("gpu/{}", i), gpu_json(c.gpus[i]), {}));
  rows.push_back(row("probe", {{"quick", c.quick}, {"seconds", c.seconds}, {"left_out", c.left_out}, {"others", c.others}, {"gpus", c.gpus.size()}}, {}));
  store.put(rows);
}

std::optional<MachineCeilings> kept_ceilings(const MeasurementStore& store) {
  MachineCeilings c;
  for (const NamedMeasurement& stored : store.all(kPrefix)) take_row(c, stored);
  if (c.rates.empty()) return {};
  sort_rows(c);
  return c;
}

std::string to_json(const MachineCeilings& c) {
  Json j;
  j["quick"] = c.quick;
  j["seconds"] = c.seconds;
  j["when"] = c.when;
  j["left_out"] = c.left_out;
  j["others"] = c.others;
  j["multiply_add"] = Json::array();
  for (const RateCeiling& r : c.rates) {
    Json line{{"dtype", std::string(name(r.dtype))}, {"threads", r.threads}};
    line.update(measured_json(r.gflops, "GFLOP/s"));
    j["multiply_add"].push_back(std::move(line));
  }
  j["bandwidth"] = Json::array();
  for (const BandwidthCeiling& b : c.bandwidths) {
    Json line{{"level", b.level}, {"movement", std::string(name(b.movement))}, {"threads", b.threads}, {"bytes", b.bytes}};
    line.update(measured_json(b.gbs, "GB/s"));
    j["bandwidth"].push_back(std::move(line));
  }
  j["fork_join"] = Json::array();
  for (const ForkJoinCeiling& f : c.fork_joins) {
    Json line{{"threads", f.threads}};
    line.update(measured_json(f.us, "us"));
    j["fork_join"].push_back(std::move(line));
  }
  j["gpus"] = Json::array();
  for (const GpuCeilings& gpu : c.gpus) j["gpus"].push_back(gpu_json(gpu));
  j["no_gpus"] = c.no_gpus;
  return j.dump();
}

}  // namespace ridge
