// NVIDIA's management library, opened at run time: memory, load, temperature and power of the GPUs without a CUDA context.
// It runs inside this process: open it only after scan_gpus() has seen it work in a child.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

namespace ridge {

struct NvmlReading {
  int64_t memory_total = 0, memory_free = 0;  // bytes; 0: unknown
  int busy = -1;                              // percent of the time in which a kernel ran; -1: unknown
  int celsius = -1;
  double watts = -1, watts_limit = -1;
};

class Nvml {
 public:
  // Empty if the library is missing, lacks a function or fails to start; `why` says which.
  static std::unique_ptr<Nvml> open(const std::string& path, std::string& why);
  ~Nvml();

  int count() const;
  std::string driver() const;         // "550.54.15"
  std::string name(int index) const;  // "NVIDIA H200"
  std::string pci(int index) const;   // "00000000:01:00.0"
  NvmlReading read(int index) const;  // cheap enough for a sampler

 private:
  struct State;
  explicit Nvml(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

std::string nvml_library();  // RIDGE_NVML_LIBRARY, or the driver's usual library name

}  // namespace ridge
