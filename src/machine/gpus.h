// Which GPUs the machine has. Drivers are queried in a child process, since their libraries may be broken, crash or hang: whatever they do, the result is a
// list and a one-line remark, never a failed start.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace ridge {

struct Gpu {
  enum class Vendor { nvidia, amd, intel, apple, other } vendor = Vendor::other;
  std::string name = {};
  std::string pci = {};                       // "0000:01:00.0"; may be empty
  int ordinal = -1;                           // CUDA's number; -1: CUDA does not offer it
  int capability = 0;                         // compute capability × 10 (90: 9.0); 0: unknown
  int processors = 0;                         // multiprocessors
  int64_t memory_total = 0, memory_free = 0;  // bytes; 0: unknown
  int busy = -1, celsius = -1;                // percent, degrees; -1: unknown
  double watts = -1, watts_limit = -1;
};

struct GpuScan {
  std::vector<Gpu> gpus;  // CUDA's by number, then the others
  std::string driver;     // NVIDIA's version; empty: none seen
  int cuda = 0;           // the newest CUDA version that the driver supports: 12040 is 12.4
  std::string no_cuda;    // why there is no CUDA device, and what to do; empty: there is one
  bool broken = false;    // something installed does not work: no_cuda or a remark says what
  bool slow = false;      // the driver did not answer in time, but might with more time
  std::vector<std::string> remarks;

  int cuda_devices() const;
};

struct GpuScanOptions {
  std::string cuda_library = {}, nvml_library = {};  // empty: RIDGE_CUDA_LIBRARY, RIDGE_NVML_LIBRARY, else the driver's usual names
  std::filesystem::path root = "/";                  // where sys and proc are
  double seconds = 1.5;                              // time limit for drivers
};

GpuScan scan_gpus(const GpuScanOptions& options = {});
const GpuScan& gpus();  // scanned once per process

std::string_view name(Gpu::Vendor vendor);

}  // namespace ridge
