// ridge probe: measures the machine's peak performance, stores it, and compares it with targets.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <memory>

#include <nlohmann/json.hpp>

#include "backend/registry.h"
#include "base/error.h"
#include "base/terminal.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/settings.h"
#include "doctor/chips.h"
#include "io/atomic_file.h"
#include "machine/features.h"
#include "machine/measurement_store.h"
#include "machine/utilisation.h"
#include "measure/probe.h"
#include "profile/roofline.h"

namespace ridge::cli {
namespace {

struct ProbeArguments {
  std::string svg;
  bool json = false, quick = false, check = false;
};

// A live progress line, only on a terminal; results go to stdout.
class Progress {
 public:
  Progress() : live_(isatty(STDERR_FILENO) != 0) {}
  ~Progress() {
    if (live_) fmt::print(stderr, "\r\033[K");
  }
  void operator()(std::string_view what, int done, int total) const {
    if (!live_) return;
    fmt::print(stderr, "\r\033[Kmeasuring {:3}/{}  {}", done + 1, total, what);
    std::fflush(stderr);
  }

 private:
  bool live_;
};

std::string count(int n, std::string_view what) { return fmt::format("{} {}{}", n, what, n == 1 ? "" : "s"); }

std::string cpu_name(const Machine& machine) { return machine.topology.cpu_name.empty() ? "unnamed CPU" : machine.topology.cpu_name; }

std::string describe(const Machine& machine) {
  return fmt::format("{}, {}, kernels for {}, {:.1f} GiB of memory", count(machine.cores(), "core"), count(machine.parallel(), "thread"), name(isa_tier()),
                     double(machine.limits.memory_total) / 0x1p30);
}

std::string figure(double x) { return x >= 99.95 ? fmt::format("{:.0f}", x) : x >= 9.995 ? fmt::format("{:.1f}", x) : fmt::format("{:.2f}", x); }

// A table with one column per number of threads. If they do not fit, the middle ones are dropped.
class Table {
 public:
  Table(std::vector<int> counts, int width) : counts_(std::move(counts)) {
    const int fit = std::max(2, (width - kLabel - kTail) / kColumn);
    while (int(counts_.size()) > fit) counts_.erase(counts_.begin() + 1);
  }

  void head(std::string_view title) const {
    std::string line = bold(title) + std::string(size_t(std::max(1, kLabel - display_width(title))), ' ');
    for (int n : counts_) line += fmt::format("{:>{}}", count(n, "thread"), kColumn);
    fmt::print("\n{}{}\n", line, dim("  spread"));
  }

  // `find` returns the measurement for a number of threads, or null.
  template <class Find>
  void row(std::string_view label, const Find& find) const {
    std::string line = fmt::format("  {:<{}}", label, kLabel - 2);
    const Measured* last = nullptr;
    for (int n : counts_) {
      const Measured* m = find(n);
      line += fmt::format("{:>{}}", m ? figure(m->median) : "-", kColumn);
      if (m) last = m;
    }
    if (last) line += dim(fmt::format("{:>7.0f}%  {}", 100 * last->spread, last->variant));
    fmt::print("{}\n", line);
  }

