// One training step as programs that are compiled once and replayed: n micro-batches add up gradients, then one update.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "compile/saved_set.h"
#include "graph/builder.h"
#include "machine/precision.h"
#include "nn/parameter.h"

namespace ridge {

class ThreadTeam;

// What is trained: parameters (f32), the batch's tensors (first axis: samples), and the losses of a batch of any size.
struct StepModel {
  std::vector<Parameter> parameters;
  std::vector<Type> batch;
  // (builder, parameters, batch tensors, random operands whose base counts samples) -> sum of losses and their number
  using Loss = std::function<Builder::SumCount(Builder&, std::span<const NodeId>, std::span<const NodeId>, const RandomOperands&)>;
  Loss loss;
  Loss evaluate = {};  // the same for validation, without dropout; empty: `loss`
};

struct OptimizerOptions {
  enum class Kind { adamw, adam, sgd } kind = Kind::adamw;
  double lr = 1e-3;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double decay = 0;  // of parameters that decay
  double momentum = 0;
  bool nesterov = false;
};

struct StepOptions {
  OptimizerOptions optimizer;
  double clip = 0;                     // global norm; 0: none
  int64_t memory = 0;                  // bytes that the step may hold; 0: no limit
  int64_t micro = 0;                   // samples in a micro-batch; 0: decided by memory
  std::optional<Recompute> recompute;  // none: decided by memory
  Precision precision = Precision::fp32;  // of the model's arithmetic; parameters, moments and sums stay f32
  uint64_t seed = 0;
  std::string passes;
  ThreadTeam* team = nullptr;
};

struct StepPlan {
  int64_t batch = 0, micro = 0, repeats = 0, remainder = 0;  // samples; the remainder is a smaller last micro-batch
  Recompute recompute = Recompute::free;
  int64_t parameter_bytes = 0, gradient_bytes = 0, optimizer_bytes = 0, activation_bytes = 0, scratch_bytes = 0, planned_bytes = 0;
  int kernels = 0;   // of one whole step
  double flops = 0;  // of one whole step
  double compile_ms = 0;
  std::vector<std::string> decisions;  // what was chosen, why, and what else was tried
};

struct StepMetrics {
  double loss = 0, gradient_norm = 0;
  bool applied = true;        // false: something was not finite and nothing was changed
  double loss_scale = 1;      // with which this step ran
  bool scale_search = false;  // it was not applied, and the loss scale, still above its floor, was lowered
};

// What a step carries besides parameters and moments.
struct StepState {
  int64_t attempted = 0, applied = 0;
  double loss_scale = 1;
  int64_t scale_age = 0;  // applied steps since the scale was last changed
};

class TrainStep {
 public:
  // Plans and compiles; memory is mapped at the first run. ErrorCode::memory says what does not fit and what would.
  TrainStep(StepModel model, StepOptions options);
  ~TrainStep();
  TrainStep(TrainStep&&) noexcept;

  StepMetrics run(std::span<const void* const> batch, double lr);
  StepMetrics run(std::span<const void* const> batch);  // at the optimizer's rate

  // Losses of the first `samples` samples of a batch, by the model's `evaluate`. Changes nothing.
  struct Losses {
    double sum = 0, count = 0;
  };
  Losses evaluate(std::span<const void* const> batch, int64_t samples);

  StepState state() const;
  void restore(const StepState& state);
  void touch();  // maps all memory and writes to every page of it now, so that nothing can be taken away later

  const StepPlan& plan() const;
  std::span<float> parameter(size_t index);  // current values, in place
  std::span<float> gradient(size_t index);   // sums of the last step, before division by the count
  std::span<float> moment(size_t index, int which);
  // The least that one step can take: for each kernel the longer of its arithmetic and its memory traffic, at these rates.
  double least_seconds(double flops_per_second, double bytes_per_second) const;
  std::string report() const;  // for people: memory by class, kernels, decisions
  std::string dump() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ridge
