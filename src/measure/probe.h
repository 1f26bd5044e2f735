// All ceilings of the machine: multiply-adds by type, bandwidth by cache level and fork-join latency, each by number of threads; measured in seconds, stored in
// the measurement store and read back from it.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "machine/machine.h"
#include "machine/precision.h"
#include "measure/ceilings.h"

namespace ridge {

class MeasurementStore;

struct RateCeiling {
  DType dtype = DType::f32;
  int threads = 1;
  Measured gflops;
};

struct BandwidthCeiling {
  std::string level;  // L1, L2, L3, memory
  Movement movement = Movement::copy;
  int threads = 1;
  int64_t bytes = 0;  // working set: per thread in a cache, in total in memory
  Measured gbs;
};

struct ForkJoinCeiling {
  int threads = 1;
  Measured us;
};

struct MachineCeilings {
  std::vector<RateCeiling> rates;
  std::vector<BandwidthCeiling> bandwidths;  // nearest level first
  std::vector<ForkJoinCeiling> fork_joins;
  std::vector<GpuCeilings> gpus;
  std::vector<std::string> no_gpus;  // why backends found none
  bool quick = false;
  double seconds = 0;  // time taken
  int left_out = 0;    // measurements skipped for lack of time
  int64_t when = 0;    // seconds since 1970
  double others = 0;   // share of the machine used by other programs meanwhile

  int threads() const;  // the largest number measured
  // Null: not measured. 0 threads: the largest number.
  const RateCeiling* rate(DType dtype, int threads = 0) const;
  const BandwidthCeiling* bandwidth(std::string_view level, Movement movement, int threads = 0) const;
  std::vector<std::string> levels() const;
};

struct ProbeOptions {
  bool quick = false;               // one thread and all of them, within 5 s; otherwise every power of two in between too, within 30 s
  int threads = 0;                  // at most; 0: as many as can run at the same time
  double seconds = 0;               // start no measurement after this; 0: the limits above
  std::vector<GpuProbe> gpus = {};  // of the available backends
  std::function<void(std::string_view what, int done, int total)> progress = {};
};

MachineCeilings probe(const Machine& machine, const ProbeOptions& options = {});

void keep(MeasurementStore& store, const MachineCeilings& ceilings);
std::optional<MachineCeilings> kept_ceilings(const MeasurementStore& store);  // empty: never measured here

std::string to_json(const MachineCeilings& ceilings);

// The planned measurements, for callers that want to know in advance.
struct WorkingSet {
  std::string level;
  int64_t bytes = 0;  // per thread in a cache, per array in memory
  bool operator==(const WorkingSet&) const = default;
};
std::vector<WorkingSet> working_sets(const Machine& machine, int threads, Movement movement);
std::vector<int> thread_counts(int most, bool quick);  // ascending

}  // namespace ridge
