// Chooses a run's device and number format: the device by name, or the one expected to run a step fastest.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/decision.h"
#include "config/config.h"
#include "machine/measurement_store.h"
#include "machine/memory_budget.h"
#include "machine/precision.h"
#include "measure/probe.h"
#include "ridge/device.h"
#include "step/train_step.h"

namespace ridge {

class Backend;

// Result of a short trial of number formats on the CPU for a model.
struct FormatTrial {
  RateLookup rates;    // step rates relative to fp32, for formats that this CPU multiplies natively; empty: unknown
  std::string reason;  // why no trial ran although one was possible
};
using TryFormats = std::function<FormatTrial()>;

struct RunDevice {
  std::shared_ptr<Backend> backend;  // never null
  Precision precision = Precision::fp32;
  Decision device, number_format;
  std::string precision_key;  // the setting that requested the format: precision, or this device's own precision setting
  std::string fallback;       // why the requested device is not used, and which one replaces it; empty: it is used
  std::vector<std::string> notices;
};

// Starts measuring unmeasured GPUs in the background. The returned function waits for the measurements and saves them.
std::function<void()> begin_measuring_gpus();

// `work` is used only for device=auto. `earlier`: the device of the run being resumed, empty for a new run. If `figures` allows it, missing
// measurements are made now; `meanwhile` (from begin_measuring_gpus()) is called first and replaces measuring the GPUs. `try_formats` is called for
// precision=auto on the CPU; without it, auto means fp32 there.
// Throws ErrorCode::unsupported and usage as select_device() does.
RunDevice choose_run_device(const config::Resolved& settings, const StepWork& work, const std::string& earlier, Figures figures,
                            const TryFormats& try_formats = {}, const std::function<void()>& meanwhile = {});

// The same for a model that is only read, `times` times: precision=auto means fp32, and work that the CPU would finish before a GPU has started
// stays on the CPU.
RunDevice choose_reading_device(const config::Resolved& settings, const StepWork& work, double times);
void keep_start_time(const Backend& backend, double seconds);  // saves the device's start-up time; ignored for the CPU

// A GPU's ceilings from the measurement store; if missing and `figures` allows it, measured now (takes seconds). Empty: unknown.
std::optional<GpuCeilings> known_gpu_ceilings(const std::string& name, Figures figures);

struct GpuStepTime {
  double least = 0, expected = 0;         // seconds; 0: unknown
  double flops_rate = 0, bytes_rate = 0;  // the ceilings behind the first
  std::string source;
  std::string key;  // identifies steps of this kind, for keep_step_time()
};
GpuStepTime gpu_step_time(const TrainStep& step, const Backend& backend, Figures figures);
// Arithmetic operations of matrix products in the time it takes to move one byte; 0: unknown. `memory`: limit for measuring on the CPU.
double measured_balance(const Backend& backend, Precision precision, int64_t memory, Figures figures);

// Saves a run's measured step time; later runs of its kind expect the same overhead over the sum of their kernels. Ignored for an empty key.
void keep_step_time(const std::string& key, double expected, double measured);

BudgetFacts device_budget(const Backend& backend);

}  // namespace ridge