 private:
  static constexpr int kLabel = 26, kColumn = 12, kTail = 9;
  std::vector<int> counts_;
};

double worst_spread(const MachineCeilings& c) {
  double worst = 0;
  for (const RateCeiling& r : c.rates) worst = std::max(worst, r.gflops.spread);
  for (const BandwidthCeiling& b : c.bandwidths) worst = std::max(worst, b.gbs.spread);
  return worst;
}

void print_gpu(const GpuCeilings& gpu) {
  const int left = std::max(20, 40 - display_width(gpu.name));
  fmt::print("\n{}{}\n", bold(gpu.name), dim(fmt::format("{:>{}}", "spread", left + 6)));
  auto row = [](std::string_view label, const Measured& m, const std::string& value) {
    if (m.samples) fmt::print("  {:<22}{:>16}{}\n", label, value, dim(fmt::format("{:>5.0f}%  {}", 100 * m.spread, m.variant)));
  };
  auto microseconds = [](const Measured& m) { return fmt::format("{} us", figure(m.median)); };
  for (const GpuCeilings::Rate& rate : gpu.matmul) row(fmt::format("{} matmul", name(rate.precision)), rate.gflops, rate_text(rate.gflops.median));
  row("copy in its memory", gpu.copy_gbs, bandwidth_text(gpu.copy_gbs.median));
  row("to it, pinned", gpu.upload_pinned_gbs, bandwidth_text(gpu.upload_pinned_gbs.median));
  row("to it, pageable", gpu.upload_pageable_gbs, bandwidth_text(gpu.upload_pageable_gbs.median));
  row("from it, pinned", gpu.download_pinned_gbs, bandwidth_text(gpu.download_pinned_gbs.median));
  row("from it, pageable", gpu.download_pageable_gbs, bandwidth_text(gpu.download_pageable_gbs.median));
  row("kernel after kernel", gpu.launch_us, microseconds(gpu.launch_us));
  row("launch and wait", gpu.round_trip_us, microseconds(gpu.round_trip_us));
  for (const std::string& remark : gpu.remarks) fmt::print("  {}\n", wrap(remark, terminal_width() - 2, 2));
}

void print_ceilings(const MachineCeilings& c) {
  std::vector<int> counts;
  for (const RateCeiling& r : c.rates) counts.push_back(r.threads);
  std::sort(counts.begin(), counts.end());
  counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  const Table table(counts, terminal_width());

  table.head("multiply-adds, GFLOP/s");
  for (DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64})
    if (c.rate(dtype)) table.row(name(dtype), [&](int n) { return c.rate(dtype, n) ? &c.rate(dtype, n)->gflops : nullptr; });

  table.head("bandwidth, GB/s");
  for (const std::string& level : c.levels())
    for (Movement movement : {Movement::copy, Movement::triad, Movement::read})
      table.row(fmt::format("{:<7} {}", movement == Movement::copy ? level : "", name(movement)), [&](int n) {
        const BandwidthCeiling* b = c.bandwidth(level, movement, n);
        return b ? &b->gbs : nullptr;
      });

  table.head("fork and join, µs");
  table.row("all threads take part", [&](int n) -> const Measured* {
    for (const ForkJoinCeiling& f : c.fork_joins)
      if (f.threads == n) return &f.us;
    return nullptr;
  });

