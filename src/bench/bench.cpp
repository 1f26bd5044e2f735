#include "bench/bench.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <map>
#include <regex>

#include <nlohmann/json.hpp>

#include "backend/registry.h"
#include "base/error.h"
#include "machine/features.h"
#include "measure/ceilings.h"
#include "threads/thread_team.h"

namespace ridge::bench {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// The ceilings of one run. Bandwidth windows hold memory and take a while to rank their variants, so each is created when a row first needs it. The machine's
// speed varies during a run, so a reported ceiling summarises all its windows.
class Ceilings {
 public:
  explicit Ceilings(ThreadTeam& team) : team_(team) {}

  // Current GFLOP/s or GB/s; 0 for rows without a ceiling. A row that reuses its operands is compared with the memory level that holds them.
  double now(const Row& row) {
    if (row.bound == Bound::latency) return 0;
    if (row.bound == Bound::fma) return now(row.bound, row.dtype);
    const int64_t bytes = bytes_of(row);
    return bytes ? bandwidth(row.bound, bytes).gbs() : now(row.bound, row.dtype);
  }

  // Called after a row that was faster than its ceiling.
  void remeasure(const Row& row) {
    if (row.bound != Bound::fma && row.bound != Bound::latency) bandwidth(row.bound, bytes_of(row)).rank();
  }

  Measured measured(Bound bound, double seconds, DType dtype = DType::f32) {
    constexpr size_t kMin = 5;
    const auto start = Clock::now();
    do now(bound, dtype);
    while (seen(bound, dtype).size() < kMin || seconds_since(start) < seconds);
    Measured m = summarize(seen(bound, dtype));
    if (bound != Bound::fma) m.variant = bandwidth(bound).variant();
    return m;
  }

 private:
  double now(Bound bound, DType dtype) {
    const double rate = bound == Bound::fma ? fma(dtype).gflops() : bandwidth(bound).gbs();
    seen(bound, dtype).push_back(rate);
    return rate;
  }
  // Bytes per array; 0: far beyond the caches, like the operands of cold rows.
  static int64_t bytes_of(const Row& row) { return row.state == State::cold ? 0 : array_bytes_of(movement_of(row.bound), int64_t(row.bytes)); }
  static Movement movement_of(Bound bound) { return bound == Bound::copy ? Movement::copy : bound == Bound::triad ? Movement::triad : Movement::read; }
  // bf16 has its own ceiling if the CPU can multiply it.
  static bool dots(DType dtype) { return dtype == DType::bf16 && has_bf16(isa_tier()); }
  FmaWindow& fma(DType dtype) {
    constexpr double kFmaWindowUs = 300;
    std::unique_ptr<FmaWindow>& window = dots(dtype) ? dot_ : fma_;
    if (!window) window = std::make_unique<FmaWindow>(team_, kFmaWindowUs, dots(dtype) ? DType::bf16 : DType::f32);
    return *window;
  }
  std::vector<double>& seen(Bound bound, DType dtype) { return bound == Bound::fma && dots(dtype) ? seen_dots_ : seen_[int(bound)]; }
  BandwidthWindow& bandwidth(Bound bound, int64_t bytes = 0) {
    std::unique_ptr<BandwidthWindow>& window = bandwidth_[{bound, bytes}];
    constexpr double kMemorySeconds = 0.3, kCacheSeconds = 0.05;  // seconds to rank the variants
    if (!window) window = std::make_unique<BandwidthWindow>(team_, movement_of(bound), bytes ? kCacheSeconds : kMemorySeconds, bytes);
    return *window;
  }

  ThreadTeam& team_;
  std::unique_ptr<FmaWindow> fma_, dot_;
  std::map<std::pair<Bound, int64_t>, std::unique_ptr<BandwidthWindow>> bandwidth_;
  std::vector<double> seen_[int(Bound::latency)], seen_dots_;
};

// Time per call. Calls too short for the clock are repeated within one sample.
class Timer {
 public:
  explicit Timer(Call call) : call_(std::move(call)) {
    constexpr double kShortest = 20e-6;
    const double first = once();  // also touches memory and wakes threads
    if (first < kShortest) {
      double best = first;
      for (int i = 0; i < 10; ++i) best = std::min(best, once());
      repeats_ = int64_t(std::ceil(kShortest / std::max(best, 1e-9)));
    } else {
      for (int i = 0; i < 2 && first < 1; ++i) once();
    }
  }
  double seconds() {
    const auto start = Clock::now();
    for (int64_t i = 0; i < repeats_; ++i) call_(iteration_++);
    inject_slowdown(start);
    return seconds_since(start) / double(repeats_);
  }

