// ridge doctor: describes the machine, what Ridge would use and why, and problems and how to fix them.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <future>
#include <memory>

#include "base/error.h"
#include "base/terminal.h"
#include "bench/precision_rates.h"
#include "cli/command.h"
#include "cli/settings.h"
#include "doctor/report.h"
#include "io/atomic_file.h"
#include "machine/caches.h"
#include "machine/features.h"
#include "machine/measurement_store.h"
#include "machine/utilisation.h"
#include "measure/default_team.h"
#include "measure/thread_choice.h"
#include "train/step_time.h"

namespace ridge::cli {
namespace {

using Clock = std::chrono::steady_clock;

struct DoctorArguments {
  std::string svg;
  bool json = false;
};

// An invalid configuration is reported as a finding and does not stop the command; the command line still applies.
config::Resolved settings_of(config::Sources sources, std::string& problem) {
  try {
    return config::resolve(sources);
  } catch (const Error& error) {
    problem = error.what();
    for (size_t at; (at = problem.find('\n')) != std::string::npos;) problem.replace(at, 1, "; ");
    sources.environment.clear();
    sources.working_folder.reset();
    return config::resolve(sources);
  }
}

void take_settings(const config::Resolved& settings, DoctorFacts& facts) {
  facts.device = settings.get<std::string>("device"), facts.device_source = settings.setting("device").source;
  facts.memory = settings.get<std::optional<int64_t>>("memory").value_or(0), facts.memory_source = settings.setting("memory").source;
  facts.memory_fraction = settings.get<double>("memory_fraction");
  if (facts.memory == 0) facts.memory_source = settings.setting("memory_fraction").source;
  facts.fallback = settings.get<bool>("no_fallback") ? Fallback::forbid : Fallback::allow;
}

std::string age_of(int64_t when) {
  const int64_t seconds = std::max<int64_t>(0, int64_t(std::time(nullptr)) - when);
  auto text = [](int64_t n, const char* unit) { return fmt::format("{} {}{} ago", n, unit, n == 1 ? "" : "s"); };
  if (seconds < 90) return "just now";
  if (seconds < 5400) return text((seconds + 30) / 60, "minute");
  return seconds < 129600 ? text((seconds + 1800) / 3600, "hour") : text((seconds + 43200) / 86400, "day");
}

// Quick measurements within 0.5 s, for when no probe has stored better ones.
MachineCeilings measure_briefly(ThreadTeam& team, const Limits& limits) {
  OthersWatch watch;
  MachineCeilings ceilings;
  ceilings.quick = true;
  ceilings.rates.push_back({DType::f32, team.size(), measure_fma(team, 0.06)});
  // Arrays much larger than a very large cache would take too long to touch, and must not be used if memory is short.
  constexpr int64_t kLargestCache = int64_t(128) << 20;
  const int64_t cache = last_level_cache_bytes();
  if (cache <= kLargestCache && limits.memory_available >= 64 * cache)
    for (Movement movement : {Movement::copy, Movement::read})
      ceilings.bandwidths.push_back({"memory", movement, team.size(), 0, measure_bandwidth(team, movement, 0.12)});
  ceilings.others = watch.others();
  return ceilings;
}

ThreadChoice choose_team(const Machine& machine, const config::Resolved& settings, bool feeds_gpu) {
  ThreadRequest request = thread_request(settings);
  request.gpu_feed = feeds_gpu ? 1 : 0;
  CoreSlots slots = CoreSlots::take(usable_cores(machine));
  return choose_threads(machine, request, known_throughput(machine), &slots);
}

// Reads rates and ceilings from the measurement store, or measures them now.
void take_figures(const TeamOptions& options, bool tuned, DoctorFacts& facts) {
  MeasurementStore store(fingerprint(facts.machine));
  if (const std::string remark = store.remark(); !remark.empty()) facts.remarks.push_back(remark);
  ThreadTeam team(options);
  if (tuned) facts.rates = bench::known_precision_rates(store, team);  // otherwise a run does not use them either
  facts.kernels = kept_rates_text(store, team.size());
  facts.ceilings = kept_ceilings(store);
  facts.measured = facts.ceilings ? age_of(facts.ceilings->when) : "just now";
  if (!facts.ceilings) facts.ceilings = measure_briefly(team, facts.machine.limits);
}

DoctorFacts gather_facts(const config::Sources& sources) {
  DoctorFacts facts;
  const config::Resolved settings = settings_of(sources, facts.configuration);
  std::future<GpuScan> scan = std::async(std::launch::async, [] { return scan_gpus(); });
  take_settings(settings, facts);
  facts.version = RIDGE_VERSION;
  facts.isa = std::string(name(isa_tier()));
  if (const char* lowered = std::getenv("RIDGE_ISA"); lowered && *lowered)
    facts.remarks.push_back(fmt::format("RIDGE_ISA={} decides which kernels run", lowered));
  facts.health = read_health();  // before we load the machine ourselves
  facts.held = resident_bytes();
  const bool tuned = settings.get<bool>("optimize_perf");
  facts.machine = known_machine(tuned ? Figures::measured : Figures::none);

  // Drivers use the CPU while they start, which would distort the measurements. The wait is limited in case one hangs.
  scan.wait_for(std::chrono::milliseconds(400));
  ThreadChoice threads = choose_team(facts.machine, settings, false);
  take_figures(threads.team, tuned, facts);
  facts.gpus = scan.get();
  facts.backends = usable_backends(facts.gpus);
  const Device device = choose_device(facts.device, Fallback::allow, known_devices(facts.gpus, facts.backends)).device;
  const std::string format = settings.precision_key(to_string(device));
  facts.precision = settings.get<std::string>(format), facts.precision_source = settings.setting(format).source;
  if (device.kind != Device::Kind::cpu) threads = choose_team(facts.machine, settings, true);
  facts.threads = {"threads", std::to_string(threads.team.threads), threads.decided_by, threads.reason, threads.runner_up};
  facts.remarks.insert(facts.remarks.end(), threads.remarks.begin(), threads.remarks.end());
  return facts;
}

void write_file(const std::string& path, std::ios::openmode mode, const std::string& text) {
  std::ofstream file(path, std::ios::binary | mode);
  file << text << std::flush;
  if (!file) fail(ErrorCode::io, "[doctor] cannot write {}; check that its folder exists and is writable", path);
}

int run_doctor(const DoctorArguments& arguments, const config::Sources& sources) {
  const auto start = Clock::now();
  check_picture_place(arguments.svg);
  if (!arguments.svg.empty()) write_file(arguments.svg, std::ios::app, "");  // fail early if it is not writable
  const DoctorFacts facts = gather_facts(sources);
  DoctorReport report = examine(facts);
  report.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  if (!arguments.svg.empty()) write_file(arguments.svg, std::ios::trunc, to_svg(report));
  if (arguments.json)
    fmt::print("{}\n", to_json(report));
  else
    fmt::print("{}", to_text(report, {.width = terminal_width(), .colours = use_colour()}));
  if (!arguments.svg.empty() && !arguments.json) fmt::print("\nThe picture is in {}\n", arguments.svg);
  if (!facts.configuration.empty()) return kUsage;  // as in every other command
  return report.can_run() ? kOk : kError;
}

const Command doctor_command("doctor", "describe this machine, what Ridge will use of it, and why", [](Line line) {
  auto arguments = std::make_shared<DoctorArguments>();
  line.flag("--json", arguments->json, "print one JSON document");
  line.option("--svg", arguments->svg, "draw the machine into this file");
  auto sources = add_settings(line, config::kMachine);
  return [arguments, sources] { return run_doctor(*arguments, sources()); };
});

}  // namespace
}  // namespace ridge::cli
