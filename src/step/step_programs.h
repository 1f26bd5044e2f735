// Builds and compiles the programs of a training step from the model's losses.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "runtime/executable.h"
#include "step/batch_axis.h"
#include "step/train_step.h"

namespace ridge {

class StepPrograms {
 public:
  // Traces the losses with several sample counts to learn what compilation needs to know.
  StepPrograms(const StepModel& model, const StepOptions& options);

  const std::string& coupling() const { return training_.coupling; }               // why the batch must not be split; empty: splitting is allowed
  const std::string& evaluation_coupling() const { return evaluated().coupling; }  // the same for `evaluate`
  // Why random numbers differ from kDrawsVersion 1, given whether batches are split; empty: they do not.
  std::string redrawn(bool split, bool evaluation_split) const;
  bool has_scan() const { return has_scan_; }
  bool multiplies_bf16() const { return multiplies_bf16_; }  // because of the precision or the model's own casts
  static constexpr int kMaxMoments = 2;
  int moments(size_t parameter) const;  // kept by the optimizer
  std::string updates() const;          // what Muon updates; empty: another optimizer, which treats all parameters alike
  bool scaled() const { return options_.precision == Precision::fp16; }

  // Names of the scalars reported with the losses; their sums and counts follow those of the loss.
  const std::vector<std::string>& scalars() const { return training_.scalars; }
  const std::vector<std::string>& evaluation_scalars() const { return evaluated().scalars; }

  // Inputs: parameters, seed, step, base, [loss scale,] batch…; with accumulation also gradients, sums, counts, which are updated in place.
  // Outputs: gradients, sum, count, then sum and count of each scalar. Appends to `notes` how loops over time were segmented.
  std::unique_ptr<Executable> body(int64_t samples, bool accumulate, Recompute level, std::vector<std::string>* notes = nullptr) const;
  // Inputs: parameters, seed, step, base, batch…. Outputs: sum, count, then sum and count of each scalar. Loops over time are segmented as in the body of that
  // level.
  std::unique_ptr<Executable> evaluation(int64_t samples, Recompute level) const;
  // Inputs: parameters, moments…, gradients, applied, lr, sum, count[, loss scale, its age].
  // Outputs: parameters, moments…, applied, loss, norm, good[, loss scale, its age, whether it was lowered].
  std::unique_ptr<Executable> update(std::shared_ptr<Arena> arena) const;
  // The same update in parts, for moments that are copied to the device one part at a time; results are bit-identical to update().
  // Inputs: gradients, applied, lr, sum, count[, loss scale, its age].
  // Outputs: applied, loss, norm, good, the gradients' factor[, loss scale, its age, whether it was lowered].
  std::unique_ptr<Executable> gradient_check(std::shared_ptr<Arena> arena) const;
  // Updates parameters [first, last). Inputs: parameters, moments…, gradients, applied, lr, good, factor. Outputs: parameters, moments….
  std::unique_ptr<Executable> update_part(std::shared_ptr<Arena> arena, size_t first, size_t last) const;

 private:
  struct Trace;
  struct ScaleNodes {
    NodeId next, age, lowered;
  };
  struct Update;
  struct CheckedGradients;
  CheckedGradients check_gradients(Update& update) const;
  NodeId apply(Update& update, size_t first, size_t last, NodeId good, NodeId factor) const;  // returns the new number of applied steps
  struct LossFacts : BatchAxes {
    bool recounts = false;  // draws in a part of the batch are renumbered
    bool draws_in_loop = false;
    std::vector<std::string> scalars;
    std::vector<std::shared_ptr<const Trace>> examined;  // the two traces that predict all other sizes; empty: the batch must not be split
  };
  bool has_own_evaluation() const { return options_.evaluation && model_.evaluate; }
  const LossFacts& evaluated() const { return has_own_evaluation() ? evaluation_ : training_; }
  Trace written(int64_t samples, const StepModel::Loss& loss) const;  // in the loss's own precision
  Trace trace(int64_t samples, const StepModel::Loss& loss) const;
  Trace trace(int64_t samples, const StepModel::Loss& loss, const LossFacts& facts, Recompute level) const;  // draws of a part use the whole batch's numbering
  std::vector<NodeId> narrow(Graph& graph, const std::vector<NodeId>& roots) const;
  void add_gradients(Trace& t) const;
  std::string find_difference(const Trace& t, const LossFacts& facts) const;  // between a trace in its own precision and what the examined traces predict
  LossFacts examine(const StepModel::Loss& loss) const;
  ScaleNodes next_scale(Builder& b, NodeId scale, NodeId age, NodeId norm_finite, NodeId loss_finite, NodeId good) const;
  CompileOptions compile_options() const;
  bool is_matrix(size_t parameter) const { return !matrices_.empty() && matrices_[parameter]; }

  const StepModel& model_;
  const StepOptions& options_;
  LossFacts training_, evaluation_;
  bool has_scan_ = false, multiplies_bf16_ = false;
  std::vector<char> matrices_;  // which parameters Muon updates; empty: another optimizer
  double divisor_ = 1;          // of scaled losses: roughly the number of losses in a whole batch, rounded down to a power of two
};

}  // namespace ridge