 private:
  double once() {
    const auto start = Clock::now();
    call_(iteration_++);
    return seconds_since(start);
  }
  Call call_;
  int64_t iteration_ = 0, repeats_ = 1;
};

struct Pair {
  double ratio;   // the row's speed relative to the mean of the windows before and after it
  double change;  // relative difference between these windows
};

// If the windows disagree, the machine changed its speed meanwhile (or gave it to another process) and the ratio is meaningless; such pairs are left out as
// long as enough remain.
double roof_of(std::vector<Pair> pairs) {
  constexpr double kSteady = 0.1;
  constexpr size_t kMin = 5;
  std::stable_sort(pairs.begin(), pairs.end(), [](const Pair& a, const Pair& b) { return a.change < b.change; });
  std::vector<double> ratios;
  for (const Pair& p : pairs)
    if (p.change <= kSteady || ratios.size() < kMin) ratios.push_back(p.ratio);
  return summarize(std::move(ratios)).median;
}

Result measure(const Row& row, ThreadTeam& team, Backend& backend, Ceilings& ceilings, double seconds) {
  const Context context{backend, row.state};
  Timer timer(row.make(context));
  std::optional<Timer> rival;
  if (row.rival) rival.emplace(row.rival(context));
  constexpr size_t kMin = 5, kMax = 2000;

  const double work = row.bound == Bound::fma ? row.flops : row.bytes;
  std::vector<double> times, rival_ratios, roofs;
  std::vector<Pair> pairs;
  ceilings.now(row);
  double before = ceilings.now(row), rival_before = rival ? rival->seconds() : 0;
  const auto start = Clock::now();
  while (times.size() < kMin || (times.size() < kMax && seconds_since(start) < seconds)) {
    const double t = timer.seconds();
    times.push_back(1e6 * t);
    if (row.bound != Bound::latency) {
      const double after = ceilings.now(row);
      pairs.push_back({1e-9 * work / t / (0.5 * (before + after)), std::abs(before - after) / std::max(before, after)});
      roofs.push_back(before = after);
    }
    if (rival) {
      const double after = rival->seconds();
      rival_ratios.push_back(t / (0.5 * (rival_before + after)));
      rival_before = after;
    }
  }

  const Measured m = summarize(times);
  Result r{.suite = row.suite, .name = row.name, .dtype = row.dtype, .threads = team.size(), .state = row.state, .bound = row.bound, .part = row.part};
  r.median_us = m.median, r.spread = m.spread, r.samples = m.samples, r.times_us = std::move(times);
  if (row.flops > 0) r.gflops = 1e-3 * row.flops / m.median;
  if (row.bytes > 0) r.gbs = 1e-3 * row.bytes / m.median;
  if (!pairs.empty()) r.roof = roof_of(std::move(pairs)), r.ceiling = summarize(std::move(roofs)).median;
  if (row.parts > 0) r.part_us = m.median / row.parts;
  if (rival) r.rival_ratio = summarize(rival_ratios).median;
  return r;
}

Result ceiling_result(const std::string& suite, const std::string& name, Bound bound, ThreadTeam& team, const Measured& m) {
  Result r{.suite = suite,
           .name = "ceiling/" + name,
           .threads = team.size(),
           .state = bound == Bound::fma ? State::hot : State::cold,
           .bound = bound,
           .variant = m.variant};
  r.spread = m.spread, r.samples = m.samples;
  (bound == Bound::fma ? r.gflops : r.gbs) = m.median;
  r.ceiling = m.median;
  r.roof = 1;
  return r;
}

template <class T>
nlohmann::ordered_json optional_number(const std::optional<T>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
}

double rounded(double x, int digits) {
  if (x == 0 || !std::isfinite(x)) return x;
  const double scale = std::pow(10, digits - 1 - std::floor(std::log10(std::abs(x))));
  return std::round(x * scale) / scale;
}
std::optional<double> rounded(std::optional<double> x, int digits) { return x ? std::optional(rounded(*x, digits)) : x; }

std::string number(const std::optional<double>& x, int decimals) { return x ? fmt::format("{:.{}f}", *x, decimals) : "-"; }

}  // namespace

