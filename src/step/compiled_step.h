// The state of a CompiledStep, and how a step is compiled.
#pragma once
#include <array>
#include <memory>
#include <vector>

#include "machine/precision.h"
#include "ridge/step.h"
#include "step/read_program.h"
#include "step/train_step.h"

namespace ridge {
namespace detail {
struct EagerDevice;
}

struct CompiledStep::State {
  TrainStep step;
  std::vector<BatchSpec> batch;
  std::vector<Parameter> parameters;
  double lr;                    // the optimizer's
  std::vector<Tensor> tensors;  // the parameters, until start_step() moves them: then they own this
};

// Looks up a step's device by name; empty: the device of eager tensors. There is no fallback: ErrorCode::unsupported says why the device is unusable.
detail::EagerDevice& step_device(const std::string& name);
// The number format of the step's matrix products. auto uses `rates` if available.
PrecisionChoice step_precision(const std::string& request, const detail::EagerDevice& device, const RateLookup& rates = {});

// The addresses of a batch's tensors. ErrorCode::binding or shape if they are not those that the step was compiled for.
constexpr size_t kMaxBatchTensors = 16;
std::array<const void*, kMaxBatchTensors> batch_data(const std::vector<Tensor>& batch, const std::vector<BatchSpec>& specs);

// A function of tensors as graph code for a step's programs: it is run on placeholders, and what it computes is copied into the program's graph. Parameters
// are recognised by their tensors, which must exist whenever it is traced. `refusal`: the beginning of the error if it uses any other tensor.
using TensorFunction = std::function<std::vector<Tensor>(const std::vector<Tensor>& inputs)>;
ReadProgram::Build traced_function(TensorFunction function, std::span<const Tensor> parameters,
                                   std::string refusal = "[program] a function may use only parameters, its inputs and numbers; it uses a");

// The step's losses as graphs. Parameters are recognised by their tensors, which must exist whenever the losses are traced.
StepModel step_model(const Step& step, const std::vector<BatchSpec>& batch);

// Overrides the optimizer in `options` with the step's and the backend with the device's. Allocates nothing large.
std::shared_ptr<CompiledStep::State> compile_step(const Step& step, const std::vector<BatchSpec>& batch, StepOptions options, detail::EagerDevice& device);
// Moves the parameter tensors, with their present values, into the step's memory, once. `touch`: allocates all other memory of the step first.
void start_step(const std::shared_ptr<CompiledStep::State>& state, detail::EagerDevice& device, bool touch);

}  // namespace ridge
