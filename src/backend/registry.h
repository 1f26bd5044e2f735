// Backends by name: which there are, whether a device can be used here, how it is opened, and how the GPUs of all backends are measured. Nothing
// but this file and a backend's own folder knows its type.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "machine/gpu_ceilings.h"
#include "ridge/device.h"

namespace ridge {

class ThreadTeam;

std::vector<std::string_view> backend_names();  // "cpu", "cuda", "reference"

// The thread team on which the CPU's programs run: asked for when it is first needed, and must outlive the backend.
using TeamSource = std::function<ThreadTeam&()>;

// By the name of a backend or of one of its devices: "cpu", "cuda:1", "reference". ErrorCode::unsupported names what is missing and how to get it.
std::unique_ptr<Backend> open_backend(std::string_view name, const TeamSource& team);
std::unique_ptr<Backend> open_backend(const Device& device, const TeamSource& team);
std::unique_ptr<Backend> cpu_backend(ThreadTeam& team);  // which must outlive it

struct Availability {
  std::string missing = {};  // why the device cannot be used here, and what to do about it; empty: it can
  explicit operator bool() const { return missing.empty(); }
};
Availability available(const Device& device);

// One probe per backend that has GPUs, in child processes: a broken driver costs nothing but its own figures.
std::vector<GpuProbe> gpu_probes();
// Begins to measure what a step's expected time is made of, on all GPUs; the result waits for the end.
std::function<GpuFindings()> begin_gpu_rates();

}  // namespace ridge