std::string_view name(Bound bound) {
  constexpr std::string_view names[] = {"fma", "copy", "triad", "read", "latency"};
  return names[int(bound)];
}

std::string above_roof(const std::string& name, double roof, std::string_view ceiling, double others) {
  if (roof <= 1) return {};
  const std::string busy = others > kQuiet ? fmt::format("; other programs used {:.0f} % of the machine: measure again when it is quiet", 100 * others) : "";
  if (roof <= kAboveRoof) return fmt::format("{} at {:.3f} of {}: ceilings vary by up to 3 % from one moment to the next{}", name, roof, ceiling, busy);
  return fmt::format("the ceiling is wrong: {} at {:.3f} of {}{}", name, roof, ceiling, busy);
}

std::string_view name(State state) { return state == State::hot ? "hot" : "cold"; }

std::function<bool(const std::string&)> row_filter(const std::string& text) {
  try {
    return [filter = std::regex(text)](const std::string& name) { return std::regex_search(name, filter); };
  } catch (const std::regex_error& e) {
    fail(ErrorCode::usage, "[bench] --filter '{}' is not a regular expression ({}); dots and brackets may need a backslash", text, e.what());
  }
}

void run(const std::vector<Row>& rows, const Options& options, const std::function<void(const Result&)>& sink) {
  const auto filter = row_filter(options.filter);
  auto wanted = [&](const std::string& name, State state) { return filter(name) && options.state.value_or(state) == state; };

  ThreadTeam team({.threads = options.threads});
  const std::unique_ptr<Backend> backend = cpu_backend(team);
  Ceilings ceilings(team);
  OthersWatch watch;
  const std::string suite = rows.empty() ? "" : rows.front().suite;
  int done = 0;
  for (const Row& row : rows) {
    if (!wanted(row.name, row.state)) continue;
    Result result = measure(row, team, *backend, ceilings, options.seconds);
    // Above its ceiling: the machine has changed meanwhile, so measure the ceiling again before reporting it as wrong.
    for (int again = 0; again < 2 && result.roof.value_or(0) > kAboveRoof; ++again) {
      ceilings.remeasure(row);
      result = measure(row, team, *backend, ceilings, options.seconds);
    }
    result.others = watch.others();
    sink(result);
    ++done;
  }
  for (Bound bound : {Bound::fma, Bound::copy, Bound::triad, Bound::read}) {
    const std::string short_name = bound == Bound::fma ? "fma_f32" : std::string(name(bound));
    if (!wanted("ceiling/" + short_name, bound == Bound::fma ? State::hot : State::cold)) continue;
    sink(ceiling_result(suite, short_name, bound, team, ceilings.measured(bound, options.seconds)));
    ++done;
  }
  if (has_bf16(isa_tier()) && wanted("ceiling/dot_bf16", State::hot)) {
    Result dot = ceiling_result(suite, "dot_bf16", Bound::fma, team, ceilings.measured(Bound::fma, options.seconds, DType::bf16));
    dot.dtype = DType::bf16;
    sink(dot);
    ++done;
  }
  if (!done)
    fail(ErrorCode::usage, "[bench] nothing matches --filter '{}'{}; without a filter all {} rows run", options.filter, options.state ? " in this state" : "",
         rows.size() + 4);
}

double clock_ghz() {
  constexpr int kAdds = 1 << 20;
  double best = 0;
  for (int round = 0; round < 3; ++round) {
    uint64_t x = 1;
    const auto start = Clock::now();
    for (int i = 0; i < kAdds / 8; ++i)
      for (int k = 0; k < 8; ++k) {
        x += uint64_t(i) | 1;
        asm volatile("" : "+r"(x));
      }
    best = std::max(best, 1e-9 * kAdds / seconds_since(start));
  }
  return best;
}

void inject_slowdown(Clock::time_point start) {
  static const double share = [] {
    const char* text = std::getenv("RIDGE_BENCH_SLOWDOWN");
    return text ? std::clamp(std::atof(text), 0.0, 10.0) : 0.0;
  }();
  if (share <= 0) return;
  const double end = seconds_since(start) * (1 + share);
  while (seconds_since(start) < end) {
  }
}

