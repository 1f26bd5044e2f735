// The limits of Linux control groups (v1 and v2) on this process: every level from its own group up to the root of the hierarchy, as far as mounted here.
// Groups outside a container are not visible in it.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace ridge {

struct GroupLimits {
  struct Quota {
    double cpus;
    std::string source;  // the file with the limit
  };
  struct Memory {
    int64_t limit;
    int64_t used;  // memory that cannot be reclaimed
    std::string source;
  };
  struct Cpuset {
    std::vector<int> cpus;
    std::string source;
  };
  std::vector<Quota> quotas;  // own group first
  std::vector<Memory> memory;
  std::vector<Cpuset> cpusets;
};

GroupLimits read_control_groups(const std::filesystem::path& root = "/");  // reads proc and sys below root

}  // namespace ridge
