// The programs of a training step, from the model's losses to compiled code.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "runtime/executable.h"
#include "step/batch_axis.h"
#include "step/step.h"

namespace ridge {

class StepPrograms {
 public:
  // Traces the losses for some numbers of samples, to find what must be known before anything is compiled.
  StepPrograms(const StepModel& model, const StepOptions& options);

  const std::string& coupling() const { return training_.coupling; }               // why the batch must not be split; empty: it may be
  const std::string& evaluation_coupling() const { return evaluated().coupling; }  // the same for `evaluate`
  // Why random numbers are others than by the rules of kDrawsVersion 1, given whether batches are split; empty: they are the same.
  std::string redrawn(bool split, bool evaluation_split) const;
  bool has_scan() const { return has_scan_; }
  bool multiplies_bf16() const { return multiplies_bf16_; }  // because of the precision, or by the model's own casts
  int moments() const { return moments_; }                   // tensors that the optimizer keeps for each parameter
  bool scaled() const { return options_.precision == Precision::fp16; }

  // Names of what the losses report besides themselves; sums and counts of these come behind those of the loss.
  const std::vector<std::string>& scalars() const { return training_.scalars; }
  const std::vector<std::string>& evaluation_scalars() const { return evaluated().scalars; }

  // Inputs: parameters, seed, step, base, [loss scale,] batch…; with accumulation also gradients, sums, counts, which are overwritten.
  // Outputs: gradients, sum, count, then sum and count of each scalar. `notes` gets how loops over time were cut.
  std::unique_ptr<Executable> body(int64_t samples, bool accumulate, Recompute level, std::vector<std::string>* notes = nullptr) const;
  // Inputs: parameters, seed, step, base, batch…. Outputs: sum, count, then sum and count of each scalar. Loops over time are cut as in the body of that level.
  std::unique_ptr<Executable> evaluation(int64_t samples, Recompute level) const;
  // Inputs: parameters, moments…, gradients, applied, lr, sum, count[, loss scale, its age].
  // Outputs: parameters, moments…, applied, loss, norm, good[, loss scale, its age, whether it was lowered].
  std::unique_ptr<Executable> update(std::shared_ptr<Arena> arena) const;
  // The same in parts, for moments that are brought to the device one after another; the bits are those of the whole.
  // Inputs: gradients, applied, lr, sum, count[, loss scale, its age].
  // Outputs: applied, loss, norm, good, the gradients' factor[, loss scale, its age, whether it was lowered].
  std::unique_ptr<Executable> judgement(std::shared_ptr<Arena> arena) const;
  // Of the parameters from `first` to before `last`. Inputs: parameters, moments…, gradients, applied, lr, good, factor. Outputs: parameters, moments….
  std::unique_ptr<Executable> update_part(std::shared_ptr<Arena> arena, size_t first, size_t last) const;

 private:
  struct Trace;
  struct ScaleNodes {
    NodeId next, age, lowered;
  };
  struct Update;
  struct Judged;
  Judged judge(Update& update) const;
  NodeId apply(Update& update, std::span<const Parameter> parameters, NodeId good, NodeId factor) const;  // the steps applied then
  struct LossFacts : BatchAxes {
    bool recounts = false;  // draws of a part of the batch are counted otherwise than the loss says
    bool draws_in_loop = false;
    std::vector<std::string> scalars;
    std::vector<std::shared_ptr<const Trace>> examined;  // the two that predict all other sizes; none: the batch must not be split
  };
  bool evaluates_otherwise() const { return options_.evaluation && model_.evaluate; }
  const LossFacts& evaluated() const { return evaluates_otherwise() ? evaluation_ : training_; }
  Trace written(int64_t samples, const StepModel::Loss& loss) const;  // in the precision that the loss itself has
  Trace trace(int64_t samples, const StepModel::Loss& loss) const;
  Trace trace(int64_t samples, const StepModel::Loss& loss, const LossFacts& facts, Recompute level) const;  // a part counts in the whole batch
  void narrow(Trace& t) const;
  void add_gradients(Trace& t) const;
  std::string find_difference(const Trace& t, const LossFacts& facts) const;  // of a trace as written from what the examined ones predict
  LossFacts examine(const StepModel::Loss& loss) const;
  ScaleNodes next_scale(Builder& b, NodeId scale, NodeId age, NodeId norm_finite, NodeId loss_finite, NodeId good) const;
  CompileOptions compile_options() const;

  const StepModel& model_;
  const StepOptions& options_;
  LossFacts training_, evaluation_;
  bool has_scan_ = false, multiplies_bf16_ = false;
  int moments_ = 2;
  double divisor_ = 1;  // of scaled losses: about their number in a whole batch, a power of two
};

}  // namespace ridge
