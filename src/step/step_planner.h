// Decides how a batch is split and what is recomputed, so that a step stays inside its memory.
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
  std::vector<StepBody> evaluations;   // none when not asked for; else one, or more when a rest is taken in smaller parts, at last sample by sample
  std::unique_ptr<Executable> update;  // or, where moments lie with the host, what it begins with
  struct Part {
    size_t first, last;  // parameters
    std::unique_ptr<Executable> exe;
  };
  std::vector<Part> parts;             // of such an update
  std::shared_ptr<Arena> activations;  // of all of them, as only one runs at a time
};

class StepPlanner {
 public:
  // `fixed_bytes`: parameters, gradients, moments and scalars. `plan` has its batch and the sizes of those, and gets the rest.
  // `parts`: of an update whose moments lie with the host, as first and last parameter; none: they lie on the device.
  using Range = std::pair<size_t, size_t>;
  StepPlanner(const StepModel& model, const StepOptions& options, const StepPrograms& programs, int64_t fixed_bytes, StepPlan& plan,
              std::vector<Range> parts = {});
  PlannedStep make();  // ErrorCode::memory: what does not fit, and what would

 private:
  // What programs hold that never run at the same time: the largest arena, the largest scratch, and a place for the most samples.
  struct Need {
    int64_t arena = 0, scratch = 0, samples = 0;
    void add(const Report& report, int64_t its_samples);
  };
  struct Try {
    int64_t micro;
    Recompute level;
    std::unique_ptr<Executable> exe, rest;  // rest: a smaller last micro-batch; null: there is none
    int64_t bytes;                          // with the rest, the update and the smallest evaluation
    std::vector<std::string> notes;
    Need need;
  };
  Try attempt(int64_t micro, Recompute level, bool with_rest = false);  // with_rest: also where it does not fit
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
  int64_t least_evaluation() const;  // samples; 0: none is wanted
  int64_t batch_bytes(int64_t samples) const;
  void refuse_split() const;
  [[noreturn]] void refuse(int64_t micro);

  const StepModel& model_;
  const StepOptions& options_;
  const StepPrograms& programs_;
  const bool near_;  // the device works in the host's memory
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
  std::map<bool, std::unique_ptr<Executable>> small_evaluations_;  // by whether loops run in stretches
};

std::string size_rounded_up(int64_t bytes);  // rounded up, so that a size that is quoted as enough is enough

}  // namespace ridge
