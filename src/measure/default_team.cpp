#include "measure/default_team.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "backend/registry.h"
#include "base/error.h"
#include "machine/measurement_store.h"
#include "machine/utilisation.h"
#include "measure/kernel_mix.h"
#include "threads/thread_team.h"

namespace ridge {
namespace {

// Whether the cores may differ in more than their numbers: only then can a measurement tell anything new.
bool may_be_mixed(const Machine& machine) {
  if (machine.usable.size() > 1) return true;
  const std::vector<Core>& cores = machine.topology.cores;
  return std::any_of(cores.begin(), cores.end(), [&](const Core& c) { return c.cluster != cores[0].cluster || c.caches != cores[0].caches; });
}

struct DefaultTeam {
  Machine machine;
  CoreSlots slots = CoreSlots::take(usable_cores(machine));
  ThreadChoice choice;
  ThreadTeam team;

  explicit DefaultTeam(const ThreadRequest& request)
      : machine(known_machine(request.measure ? Figures::measured : Figures::none)),
        choice(choose_threads(machine, request, known_throughput(machine), &slots)),
        team(choice.team) {}
};

std::mutex mutex;  // held while the team is created
std::optional<ThreadRequest> requested;
bool is_made = false;

DefaultTeam& made() {
  static const std::unique_ptr<DefaultTeam> team = [] {
    std::lock_guard lock(mutex);
    auto made = std::make_unique<DefaultTeam>(requested ? *requested : environment_threads());
    is_made = true;
    return made;
  }();
  return *team;
}

}  // namespace

ThreadTeam& default_team() { return made().team; }

Backend& default_backend() {
  static Backend& backend = *open_backend("cpu", default_team).release();  // programs in static objects may outlive any other owner
  return backend;
}

std::shared_ptr<Backend> open_device(const Device& device) {
  if (device.kind == Device::Kind::cpu) return {&default_backend(), [](Backend*) {}};
  return open_backend(device, default_team);
}

const ThreadChoice& default_threads() { return made().choice; }

ThreadTeam& measuring_team() {
  DefaultTeam& all = made();
  const int most = all.machine.parallel();
  if (all.team.size() <= most) return all.team;
  static ThreadTeam few({.threads = most, .wait = all.choice.team.wait});
  return few;
}

void request_default_threads(const ThreadRequest& request) {
  std::lock_guard lock(mutex);
  if (is_made) fail(ErrorCode::usage, "[threads] the default thread team is already running; set its threads before the first computation");
  requested = request;
}

Machine known_machine(Figures figures) {
  Machine machine = detect_machine({});
  if (figures == Figures::none || !machine.topology.can_pin || !may_be_mixed(machine)) return machine;
  MeasurementStore store(fingerprint(machine));
  std::vector<NamedMeasurement> fresh;
  auto speed = [&](int cpu) {
    const std::string key = fmt::format("cpu_speed/{}", cpu);
    if (auto known = store.number(key)) return *known;
    const double measured = measure_cpu(cpu);
    fresh.push_back({key, {.value = fmt::format("{:.6g}", measured), .samples = 1}});
    return measured;
  };
  confirm_kinds(machine.topology, speed, machine.limits.cpus);
  store.put(fresh);
  return combine(std::move(machine.topology), std::move(machine.limits));
}

MeasureTeams known_throughput(const Machine& machine) {
  return [&machine](const std::vector<TeamOptions>& teams) {
    nlohmann::json what;
    for (const TeamOptions& t : teams) what.push_back({t.threads, int(t.wait), t.cpus});
    const std::string key = "kernel_mix/" + what.dump();
    MeasurementStore store(fingerprint(machine));
    if (auto known = store.get(key)) {
      const auto kept = nlohmann::json::parse(known->value, nullptr, false);
      const auto rates = kept.is_object() ? kept.value("rates", nlohmann::json()) : nlohmann::json();
      const bool whole =
          rates.is_array() && rates.size() == teams.size() && std::all_of(rates.begin(), rates.end(), [](const auto& r) { return r.is_number(); });
      // A measurement disturbed by other programs is repeated when they are gone.
      if (whole && (kept.value("others", 0.0) <= kQuiet || others_now() > kQuiet)) return rates.get<std::vector<double>>();
    }
    OthersWatch watch;
    const std::vector<double> rates = measure_kernel_mix(teams);
    store.put(key, {.value = nlohmann::json{{"rates", rates}, {"others", watch.others()}}.dump(), .samples = 1});
    return rates;
  };
}

}  // namespace ridge
