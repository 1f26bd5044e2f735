#include "train/run_device.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "backend/registry.h"
#include "base/error.h"
#include "base/text.h"
#include "machine/machine.h"
#include "machine/measurement_store.h"
#include "measure/default_team.h"
#include "train/step_time.h"

namespace ridge {
namespace {

constexpr const char* kSameDevice = "the run so far was trained there";
constexpr double kStartGuess = 3;    // default start-up time of a GPU in seconds, until measured
constexpr double kReplayed = 3e-6;   // minimum seconds per kernel in a recorded step; the probe measures host launches, which cost more
constexpr double kFirstGuess = 1.3;  // default ratio of a step's time to the sum of its kernels at their ceilings, until measured

MeasurementStore this_machine() { return MeasurementStore(fingerprint(detect_machine({}))); }

double rate_of(const GpuCeilings& gpu, Precision precision) {
  for (const GpuCeilings::Rate& rate : gpu.matmul)
    if (rate.precision == precision) return 1e9 * rate.gflops.median;
  return gpu.fastest() ? 1e9 * gpu.fastest()->gflops.median : 0;
}

std::optional<KernelRates> cpu_rates(int64_t memory, Figures figures, Precision precision = Precision::fp32) {
  if (figures == Figures::none) return {};
  return figures == Figures::measured ? known_kernel_rates(measuring_team(), memory, precision) : kept_kernel_rates(measuring_team(), memory, precision);
}

// The speed of each device; devices without measurements are left out.
std::vector<DeviceCost> measured_costs(const std::vector<KnownDevice>& devices, Figures figures, Figures gpu_figures) {
  std::vector<DeviceCost> costs;
  for (const KnownDevice& known : devices) {
    if (!known.missing.empty()) continue;
    if (known.device.kind == Device::Kind::cpu) {
      if (const std::optional<KernelRates> rates = cpu_rates(int64_t(1) << 28, figures))
        costs.push_back({known.device, 1e9 * rates->matmul_gflops, 1e9 * rates->copy_gbs, 1e-6 * rates->launch_us, 0, true});
    } else if (const std::optional<GpuCeilings> gpu = known_gpu_ceilings(known.name, gpu_figures)) {
      costs.push_back({known.device, rate_of(*gpu, Precision::bf16), 1e9 * gpu->copy_gbs.median, kReplayed, 1e9 * gpu->upload_pinned_gbs.median, true});
    }
  }
  return costs;
}

struct Chosen {
  DeviceChoice device;
  std::string by;  // what decided; empty: the setting
};

Chosen choose(const std::string& request, Fallback fallback, const StepWork& work, const std::string& earlier, Figures figures,
              const std::function<void()>& meanwhile = {}) {
  const DeviceRequest requested = parse_device(request);
  if (!requested.automatic) {
    // Any GPU will do: prefer the one the run started on; if it is gone, use another one and report it.
    if (requested.kind == Device::Kind::cuda && !requested.index && earlier.starts_with("cuda:"))
      if (DeviceChoice same = select_device(earlier, Fallback::allow); same.device.kind == requested.kind) {
        if (!same.fell_back) same.reason = kSameDevice;
        return {std::move(same), {}};
      }
    return {select_device(request, fallback), {}};
  }
  const std::vector<KnownDevice> devices = known_devices(gpus(), usable_backends(gpus()));
  if (std::none_of(devices.begin(), devices.end(), [](const KnownDevice& d) { return d.missing.empty() && d.device.kind != Device::Kind::cpu; }))
    return {choose_device(request, fallback, devices), "default"};
  for (const KnownDevice& d : devices)
    if (d.missing.empty() && !earlier.empty() && to_string(d.device) == earlier) return {{d.device, kSameDevice, {}, false, {}}, "the run so far"};
  const auto start = std::chrono::steady_clock::now();
  if (meanwhile) meanwhile();
  const std::vector<DeviceCost> costs = measured_costs(devices, figures, meanwhile ? std::min(figures, Figures::kept) : figures);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const bool all = std::all_of(devices.begin(), devices.end(), [&](const KnownDevice& d) {
    return !d.missing.empty() || std::any_of(costs.begin(), costs.end(), [&](const DeviceCost& c) { return c.device == d.device; });
  });
  Chosen chosen{choose_device(request, fallback, devices, work, costs), all ? "measured" : "default"};
  constexpr double kNoticed = 0.2;  // seconds; values from a measurement store take almost no time
  if (figures == Figures::measured && seconds > kNoticed)
    chosen.device.notices.push_back(fmt::format("the devices were measured for this choice ({:.1f} s); later runs reuse it", seconds));
  return chosen;
}

Fallback fallback_of(const config::Resolved& settings) { return settings.get<bool>("no_fallback") ? Fallback::forbid : Fallback::allow; }

// `automatic`: the format that precision=auto stands for; empty: choose one.
RunDevice open(const config::Resolved& settings, const Chosen& chosen, const char* automatic, const TryFormats& try_formats = {}) {
  RunDevice out;
  DeviceChoice device = chosen.device;
  const Fallback fallback = fallback_of(settings);
  const std::string request = settings.get<std::string>("device");
  if (device.fell_back && device.notices.size() == 2)
    out.fallback = fmt::format("{}; {}", device.notices[0], device.notices[1]);
  else
    out.notices = device.notices;
  try {
    out.backend = open_device(device.device);
  } catch (const Error& error) {
    // The driver is present but something else is missing: if fallback is allowed, use the CPU and report it.
    if (error.code() != ErrorCode::unsupported || fallback == Fallback::forbid) throw;
    if (parse_device(request).automatic)
      out.notices.push_back(error.what());
    else
      out.fallback = fmt::format("{}; cpu runs instead of {}", error.what(), request);
    device = {{}, fmt::format("{} cannot be used", to_string(device.device)), {}, true, {}};
    out.backend = open_device(device.device);
  }
  if (const std::string remark = out.backend->remark(); !remark.empty()) out.notices.push_back(remark);
  out.device = {"device", to_string(device.device), chosen.by.empty() ? settings.setting("device").source : chosen.by, device.reason, device.runner_up};
  out.precision_key = settings.precision_key(to_string(device.device));
  std::string requested_precision = settings.get<std::string>(out.precision_key);
  if (*automatic && requested_precision == "auto") requested_precision = automatic;
  const FormatTrial trial = try_formats && out.backend->host_memory() && !parse_precision(requested_precision) ? try_formats() : FormatTrial{};
  PrecisionChoice precision = choose_precision(requested_precision, fallback, out.backend->arithmetic(), trial.rates);
  if (trial.rates) precision.reason += " in a trial of one layer";
  if (!trial.reason.empty()) precision.reason = trial.reason;
  if (out.precision_key != "precision") precision.reason += ", set by " + out.precision_key;
  out.notices.insert(out.notices.end(), precision.notices.begin(), precision.notices.end());
  out.precision = precision.precision;
  choose_products(*out.backend, out.precision, settings.get<std::string>("matmul_precision"));
  out.number_format = {"precision", std::string(name(precision.precision)), trial.rates ? "measured" : settings.setting(out.precision_key).source,
                       precision.reason, precision.runner_up};
  return out;
}

std::string start_key(const std::string& gpu) { return "start_time/" + gpu; }

// Says why the CPU would finish before any GPU has started; empty: it would not, or there is no GPU.
std::string not_enough(const std::vector<KnownDevice>& devices, const StepWork& work, double times, Figures figures) {
  if (figures == Figures::none) return {};
  double start = 0;
  const MeasurementStore store = this_machine();
  for (const KnownDevice& d : devices)
    if (d.missing.empty() && d.device.kind != Device::Kind::cpu) {
      const double seconds = store.number(start_key(d.name)).value_or(kStartGuess);
      start = start > 0 ? std::min(start, seconds) : seconds;
    }
  const std::optional<KernelRates> rates = start > 0 ? cpu_rates(int64_t(1) << 28, figures) : std::nullopt;
  if (!rates) return {};
  const double here = times * expected_seconds(work, {{}, 1e9 * rates->matmul_gflops, 1e9 * rates->copy_gbs, 1e-6 * rates->launch_us, 0, true});
  return here < start ? fmt::format("expected to finish in {:.2g} s, and a GPU takes {:.2g} s to start", here, start) : std::string();
}

}  // namespace

RunDevice choose_run_device(const config::Resolved& settings, const StepWork& work, const std::string& earlier, Figures figures, const TryFormats& try_formats,
                            const std::function<void()>& meanwhile) {
  return open(settings, choose(settings.get<std::string>("device"), fallback_of(settings), work, earlier, figures, meanwhile), "", try_formats);
}

RunDevice choose_reading_device(const config::Resolved& settings, const StepWork& work, double times) {
  const std::string request = settings.get<std::string>("device");
  const bool tuned = settings.get<bool>("optimize_perf");
  Chosen chosen;
  if (parse_device(request).automatic)
    chosen.device.reason = not_enough(known_devices(gpus(), usable_backends(gpus())), work, times, tuned ? Figures::measured : Figures::none);
  chosen.by = "measured";
  if (chosen.device.reason.empty()) chosen = choose(request, fallback_of(settings), work, "", tuned ? Figures::kept : Figures::none);
  RunDevice opened = open(settings, chosen, "fp32");
  const int64_t free = opened.backend->memory().free;
  if (parse_device(request).automatic && !opened.backend->host_memory() &&
      double(free) <= work.bytes) {  // the weights and the activations of a pass do not fit there
    const std::string why = fmt::format("{} has {} free, and about {} are needed", opened.device.value, size_text(free), size_text(int64_t(work.bytes)));
    opened = open(settings, {{{}, why, {}, false, {}}, "measured"}, "fp32");
  }
  if (!opened.fallback.empty()) opened.notices.insert(opened.notices.begin(), opened.fallback);
  std::erase(opened.notices, kFp16Range);
  return opened;
}

void keep_start_time(const Backend& backend, double seconds) {
  const std::string gpu = backend.info().chip;
  if (gpu.empty()) return;
  MeasurementStore store = this_machine();
  // Keep the minimum, because kernels are compiled only once.
  const double before = store.number(start_key(gpu)).value_or(seconds);
  store.put(start_key(gpu), {.value = fmt::format("{:.4g}", std::min(before, seconds)), .samples = 1});
}

double measured_balance(const Backend& backend, Precision precision, int64_t memory, Figures figures) {
  if (backend.host_memory()) {
    const std::optional<KernelRates> rates = cpu_rates(memory, figures, precision);
    return rates && rates->copy_gbs > 0 ? rates->matmul_gflops / rates->copy_gbs : 0;
  }
  const std::optional<GpuCeilings> gpu = known_gpu_ceilings(backend.info().chip, figures);
  return gpu ? rate_of(*gpu, product_format(backend, precision)) / (1e9 * gpu->copy_gbs.median) : 0;
}

namespace {

constexpr std::pair<const char*, Measured GpuCeilings::*> kGpuFields[] = {
    {"copy", &GpuCeilings::copy_gbs}, {"launch", &GpuCeilings::launch_us}, {"upload", &GpuCeilings::upload_pinned_gbs}};
std::string gpu_prefix(const std::string& name) { return "step_time/" + name + "/"; }
bool is_known(const GpuCeilings& gpu) { return gpu.fastest() && gpu.copy_gbs.median > 0; }

void keep_gpu_ceilings(MeasurementStore& store, const std::vector<GpuCeilings>& measured) {
  std::vector<NamedMeasurement> rows;
  for (const GpuCeilings& gpu : measured) {
    if (!is_known(gpu)) continue;
    auto row = [&](const std::string& field, double value) {
      rows.push_back({gpu_prefix(gpu.name) + field, {.value = fmt::format("{:.6g}", value), .samples = 1}});
    };
    for (const GpuCeilings::Rate& rate : gpu.matmul) row(std::string(ridge::name(rate.precision)), rate.gflops.median);
    for (auto [field, member] : kGpuFields) row(field, (gpu.*member).median);
  }
  if (!rows.empty()) store.put(rows);
}

}  // namespace

std::optional<GpuCeilings> known_gpu_ceilings(const std::string& name, Figures figures) {
  if (figures == Figures::none) return {};
  MeasurementStore store = this_machine();
  auto find = [&](const std::vector<GpuCeilings>& list) -> std::optional<GpuCeilings> {
    for (const GpuCeilings& gpu : list)
      if (gpu.name == name && is_known(gpu)) return gpu;
    return {};
  };
  if (const std::optional<MachineCeilings> all = kept_ceilings(store))
    if (std::optional<GpuCeilings> known = find(all->gpus)) return known;
  // If the machine has not been probed, use what earlier runs measured.
  GpuCeilings own;
  own.name = name;
  const std::string prefix = gpu_prefix(name);
  for (Precision precision : {Precision::fp32, Precision::tf32, Precision::bf16, Precision::fp16})
    if (const std::optional<double> rate = store.number(prefix + std::string(ridge::name(precision)))) own.matmul.push_back({precision, {.median = *rate}});
  for (auto [field, member] : kGpuFields) (own.*member).median = store.number(prefix + field).value_or(0);
  if (std::optional<GpuCeilings> known = find({own})) return known;
  if (figures != Figures::measured) return {};
  const std::vector<GpuCeilings> measured = begin_gpu_rates()().gpus;
  keep_gpu_ceilings(store, measured);
  return find(measured);
}

std::function<void()> begin_measuring_gpus() {
  const std::vector<KnownDevice> devices = known_devices(gpus(), usable_backends(gpus()));
  const bool all = std::all_of(devices.begin(), devices.end(), [](const KnownDevice& d) {
    return !d.missing.empty() || d.device.kind == Device::Kind::cpu || known_gpu_ceilings(d.name, Figures::kept);
  });
  if (all) return {};
  return [probe = begin_gpu_rates()] {
    MeasurementStore store = this_machine();
    keep_gpu_ceilings(store, probe().gpus);
  };
}

GpuStepTime gpu_step_time(const TrainStep& step, const Backend& backend, Figures figures) {
  const std::string gpu = backend.info().chip;
  const std::optional<GpuCeilings> ceilings = known_gpu_ceilings(gpu, figures);
  if (!ceilings) return {};
  const double rate = rate_of(*ceilings, product_format(backend, step.plan().choices.precision)), bandwidth = 1e9 * ceilings->copy_gbs.median;
  GpuStepTime time;
  time.flops_rate = rate, time.bytes_rate = bandwidth;
  time.least = step.min_seconds(rate, bandwidth);
  double sum = 0, short_ones = 0;
  for (const auto& [kernel, times] : step.kernels()) {
    const double work = std::max(kernel.flops / rate, kernel.bytes / bandwidth);
    sum += double(times) * std::max(work, kReplayed);
    if (work < kReplayed) short_ones += double(times) * kReplayed;
  }
  // Steps of short and of long kernels exceed the sum of their kernels by different factors.
  time.key = fmt::format("step_time/{}/times_sum/{}/{}", gpu, name(step.plan().choices.precision), 2 * short_ones > sum ? "short" : "long");
  const std::optional<double> correction = this_machine().number(time.key);
  time.expected = correction.value_or(kFirstGuess) * sum;
  time.source = correction ? "the GPU's measured ceilings and an earlier run" : "the GPU's measured ceilings";
  return time;
}

void keep_step_time(const std::string& key, double expected, double measured) {
  if (key.empty() || !(expected > 0) || !(measured > 0)) return;
  MeasurementStore store = this_machine();
  const double before = store.number(key).value_or(kFirstGuess);
  store.put(key, {.value = fmt::format("{:.4g}", std::clamp(before * measured / expected, 0.5, 20.0)), .samples = 1});
}

BudgetFacts device_budget(const Backend& backend) {
  const DeviceMemory memory = backend.memory();
  return {.device = backend.info().name, .total = memory.total, .available = memory.free, .held = memory.held};
}

}  // namespace ridge
