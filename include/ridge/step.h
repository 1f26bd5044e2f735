// A training step from a model, an optimizer and a loss: traced, differentiated, planned, compiled once, replayed.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ridge/nn.h"
#include "ridge/training.h"

namespace ridge {

// Hyperparameters; decay is the weight decay: decoupled from the gradient in adamw() and muon(), added to it in adam() and sgd().
struct AdamArgs {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, decay = 0;
};
struct SgdArgs {
  double lr = 1e-2, momentum = 0, decay = 0;
  bool nesterov = false;
};
// An update of a matrix is lr · scale · √(its larger size) times an orthogonal matrix, so that its root mean square is about lr · scale, as AdamW's is with a
// scale of 0.2. beta1, beta2 and eps are those of AdamW for all other parameters, with the same lr.
struct MuonArgs {
  double lr = 1e-3, momentum = 0.95, scale = 0.2, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, decay = 0;
  bool nesterov = true;
};
// Optimizers for Step. Each keeps its moments in f32. muon() treats the weights of hidden layers, found in the traced loss, as matrices (a convolution's
// weight as [out, in · window]); vectors, embeddings, output heads and whatever else is not multiplied as it is are updated as by adamw().
Optimizer adamw(const AdamArgs& args = {});
Optimizer adam(const AdamArgs& args = {});
Optimizer sgd(const SgdArgs& args = {});
Optimizer muon(const MuonArgs& args = {});

// A batch tensor. The first axis counts samples and may be split.
struct BatchSpec {
  Shape shape;
  DType dtype = DType::f32;
};

// How a step is compiled; the defaults choose everything automatically.
struct CompileArgs {
  std::string memory = "auto";  // memory limit of the step: "512MiB", "2GiB"; "auto" and "": all of the machine's memory
  double clip = 0;              // largest norm of all gradients together; 0: no clipping
  int64_t micro = 0;            // samples in a micro-batch; 0: as many as fit
  uint64_t seed = 0;
  std::string device = {};         // "cpu", "cuda", "cuda:1", "auto"; empty: the device set by use_device(). ErrorCode::unsupported if unusable
  std::string precision = "fp32";  // of matrix products: fp32, tf32, bf16, fp16, or auto; ErrorCode::unsupported if the device lacks the format
};

// What one step reports: the mean loss of the batch and the norm of all gradients, before clipping.
struct StepResult {
  double loss = 0, gradient_norm = 0;
  bool applied = true;                                       // false: a value was not finite, so the update was skipped
  std::vector<std::pair<std::string, double>> scalars = {};  // named scalars of the loss, means over the batch
  double scalar(std::string_view name) const;                // ErrorCode::value if the loss reports no such scalar
};

// A step runs on the device that it was compiled for. After compile() the module's tensors are stored in the step's memory: reading them gives the
// current weights, even if other expressions are computed on another device. Expressions built before a step have the values of the weights before it.
class CompiledStep {
 public:
  StepResult run(const std::vector<Tensor>& batch);
  StepResult run(const std::vector<Tensor>& batch, double lr);  // ErrorCode::value if lr is negative or not finite
  std::string report() const;                                   // memory by class, kernels, decisions and their reasons
  std::string dump() const;                                     // lists every kernel
  int64_t planned_bytes() const;                                // all memory of the step, allocated when it was compiled
  int64_t micro_batch() const;                                  // samples computed together
  int64_t kernels() const;                                      // launches in one step

  struct State;  // internal
  explicit CompiledStep(std::shared_ptr<State> state) : state_(std::move(state)) {}

 private:
  std::shared_ptr<State> state_;
};

// Parameters, an optimizer and a loss, before compilation. Usually made by step() below.
class Step {
 public:
  // Traced once: computes the loss of a batch from its tensors.
  using LossFn = std::function<Loss(const std::vector<Tensor>& batch)>;
  // `evaluate` is the validation loss, for example without dropout; if empty, `loss` is used.
  Step(std::vector<NamedTensor> parameters, Optimizer optimizer, LossFn loss, LossFn evaluate = {})
      : parameters_(std::move(parameters)), optimizer_(optimizer), loss_(std::move(loss)), evaluate_(std::move(evaluate)) {}
  CompiledStep compile(const std::vector<BatchSpec>& batch, const CompileArgs& args = {}) const;

  const std::vector<NamedTensor>& parameters() const { return parameters_; }
  const Optimizer& optimizer() const { return optimizer_; }
  const LossFn& loss() const { return loss_; }
  const LossFn& evaluate() const { return evaluate_; }

 private:
  std::vector<NamedTensor> parameters_;
  Optimizer optimizer_;
  LossFn loss_, evaluate_;
};

namespace detail {
void check_loss_arguments(size_t taken, size_t given);  // ErrorCode::usage if the batch has fewer tensors
}

// Wraps loss(x), loss(x, target) or loss(batch) as a function of the batch's tensors.
template <class Fn>
Step::LossFn loss_function(Fn loss) {
  return [loss](const std::vector<Tensor>& b) -> Loss {
    if constexpr (!std::is_invocable_v<Fn, const std::vector<Tensor>&>) detail::check_loss_arguments(std::is_invocable_v<Fn, Tensor, Tensor> ? 2 : 1, b.size());
    if constexpr (std::is_invocable_v<Fn, const std::vector<Tensor>&>)
      return loss(b);
    else if constexpr (std::is_invocable_v<Fn, Tensor, Tensor>)
      return loss(b[0], b[1]);
    else
      return loss(b[0]);
  };
}

// A step that trains all parameters of the module. `loss` and `evaluate` are functions as in loss_function().
template <class Module, class Fn>
Step step(Module& module, const Optimizer& optimizer, Fn loss) {
  return Step(parameters(module), optimizer, loss_function(loss));
}
template <class Module, class Fn, class Evaluate>
Step step(Module& module, const Optimizer& optimizer, Fn loss, Evaluate evaluate) {
  return Step(parameters(module), optimizer, loss_function(loss), loss_function(evaluate));
}

int64_t parse_bytes(const std::string& text);  // "512MiB", "1.5GiB", "100000"; ErrorCode::usage otherwise

}  // namespace ridge
