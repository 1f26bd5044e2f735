// The limits that actually apply to this process: affinity mask, cpusets, offline CPUs, control groups (v1 and v2, every level up to the root) and ulimits; and
// the memory left within them.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "machine/system_files.h"  // lists of CPUs

namespace ridge {

struct Limits {
  std::vector<int> cpus;     // CPUs that the process may run on; ascending, never empty
  std::vector<int> online;   // all CPUs currently online
  std::vector<int> offline;  // present but switched off
  double cpu_quota = 0;      // CPU seconds per second; 0: none

  int64_t memory_total = 0;      // of the machine; 0: unknown
  int64_t memory_available = 0;  // still available within all limits; 0: unknown
  int64_t memory_limit = 0;      // the lowest limit of control groups and ulimit -v below memory_total; 0: none
  int64_t swap_total = 0, swap_free = 0;

  std::optional<int64_t> address_space, resident, locked;  // ulimit -v -m -l in bytes; empty: unlimited
  std::optional<int64_t> open_files;                       // ulimit -n

  std::vector<std::string> reasons;  // what restricts the above, and which file or mask it comes from

  int threads() const;  // that can run at the same time: CPUs, capped by the quota, rounded up
};

// Reads the files of proc and sys below root. With "/" the calling thread's mask and ulimits come from the kernel, otherwise from root/proc/self. If nothing is
// readable: one CPU.
Limits read_limits(const std::filesystem::path& root = "/");

}  // namespace ridge