std::string timing_json(const std::vector<double>& times_us, bool raw) {
  nlohmann::ordered_json line;
  const Summary s = summary_of(times_us);
  line["min_us"] = rounded(s.min, 6), line["max_us"] = rounded(s.max, 6);
  line["interval_us"] = {rounded(s.interval.low, 6), rounded(s.interval.high, 6)};
  line["outliers"] = s.outliers;
  if (raw) {
    double load = 0;
#ifndef __ANDROID__
    if (getloadavg(&load, 1) < 1) load = 0;
#endif
    line["ghz"] = rounded(clock_ghz(), 4), line["load"] = load;
    auto& all = line["times_us"] = nlohmann::ordered_json::array();
    for (double t : times_us) all.push_back(rounded(t, 5));
  }
  std::string text = line.dump();
  return text.substr(1, text.size() - 2);
}

std::string to_json(const Result& r, bool raw) {
  nlohmann::ordered_json line;
  line["suite"] = r.suite;
  line["name"] = r.name;
  line["dtype"] = std::string(ridge::name(r.dtype));
  line["device"] = r.device;
  line["threads"] = r.threads;
  line["state"] = std::string(name(r.state));
  line["median_us"] = r.median_us > 0 ? nlohmann::ordered_json(rounded(r.median_us, 6)) : nlohmann::ordered_json(nullptr);
  line["spread"] = rounded(r.spread, 3);
  line["gflops"] = optional_number(rounded(r.gflops, 5));
  line["gbs"] = optional_number(rounded(r.gbs, 5));
  line["roof"] = optional_number(rounded(r.roof, 4));
  line["bound"] = std::string(name(r.bound));
  line["ceiling"] = optional_number(rounded(r.ceiling, 5));
  line["samples"] = r.samples;
  line["others"] = rounded(r.others, 2);
  if (r.part_us) line["us_per_" + r.part] = rounded(*r.part_us, 4);
  if (r.rival_ratio) line["ratio_to_one_op"] = rounded(*r.rival_ratio, 4);
  if (!r.variant.empty()) line["variant"] = r.variant;
  if (!r.loop.empty()) line["loop"] = r.loop;
  if (r.stages > 0) line["stages"] = r.stages, line["us_per_stage"] = rounded(r.part_us.value_or(0) / r.stages, 4);
  std::string text = line.dump();
  if (r.times_us.empty()) return text;
  text.pop_back();
  return text + "," + timing_json(r.times_us, raw) + "}";
}

std::string others_text(double others) { return others > kQuiet ? fmt::format("  others {:.0f}%", 100 * others) : ""; }

std::string table_head() {
  return fmt::format("{:<32} {:>5} {:>4} {:>2} {:>12} {:>12} {:>12} {:>7} {:>9} {:>8} {:>6}  {:<7} {:>7}", "name", "dtype", "", "t", "min us", "median us",
                     "max us", "spread", "GFLOP/s", "GB/s", "roof", "bound", "ceiling");
}

std::string to_table_line(const Result& r) {
  const Summary of = summary_of(r.times_us);
  auto time_text = [](double us) { return us > 0 ? fmt::format("{:.2f}", us) : "-"; };
  std::string line = fmt::format("{:<32} {:>5} {:>4} {:>2} {:>12} {:>12} {:>12} {:>6.1f}% {:>9} {:>8} {:>6}  {:<7} {:>7}", r.name, ridge::name(r.dtype),
                                 name(r.state), r.threads, time_text(of.min), time_text(r.median_us), time_text(of.max), 100 * r.spread, number(r.gflops, 1),
                                 number(r.gbs, 2), number(r.roof, 3), name(r.bound), number(r.ceiling, 1));
  if (r.part_us) line += fmt::format("  {:.4f} us per {}", *r.part_us, r.part);
  if (r.rival_ratio) line += fmt::format("  {:.3f} x one op", *r.rival_ratio);
  if (!r.variant.empty()) line += "  " + r.variant;
  if (!r.loop.empty()) line += "  " + r.loop;
  if (r.stages > 0) line += fmt::format(", {:.4f} us for each of {} stages", r.part_us.value_or(0) / r.stages, r.stages);
  return line + others_text(r.others);
}

}  // namespace ridge::bench
