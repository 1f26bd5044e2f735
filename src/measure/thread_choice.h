// How many threads compute, on which cores, and how they wait: chosen by measured throughput if the machine leaves a choice, with an explanation.
#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "machine/core_slots.h"
#include "machine/machine.h"
#include "threads/thread_team.h"

namespace ridge {

// none: the system moves threads freely; compact: neighbouring cores first; spread: as far apart as caches and sockets allow.
enum class Affinity { automatic, none, compact, spread };

std::string_view name(Affinity affinity);
std::string_view name(Wait wait);
Affinity parse_affinity(std::string_view text);  // auto, none, compact, spread
Wait parse_wait(std::string_view text);          // auto, active, passive

struct ThreadRequest {
  std::string threads = "auto";  // auto, a number, performance (one thread on each core of the fastest kind), all (every hardware thread)
  Affinity affinity = Affinity::automatic;
  Wait wait = Wait::automatic;
  std::string source = "default";         // where `threads` was set
  double gpu_feed = 0;                    // above 0: a GPU does the work, and feeding it takes this many CPUs
  bool measure = true;                    // false: by topology alone
  std::vector<std::string> remarks = {};  // on settings that were not understood
};

// RIDGE_THREADS, RIDGE_AFFINITY, RIDGE_WAIT, RIDGE_OPTIMIZE_PERF; otherwise OMP_NUM_THREADS and OPTIMIZE_PERF.
ThreadRequest environment_threads();

struct ThreadCandidate {
  std::string label;  // "6 P-cores + 8 E-cores"
  TeamOptions team;
  double throughput = 0;  // relative to the first candidate; 0: not measured
};

struct ThreadChoice {
  TeamOptions team;
  Affinity affinity = Affinity::none;
  std::string label;
  std::string decided_by;                   // default, measured, or the source of the request
  std::string reason;                       // "measured: 8 P-cores 1.00×, 8 P-cores + 8 E-cores 1.27×"
  std::string runner_up;                    // empty: there was none
  std::vector<ThreadCandidate> candidates;  // all that were compared
  std::vector<std::string> remarks;         // what the user should know: shared cores, a quota, a request that cannot be met

  std::string text() const;  // one line
};

// The throughput of a realistic mix of kernels on each team, in any unit; 0: could not be measured.
using MeasureTeams = std::function<std::vector<double>(const std::vector<TeamOptions>&)>;

// Without a measurement the choice is by topology alone. With `slots`, taken on all usable cores, other processes' cores are avoided and unused
// slots are released.
ThreadChoice choose_threads(const Machine& machine, const ThreadRequest& request, const MeasureTeams& measure, CoreSlots* slots = nullptr);

// The first hardware thread of each usable core, which identifies its slot.
std::vector<int> usable_cores(const Machine& machine);

}  // namespace ridge