  if (c.gpus.empty()) fmt::print("\n{}\n", bold("GPUs"));
  for (const std::string& none : c.no_gpus) fmt::print("  {}\n", wrap("none measured: " + none, terminal_width() - 2, 2));
  for (const GpuCeilings& gpu : c.gpus) print_gpu(gpu);
}

void print_targets(const std::vector<ProbeTarget>& targets) {
  const std::string text = targets_text(targets);
  const size_t head = text.find('\n');
  fmt::print("\n{}{}", bold(text.substr(0, head)), text.substr(head));
}

nlohmann::ordered_json document(const Machine& machine, const Fingerprint& print, const MachineCeilings& ceilings, const std::vector<ProbeTarget>& targets,
                                const MeasurementStore& store) {
  using Json = nlohmann::ordered_json;
  Json j;
  j["machine"] = {{"cpu", machine.topology.cpu_name},
                  {"cores", machine.cores()},
                  {"threads", machine.parallel()},
                  {"vector_instructions", std::string(name(isa_tier()))},
                  {"memory_bytes", machine.limits.memory_total},
                  {"fingerprint", print.id}};
  j.update(Json::parse(to_json(ceilings)));
  j["targets"] = Json::array();
  for (const ProbeTarget& t : targets)
    j["targets"].push_back({{"what", t.what}, {"wanted", t.wanted}, {"measured", t.measured}, {"unit", t.unit}, {"source", t.source}, {"met", t.met()}});
  j["stored"] = store.stored() ? Json(store.file().string()) : Json(nullptr);
  return j;
}

[[noreturn]] void refuse_file(const std::string& path) { fail(ErrorCode::io, "[probe] cannot write {}; check that its folder exists and is writable", path); }

void write_svg(const std::string& path, const Machine& machine, const MachineCeilings& ceilings) {
  const std::time_t when = std::time_t(ceilings.when);
  char day[32] = "";
  std::tm date{};
  if (gmtime_r(&when, &date)) std::strftime(day, sizeof day, "%Y-%m-%d", &date);
  const std::string subtitle = fmt::format("{}, {}, {:.1f} GiB, measured by ridge probe on {}", count(ceilings.threads(), "thread"), name(isa_tier()),
                                           double(machine.limits.memory_total) / 0x1p30, day);
  std::ofstream file(path, std::ios::binary);
  file << to_svg(roofline_of(ceilings, "Roofline of " + cpu_name(machine), subtitle));
  file.flush();
  if (!file) refuse_file(path);
}

int run_probe(const ProbeArguments& arguments, const config::Resolved& settings) {
  Wanted wanted{settings.get<std::optional<double>>("min_tflops"), settings.get<std::optional<double>>("min_bandwidth"),
                settings.get<std::optional<int64_t>>("memory_budget")};

  const Machine machine = detect_machine();
  const Fingerprint print = fingerprint(machine);
  if (arguments.check && !find_chip(machine.topology.cpu_name) && !wanted.tflops && !wanted.gbs && !wanted.memory_bytes)
    fail(ErrorCode::usage, "[probe] no targets are known for '{}'; give min_tflops=, min_bandwidth= (GB/s) or memory_budget=", cpu_name(machine));

  check_picture_place(arguments.svg);
  if (!arguments.svg.empty() && !std::ofstream(arguments.svg, std::ios::app)) refuse_file(arguments.svg);  // fail early if it is not writable

  ProbeOptions options{.quick = arguments.quick, .gpus = gpu_probes()};
  if (settings.get<std::string>("threads") != "auto") options.threads = choose_threads(machine, thread_request(settings), {}).team.threads;
  if (!arguments.json) fmt::print("{}\n{}\n", bold(cpu_name(machine)), describe(machine));
  std::fflush(stdout);
  MachineCeilings ceilings;
  {
    Progress progress;
    options.progress = [&](std::string_view what, int done, int total) { progress(what, done, total); };
    ceilings = probe(machine, options);
  }
  MeasurementStore store(print);
  keep(store, ceilings);
  if (const std::string remark = store.remark(); !remark.empty()) fmt::print(stderr, "ridge: {}\n", remark);

  const std::vector<ProbeTarget> checked = arguments.check ? targets(machine, ceilings, wanted) : std::vector<ProbeTarget>();
  if (!arguments.svg.empty()) write_svg(arguments.svg, machine, ceilings);
  if (arguments.json) {
    fmt::print("{}\n", document(machine, print, ceilings, checked, store).dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  } else {
    constexpr double kNoisy = 0.15;
    print_ceilings(ceilings);
    if (!checked.empty()) print_targets(checked);
    fmt::print("\n{}, {:.1f} s; {}\n", ceilings.quick ? "quick" : "full", ceilings.seconds,
               store.stored() ? fmt::format("stored in {} for {}", store.file().string(), print.id) : "not stored");
    if (ceilings.left_out) fmt::print("{} left out: no time was left\n", count(ceilings.left_out, "measurement"));
    if (ceilings.others > kQuiet)
      fmt::print("{}\n",
                 wrap(fmt::format("other programs used {:.0f} % of the machine meanwhile, so these ceilings may be too low, and are marked as such; measure "
                                  "again when it is quiet",
                                  100 * ceilings.others),
                      terminal_width(), 0));
    else if (const double worst = worst_spread(ceilings); worst > kNoisy)
      fmt::print("{}\n", wrap(fmt::format("spread up to {:.0f} %: other work was running, or the machine changed its speed; measure again when it is quiet",
                                          100 * worst),
                              terminal_width(), 0));
  }
  return std::all_of(checked.begin(), checked.end(), [](const ProbeTarget& t) { return t.met(); }) ? kOk : kError;
}

const Command probe_command("probe", "measure this machine's peak rates and store them", [](Line line) {
  auto arguments = std::make_shared<ProbeArguments>();
  line.flag("--json", arguments->json, "print one JSON document");
  line.flag("--quick", arguments->quick, "measure one thread and all threads only, within 5 s instead of 30 s");
  line.flag("--check", arguments->check,
            "compare with the chip's targets, or with min_tflops=, min_bandwidth= (GB/s) and memory_budget=; exit code 1 when one is missed");
  line.option("--svg", arguments->svg, "write the roofline as a picture to this file");
  auto sources = add_settings(line, config::kMachine);
  return [=] { return run_probe(*arguments, config::resolve(sources())); };
});

}  // namespace
}  // namespace ridge::cli
