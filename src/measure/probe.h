// All ceilings of the machine: multiply-adds by type, bandwidth by cache level, fork-join latency, each by number of threads; measured in
// seconds, kept in the profile, read back from there.
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

class Profile;

struct RateCeiling {
  DType dtype = DType::f32;
  int threads = 1;
  Measured gflops;
};

struct BandwidthCeiling {
  std::string level;  // L1, L2, L3, memory
  Movement movement = Movement::copy;
  int threads = 1;
  int64_t bytes = 0;  // of the working set: each thread's in a cache, all of it in memory
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
  std::vector<std::string> no_gpus;  // why backends have found none
  bool quick = false;
  double seconds = 0;  // that it took
  int left_out = 0;    // measurements for which there was no time
  int64_t when = 0;    // seconds since 1970
  double others = 0;   // share of the machine that other programs had meanwhile

  int threads() const;  // the most that were measured
  // Null: not measured. 0 threads: the most.
  const RateCeiling* rate(DType dtype, int threads = 0) const;
  const BandwidthCeiling* bandwidth(std::string_view level, Movement movement, int threads = 0) const;
  std::vector<std::string> levels() const;
};

struct ProbeOptions {
  bool quick = false;               // one thread and all of them, within 5 s; else every power of two between, within 30 s
  int threads = 0;                  // at most; 0: as many as can run at the same time
  double seconds = 0;               // begin no measurement later than this; 0: as said above
  std::vector<GpuProbe> gpus = {};  // of the backends that there are
  std::function<void(std::string_view what, int done, int total)> progress = {};
};

MachineCeilings probe(const Machine& machine, const ProbeOptions& options = {});

void keep(Profile& profile, const MachineCeilings& ceilings);
std::optional<MachineCeilings> kept_ceilings(const Profile& profile);  // empty: never measured here

std::string to_json(const MachineCeilings& ceilings);

// What to measure, for those who want to know before.
struct WorkingSet {
  std::string level;
  int64_t bytes = 0;  // for each thread in a cache, for each array in memory
  bool operator==(const WorkingSet&) const = default;
};
std::vector<WorkingSet> working_sets(const Machine& machine, int threads, Movement movement);
std::vector<int> thread_counts(int most, bool quick);  // ascending

}  // namespace ridge
