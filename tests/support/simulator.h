// A simulated GPU that replaces NVIDIA's driver, NVRTC, cuBLASLt and cuDNN: kernels are compiled with the host's compiler and run on the host.
#pragma once
#include <filesystem>
#include <string>

#include "support/fake_drivers.h"
#include "support/temp_folder.h"
#include "support/variable.h"

namespace ridge::test {

struct SimulatorOptions {
  bool cublas_lt = true, cudnn = false;
  std::string cudnn_part = "";  // the part of cuDNN to leave out
  std::string capability = "8.6";
  int processors = 4;
};

class Simulator {
 public:
  explicit Simulator(const SimulatorOptions& options = {})
      : driver_("RIDGE_CUDA_LIBRARY", fake_driver("simulator")),
        libraries_("RIDGE_CUDA_LIBRARIES", folder_.path()),
        capability_("SIMULATED_GPU_CC", options.capability),
        processors_("SIMULATED_GPU_PROCESSORS", std::to_string(options.processors)) {
    // One library serves under all names; a driver that has no symbols stands in for the libraries that should be missing.
    std::filesystem::create_symlink(fake_driver("simulator"), folder_ / "libnvrtc.so.13");
    std::filesystem::create_symlink(fake_driver(options.cublas_lt ? "simulator" : "old_gpu"), folder_ / "libcublasLt.so.13");
    std::filesystem::create_symlink(fake_driver(options.cudnn ? "simulator" : "old_gpu"), folder_ / "libcudnn.so.9");
    for (const char* part : {"graph", "heuristic", "engines_precompiled"})
      if (options.cudnn_part != part) std::filesystem::create_symlink(fake_driver("simulator"), folder_ / (std::string("libcudnn_") + part + ".so.9"));
  }

 private:
  TempFolder folder_;
  Variable driver_, libraries_, capability_, processors_;
};

// Kernels need a compiler: without one the simulated GPU is not available.
inline bool simulator_works() {
  for (const char* folder : {"/usr/bin/g++", "/usr/local/bin/g++", "/bin/g++"})
    if (std::filesystem::exists(folder)) return true;
  return false;
}

}  // namespace ridge::test
