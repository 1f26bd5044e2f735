// Finds faster ways to build the kernels of a step, for all of them at a time: each candidate step changes every kernel once, and the time of each kernel is
// measured inside it. What a measurement is, and what time it is, are functions, so the search can be tested without a machine.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "measure/statistics.h"

namespace ridge {

// The kernels of a step that share a key.
struct KernelSite {
  std::string key = {};
  std::vector<std::string> variants = {};  // to try, the most promising first
  double roof_seconds = 0;                 // no variant can be faster; 0: unknown
};

// By site: 0 for the kernel as the device builds it, else 1 + the index of a variant.
using KernelAssignment = std::vector<size_t>;

struct KernelSample {
  std::vector<double> seconds = {};  // by site, in one step
  double step_seconds = 0;
  bool busy = false;  // other programs used the machine meanwhile
};

class KernelTarget {
 public:
  virtual ~KernelTarget() = default;
  virtual std::vector<KernelSite> sites() = 0;  // called first
  // Makes a step ready. Returns why it must not be used (a wrong result, too little memory); empty: it can be measured.
  virtual std::string check(const KernelAssignment& assignment) = 0;
  virtual KernelSample measure(const KernelAssignment& assignment) = 0;
  virtual double now() = 0;  // seconds
};

constexpr double kHotKernel = 0.01;  // of a step's time: below this, a kernel is not worth a search

struct KernelFinding {
  size_t site = 0, variant = 0;          // variant: the index of the adopted one plus 1, else 0
  size_t tried = 0;                      // variants measured
  double seconds = 0, best_seconds = 0;  // in one step, as the device builds it and as adopted: medians of the last, interleaved repeats
  size_t other = 0;                      // the closest one that was not adopted, with its ratio to the kernel as the device builds it; 0: none
  double other_ratio = 0;
  bool at_roof = false;
};

struct KernelSearchResult {
  KernelAssignment best;
  std::vector<KernelFinding> hot;                  // kernels of at least kHotKernel of the step, longest first
  double step_seconds = 0, best_step_seconds = 0;  // of whole steps, in the last repeats
  int64_t measured = 0;                            // variants of kernels
  int64_t samples = 0;
  std::vector<std::string> refused;  // "KEY VARIANT: why"
  bool busy = false;                 // other programs used the machine in the last repeats
  double seconds = 0;
  std::string ended;

  int64_t adopted() const;
};

// Each variant is measured in turns with the step as it is. The fastest of each kernel form one step, which is measured against the step as it is in fresh
// interleaved repeats: a variant is adopted if its kernel is at least kTuneGain faster there with separated medians, and the whole step no slower.
KernelSearchResult search_kernels(KernelTarget& target, double seconds);

}  // namespace ridge
