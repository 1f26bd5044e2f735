// Decides how to split the batch and what to recompute, so that a step fits its memory limit.
#pragma once
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/arena.h"
#include "step/step_programs.h"

namespace ridge {

struct StepBody {
  int64_t samples;
  std::unique_ptr<Executable> exe;
};

struct PlannedStep {
  std::vector<StepBody> bodies;        // one, or two with a remainder
  std::vector<StepBody> evaluations;   // empty if not requested; more than one if a remainder runs in smaller parts, finally sample by sample
  std::unique_ptr<Executable> update;  // if moments are in host memory: only its first program, the gradient check
  struct Part {
    size_t first, last;  // parameters
    std::unique_ptr<Executable> exe;
  };
  std::vector<Part> parts;             // of an update with moments in host memory
  std::shared_ptr<Arena> activations;  // shared by all programs, as only one runs at a time
};

class StepPlanner {
 public:
  // `fixed_bytes`: parameters, gradients, moments and scalars. `plan` comes with the batch and these sizes; the planner fills in the rest.
  // `parts`: parameter ranges of an update whose moments are in host memory; empty: moments are on the device.
  using Range = std::pair<size_t, size_t>;
  StepPlanner(const StepModel& model, const StepOptions& options, const StepPrograms& programs, int64_t fixed_bytes, StepPlan& plan,
              std::vector<Range> parts = {});
  PlannedStep make();  // ErrorCode::memory says what does not fit, and what would

 private:
  // Memory of programs that never run at the same time: the largest arena, the largest scratch, and room for the most samples.
  struct Need {
    int64_t arena = 0, scratch = 0, samples = 0;
    void add(const Report& report, int64_t its_samples);
  };
  struct Try {
    int64_t micro;
    Recompute level;
    std::unique_ptr<Executable> exe, rest;  // rest: a smaller last micro-batch, or null
    int64_t bytes;                          // including the rest, the update and the smallest evaluation
    std::vector<std::string> notes;
    Need need;
  };
  Try attempt(int64_t micro, Recompute level, bool with_rest = false);  // with_rest: compile the rest even if the micro-batch does not fit
  Try choose();
  Try largest_that_fits(Try whole);
  double cost(const Try& t, double balance) const;
  bool faster(const Try& a, const Try& b);
  void take(Try t);
  void name_others(const Try& taken);
  void add_evaluations();
  void add_update();
  void describe(const char* name, int64_t samples, int64_t times, Executable& exe);
  void list_largest();
  Need others(Recompute level);  // the update, and an evaluation of as few samples as possible
  int64_t held(const Need& need) const;
  int64_t min_evaluation_samples() const;  // samples; 0: no evaluation requested
  int64_t batch_bytes(int64_t samples) const;
  void refuse_split() const;
  [[noreturn]] void refuse(int64_t micro);

  const StepModel& model_;
  const StepOptions& options_;
  const StepPrograms& programs_;
  const bool in_host_memory_;  // the device works in the host's memory
  int64_t fixed_, limit_;
  StepPlan& plan_;
  std::vector<Range> parts_;
  PlannedStep out_;
  std::string why_;
  struct Size {
    int64_t micro;
    Recompute level;
    int64_t bytes;
  };
  std::vector<Size> tried_;
  Need taken_;
  std::map<bool, std::unique_ptr<Executable>> small_evaluations_;  // key: whether loops run in segments
};

std::string size_rounded_up(int64_t bytes);  // rounded up, so that the size we quote is sufficient

}  // namespace ridge
