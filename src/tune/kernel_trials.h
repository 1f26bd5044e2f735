// The kernels of a training step that can be built in several ways, and how these are measured: whole steps whose kernels are logged. Results are kept per
// kernel, so that steps with kernels of the same kind and size share them.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "machine/measurement_store.h"
#include "tune/kernel_search.h"
#include "tune/step_trials.h"
#include "tune/tuned_choice.h"

namespace ridge {

// What a device's choices() and with_choices() take: kKernelChoice + key -> variant.
using KernelWords = std::map<std::string, std::string>;

class KernelTrials : public KernelTarget {
 public:
  // flops_rate and bytes_rate: what the machine reaches, per second; 0: unknown. The planned step's device must have been given choices, even if none.
  KernelTrials(const TrainStep& planned, StepTrialOptions options, double flops_rate = 0, double bytes_rate = 0);
  ~KernelTrials() override;

  KernelWords words(const KernelAssignment& assignment) const;
  // Wrong if a changed kernel that promises the same bits gives others, or else if a gradient differs by more than the number format explains.
  std::string check(const KernelAssignment& assignment) override;
  std::vector<KernelSite> sites() override;
  KernelSample measure(const KernelAssignment& assignment) override;
  double now() override;

 private:
  struct Ready;
  class Log;
  Ready& ready(const KernelAssignment& assignment);
  bool same_bits(const KernelAssignment& assignment) const;
  std::string compare(const Ready& with) const;
  double run_logged(Ready& step, int times, Log& log);

  StepModel model_;
  StepOptions options_;
  StepTrialOptions o_;
  TrialBatch batch_;
  double flops_rate_, bytes_rate_;
  std::vector<KernelSite> sites_;
  std::vector<std::vector<KernelCandidate>> candidates_;  // by site
  std::unique_ptr<Ready> start_, other_;
  int times_ = 0;  // steps per measurement
  LoadWatch load_;
};

// Where the search's results for a kernel are stored, and the summary of a search for a step of this kind (tuning_key()).
std::string kernel_tuning_key(int threads, std::string_view kernel_key);
std::string kernels_tuning_key(std::string_view step_key, int threads);

}  // namespace ridge
