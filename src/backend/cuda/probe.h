// What the CUDA devices of this machine can do at most, for ridge probe. They are measured in a child process, since a driver may be
// broken, crash or hang: whatever it does, the answer is what was measured until then and a line of remark.
#pragma once
#include <functional>
#include <optional>
#include <string>

#include "drivers/cuda_libraries.h"
#include "machine/gpu_ceilings.h"

namespace ridge::cuda {

struct GpuProbeOptions {
  std::string driver = {};                      // empty: RIDGE_CUDA_LIBRARY, else the driver's usual name
  std::optional<LibrarySearch> libraries = {};  // empty: the usual places
  double quick_start = 2, start = 6;            // seconds for the driver to start and to load its libraries
  double quick_seconds = 1.6, seconds = 8;      // to measure in after that, all devices together
  int most_samples = 2000;                      // of a figure
  double rest = 3;                              // after a burst of matmuls, in times of its length
  bool rates_only = false;                      // what a step's expected time is made of, in fewer and shorter bursts: a run waits for it
};

GpuProbe gpu_probe(const GpuProbeOptions& options = {});

// Begun here; what it gives waits for the end.
std::function<GpuFindings()> begin_gpu_probe(const GpuProbeOptions& options, bool quick);

}  // namespace ridge::cuda
