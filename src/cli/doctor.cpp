// ridge doctor: what this machine is, what Ridge would use of it and why, what is wrong and how to mend it.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <future>
#include <memory>

#include "base/error.h"
#include "bench/precision_rates.h"
#include "cli/command.h"
#include "cli/terminal.h"
#include "config/config.h"
#include "machine/doctor_report.h"
#include "machine/features.h"
#include "machine/profile.h"
#include "machine/thread_choice.h"
#include "runtime/default_team.h"

namespace ridge::cli {
namespace {

using Clock = std::chrono::steady_clock;

struct DoctorArguments {
  std::vector<std::string> overrides;
  std::string svg;
  bool json = false;
};

// A configuration that cannot be read is a finding, not the end: what the command line says still holds.
config::Resolved settings_of(const DoctorArguments& arguments, std::string& problem) {
  config::Sources sources;
  sources.task = config::kMachine;
  sources.words = arguments.overrides;
  sources.environment = config::process_environment();
  try {
    return config::resolve(sources);
  } catch (const Error& error) {
    problem = error.what();
    sources.environment.clear();
    sources.working_folder.reset();
    return config::resolve(sources);
  }
}

void take_settings(const config::Resolved& settings, DoctorFacts& facts) {
  facts.device = settings.get<std::string>("device"), facts.device_source = settings.setting("device").source;
  facts.precision = settings.get<std::string>("precision"), facts.precision_source = settings.setting("precision").source;
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

// A few figures where no probe has left better ones, within 0.5 s.
MachineCeilings measure_shortly(ThreadTeam& team) {
  MachineCeilings ceilings;
  ceilings.quick = true;
  ceilings.rates.push_back({DType::f32, team.size(), measure_fma(team, 0.06)});
  // Arrays far beyond the cache take longer to touch than a doctor has time where the cache is very large.
  constexpr int64_t kLargestCache = int64_t(128) << 20;
  if (last_level_cache_bytes() <= kLargestCache)
    for (Movement movement : {Movement::copy, Movement::read})
      ceilings.bandwidths.push_back({"memory", movement, team.size(), 0, measure_bandwidth(team, movement, 0.12)});
  return ceilings;
}

Decision decide_threads(const Machine& machine, const config::Resolved& settings, const Device& device, DoctorFacts& facts, TeamOptions& team) {
  ThreadRequest request;
  request.threads = settings.get<std::string>("threads");
  request.affinity = parse_affinity(settings.get<std::string>("affinity"));
  request.wait = parse_wait(settings.get<std::string>("wait"));
  request.source = settings.setting("threads").source;
  if (device.kind != Device::Kind::cpu) request.gpu_feed = 1;
  CoreSlots slots = CoreSlots::take(usable_cores(machine));
  const ThreadChoice choice = choose_threads(machine, request, known_throughput(machine), &slots);
  facts.remarks.insert(facts.remarks.end(), choice.remarks.begin(), choice.remarks.end());
  team = choice.team;
  return {"threads", std::to_string(choice.team.threads), choice.reason, choice.runner_up, request.source};
}

DoctorFacts look_around(const DoctorArguments& arguments) {
  DoctorFacts facts;
  const config::Resolved settings = settings_of(arguments, facts.configuration);
  // Drivers may take their time; the rest of the machine is looked at meanwhile.
  std::future<GpuScan> scan = std::async(std::launch::async, [] { return scan_gpus(); });
  take_settings(settings, facts);
  facts.version = RIDGE_VERSION;
  facts.isa = std::string(name(isa_tier())) + (cpu_has_avx512_bf16() ? " with bf16" : "");
  if (const char* lowered = std::getenv("RIDGE_ISA"); lowered && *lowered)
    facts.remarks.push_back(fmt::format("RIDGE_ISA={} decides which kernels run", lowered));
  facts.health = read_health();  // before anything loads the machine
  facts.machine = known_machine();
  facts.gpus = scan.get();

  const DeviceChoice device = choose_device(facts.device, Fallback::allow, known_devices(facts.gpus));
  TeamOptions options;
  facts.threads = decide_threads(facts.machine, settings, device.device, facts, options);
  Profile profile(fingerprint(facts.machine));
  if (const std::string remark = profile.remark(); !remark.empty()) facts.remarks.push_back(remark);
  ThreadTeam team(options);
  facts.rates = bench::known_precision_rates(profile, team);
  facts.ceilings = kept_ceilings(profile);
  facts.measured = facts.ceilings ? age_of(facts.ceilings->when) : "just now, shortly";
  if (!facts.ceilings) facts.ceilings = measure_shortly(team);
  return facts;
}

void write_picture(const std::string& path, const DoctorReport& report) {
  std::ofstream file(path, std::ios::binary);
  file << to_svg(report);
  file.flush();
  if (!file) fail(ErrorCode::io, "[doctor] cannot write {}; is its folder there, and may it be written?", path);
}

int run_doctor(const DoctorArguments& arguments) {
  const auto start = Clock::now();
  DoctorReport report = examine(look_around(arguments));
  report.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  if (!arguments.svg.empty()) write_picture(arguments.svg, report);
  if (arguments.json)
    fmt::print("{}\n", to_json(report));
  else
    fmt::print("{}", to_text(report, {.width = terminal_width(), .colours = use_colour()}));
  if (!arguments.svg.empty() && !arguments.json) fmt::print("\nThe picture is in {}\n", arguments.svg);
  return report.can_run() ? kOk : kError;
}

const Command command("doctor", "say what this machine is, what Ridge will use of it, and why", [](CLI::App& app) {
  auto arguments = std::make_shared<DoctorArguments>();
  app.add_option("overrides", arguments->overrides, "key=value as for a run: device=, threads=, precision=, memory=, memory_fraction=, …");
  app.add_flag("--json", arguments->json, "one JSON document");
  app.add_option("--svg", arguments->svg, "draw the machine into this file");
  return [arguments] { return run_doctor(*arguments); };
});

}  // namespace
}  // namespace ridge::cli
