// The limits that really hold for this process: affinity mask, cpusets, offline CPUs, control groups (v1 and v2, every level up to
// the root), ulimits; and the memory that is left within them.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "machine/system_files.h"  // lists of CPUs

namespace ridge {

struct Limits {
  std::vector<int> cpus;     // the process may run on these; ascending, never empty
  std::vector<int> online;   // all that the system runs now
  std::vector<int> offline;  // present and switched off
  double cpu_quota = 0;      // CPU seconds per second; 0: none

  int64_t memory_total = 0;      // of the machine; 0: unknown
  int64_t memory_available = 0;  // what can still be had within all limits; 0: unknown
  int64_t memory_limit = 0;      // the least limit of control groups and ulimit -v below memory_total; 0: none
  int64_t swap_total = 0, swap_free = 0;

  std::optional<int64_t> address_space, resident, locked;  // ulimit -v -m -l in bytes; empty: unlimited
  std::optional<int64_t> open_files;                       // ulimit -n

  std::vector<std::string> reasons;  // what narrows the above, and which file or mask says so

  int threads() const;  // that can run at the same time: CPUs, capped by the quota, rounded up
};

// Reads the files of proc and sys below root. With "/" the mask and the ulimits of the calling thread come from the kernel,
// else from root/proc/self. Nothing readable: one CPU.
Limits read_limits(const std::filesystem::path& root = "/");

}  // namespace ridge
