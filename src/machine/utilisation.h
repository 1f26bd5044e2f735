// How busy the machine is: cores, kinds of cores, this process, memory, GPUs. Cheap enough to run always.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "machine/machine.h"

namespace ridge {

class Nvml;

std::string_view short_kind(std::string_view kind);  // "P" for performance, "E", "LP"; others as they are

struct GpuUse {
  std::string name;
  double busy = 0;  // share of the time; below 0: not told
  int64_t memory_used = 0, memory_total = 0;
};
using ReadGpus = std::function<std::vector<GpuUse>()>;
ReadGpus gpu_reader(std::shared_ptr<const Nvml> nvml);

// CPUs that are counted together.
struct CpuGroup {
  std::string name;
  std::vector<int> cpus;
};
std::vector<CpuGroup> cpu_groups(const Machine& machine);  // the usable hardware threads of each kind

// All shares are of the time between two readings, from 0 to 1.
struct Utilisation {
  double seconds = 0;
  bool counted = false;            // the system counts the time of each CPU; else busy is this process's alone
  double busy = 0;                 // of all watched CPUs, whoever kept them busy
  double stolen = 0;               // by other virtual machines
  double process = 0;              // CPU seconds of this process per second: 2 is two CPUs
  std::vector<double> cpus;        // busy, group after group
  std::vector<double> groups;      // busy
  std::vector<std::string> names;  // of the groups
  double balance = 1;              // the busiest group by the least busy one
  int64_t resident = 0, peak_resident = 0;
  int64_t available = 0;  // memory of the machine; 0: unknown
  std::vector<GpuUse> gpus;

  double others() const;        // share of the time of these CPUs that others had; 0 where it is not counted
  std::string summary() const;  // "CPU 97 % (P 98 %, E 95 %, balance 1.03×)", and the GPUs where there are some
};

class UtilisationSampler {
 public:
  explicit UtilisationSampler(std::vector<CpuGroup> groups, ReadGpus gpus = {}, const std::filesystem::path& root = "/");
  ~UtilisationSampler();
  UtilisationSampler(const UtilisationSampler&) = delete;

  Utilisation sample();         // since the sample before; allocates only on the first calls
  Utilisation overall() const;  // from the start to the last sample; GPUs: mean of all samples
  int64_t bytes_read() const;   // by all samples

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// A measurement during which others had more than this share of the machine is marked, and repeated when the machine is quiet.
inline constexpr double kQuiet = 0.1;

// The share of this process's CPUs that others have had since it was made.
class OthersWatch {
 public:
  OthersWatch();
  double others() { return sampler_.sample().others(); }  // since the call before

 private:
  UtilisationSampler sampler_;
};

double others_now();  // over a tenth of a second; what was seen within the last five seconds is not looked at again

// Samples from a thread of its own until it ends. Whatever a sample costs here, it takes less than 0.05 % of a core.
class UtilisationWatch {
 public:
  explicit UtilisationWatch(std::vector<CpuGroup> groups, ReadGpus gpus = {}, double period_s = 1);
  ~UtilisationWatch();
  UtilisationWatch(const UtilisationWatch&) = delete;

  Utilisation latest() const;   // the last whole period; all zero before the first
  Utilisation overall() const;  // since the start, up to now

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ridge
