// How busy the machine is: cores, kinds of cores, this process, memory, GPUs. Cheap enough to run all the time.
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

std::string_view short_kind(std::string_view kind);  // "P" for performance, "E", "LP"; others unchanged

struct GpuUse {
  std::string name;
  double busy = 0;  // share of the time; below 0: unknown
  int64_t memory_used = 0, memory_total = 0;
};
using ReadGpus = std::function<std::vector<GpuUse>()>;
ReadGpus gpu_reader(std::shared_ptr<const Nvml> nvml);

// CPUs that are counted as a group.
struct CpuGroup {
  std::string name;
  std::vector<int> cpus;
};
std::vector<CpuGroup> cpu_groups(const Machine& machine);  // the usable hardware threads of each kind

// All shares are of the time between two samples, from 0 to 1.
struct Utilisation {
  double seconds = 0;
  bool counted = false;            // the system reports the time of each CPU; otherwise busy covers this process only
  double busy = 0;                 // of all watched CPUs, by any process
  double stolen = 0;               // by other virtual machines
  double process = 0;              // CPU seconds of this process per second: 2 is two CPUs
  std::vector<double> cpus;        // busy, group after group
  std::vector<double> groups;      // busy, per group
  std::vector<std::string> names;  // of the groups
  double balance = 1;              // ratio of the busiest group to the least busy one
  int64_t resident = 0, peak_resident = 0;
  int64_t available = 0;  // free memory of the machine; 0: unknown
  std::vector<GpuUse> gpus;

  double others() const;        // share of these CPUs' time used by other processes; 0 if not counted
  std::string summary() const;  // "CPU 97 % (P 98 %, E 95 %, balance 1.03×)", plus any GPUs
};

class UtilisationSampler {
 public:
  explicit UtilisationSampler(std::vector<CpuGroup> groups, ReadGpus gpus = {}, const std::filesystem::path& root = "/");
  ~UtilisationSampler();
  UtilisationSampler(const UtilisationSampler&) = delete;

  Utilisation sample();         // since the previous sample; allocates only on the first calls
  Utilisation overall() const;  // from the start to the last sample; GPUs: mean over all samples
  int64_t bytes_read() const;   // by all samples

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// A measurement during which other processes used more than this share of the machine is marked, and repeated when the machine is quiet.
inline constexpr double kQuiet = 0.1;

// The share of this process's CPUs that other processes have used since construction.
class OthersWatch {
 public:
  OthersWatch();
  double others() { return sampler_.sample().others(); }  // since the previous call

 private:
  UtilisationSampler sampler_;
};

double others_now();  // over a tenth of a second; a result from the last five seconds is reused

// Samples on its own thread until destroyed. Takes less than 0.05 % of a core, whatever a sample costs.
class UtilisationWatch {
 public:
  explicit UtilisationWatch(std::vector<CpuGroup> groups, ReadGpus gpus = {}, double period_s = 1);
  ~UtilisationWatch();
  UtilisationWatch(const UtilisationWatch&) = delete;

  Utilisation latest() const;   // the last complete period; all zero before the first
  Utilisation overall() const;  // since the start, up to now

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ridge
