// Backends by name: which exist, whether a device can be used here, how to open it, and how to measure the GPUs of all backends. Only this
// file and the backend's own folder know its type.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "machine/device_choice.h"
#include "machine/gpu_ceilings.h"
#include "ridge/device.h"

namespace ridge {

class ThreadTeam;

std::vector<std::string_view> backend_names();  // "cpu", "cuda", "reference"

// Those of this build. Searches for their libraries if there are devices.
Backends usable_backends(const GpuScan& scan);

// Provides the thread team that runs CPU programs. It is called when the team is first needed; the team must outlive the backend.
using TeamSource = std::function<ThreadTeam&()>;

// By the name of a backend or of one of its devices: "cpu", "cuda:1", "reference". ErrorCode::unsupported says what is missing and how to
// get it.
std::unique_ptr<Backend> open_backend(std::string_view name, const TeamSource& team);
std::unique_ptr<Backend> open_backend(const Device& device, const TeamSource& team);
std::unique_ptr<Backend> cpu_backend(ThreadTeam& team);  // the team must outlive the backend

struct Availability {
  std::string missing = {};  // why the device cannot be used here, and what to do about it; empty: it can be used
  explicit operator bool() const { return missing.empty(); }
};
Availability available(const Device& device);

// One probe per backend that has GPUs. Probes run in child processes, so a broken driver only loses its own results.
std::vector<GpuProbe> gpu_probes();
// Starts measuring the rates that determine a step's expected time, on all GPUs; calling the result waits for the measurement.
std::function<GpuFindings()> begin_gpu_rates();

}  // namespace ridge
