// Where a run computes and in which number format: the device by name, or the one on which a step is expected to be fastest.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/decision.h"
#include "config/config.h"
#include "machine/memory_budget.h"
#include "machine/precision.h"
#include "machine/profile.h"
#include "measure/probe.h"
#include "ridge/device.h"
#include "step/step.h"

namespace ridge {

class Backend;

// What a short trial of number formats on the CPU has shown for a model.
struct FormatTrial {
  RateLookup rates;    // of steps, in those of fp32, for formats that this CPU multiplies natively; empty: none is known
  std::string reason;  // why nothing was tried though it could have been
};
using TryFormats = std::function<FormatTrial()>;

struct RunDevice {
  std::shared_ptr<Backend> backend;  // never null
  Precision precision = Precision::fp32;
  Decision device, number_format;
  std::string precision_key;  // the setting that asked for the format: precision, or that of this device
  std::string fallback;       // why this is not the device that was asked for, and which one runs instead; empty: it is
  std::vector<std::string> notices;
};

// Begins to measure the GPUs of which nothing is known, beside other work; what it gives waits for that, and keeps what was found.
std::function<void()> begin_measuring_gpus();

// `work` is looked at for device=auto alone; `earlier`: the device of the run that goes on, empty for a new one. What has not been
// measured yet is, if `figures` says so, after `meanwhile`, which was begun before. `try_formats` is called for precision=auto on the CPU;
// absent: fp32 there.
// ErrorCode::unsupported and usage as select_device() has them.
RunDevice choose_run_device(const config::Resolved& settings, const StepWork& work, const std::string& earlier, Figures figures,
                            const TryFormats& try_formats = {}, const std::function<void()>& meanwhile = {});

// The same for a model that is only read, `times` over: precision=auto is fp32 there, and what the CPU has done before a GPU would have
// begun stays on the CPU.
RunDevice choose_reading_device(const config::Resolved& settings, const StepWork& work, double times);
void keep_start_time(const Backend& backend, double seconds);  // that it took until it could compute; of the CPU nothing is kept

// What a GPU can do, from the profile; measured now (seconds) where it holds nothing and `figures` says so. Empty: not known.
std::optional<GpuCeilings> known_gpu_ceilings(const std::string& name, Figures figures);

struct GpuStepTime {
  double least = 0, expected = 0;  // seconds; 0: not known
  std::string source;
  std::string key;  // of steps of this kind, for keep_step_time()
};
GpuStepTime gpu_step_time(const TrainStep& step, const Backend& backend, Figures figures);
// Operations that the device's products take in the time of a byte; 0: its rates are not known. On the CPU with so much memory.
double measured_balance(const Backend& backend, Precision precision, int64_t memory, Figures figures);

// What a run has seen: later ones of its kind expect as much above the sum of their kernels. An empty key: nothing is kept.
void keep_step_time(const std::string& key, double expected, double measured);

BudgetFacts device_budget(const Backend& backend);

}  // namespace ridge
