// Measures the peak rates of this machine's CUDA devices, for ridge probe. This runs in a child process, because a driver may be broken, crash or hang: the
// result is then whatever was measured so far, with a remark.
#pragma once
#include <functional>
#include <optional>
#include <string>

#include "drivers/cuda_libraries.h"
#include "machine/gpu_ceilings.h"

namespace ridge::cuda {

struct GpuProbeOptions {
  std::string driver = {};                      // empty: RIDGE_CUDA_LIBRARY, else the driver's usual name
  std::optional<LibrarySearch> libraries = {};  // empty: the standard locations
  double quick_start = 2, start = 6;            // seconds allowed for the driver to start and load its libraries
  double quick_seconds = 1.6, seconds = 8;      // seconds allowed for measuring after that, for all devices together
  int most_samples = 2000;                      // per figure
  double rest = 3;                              // pause after a burst of matmuls, as a multiple of the burst's length
  bool rates_only = false;  // only the rates that a step's expected time depends on, in fewer and shorter bursts, because a run waits for them
};

GpuProbe gpu_probe(const GpuProbeOptions& options = {});

// Starts the probe in the background; the returned function waits for its result.
std::function<GpuFindings()> begin_gpu_probe(const GpuProbeOptions& options, bool quick);

}  // namespace ridge::cuda
