// What is behind a CompiledStep.
#pragma once
#include <memory>
#include <vector>

#include "machine/precision.h"
#include "ridge/step.h"
#include "step/step.h"

namespace ridge {
namespace detail {
struct EagerDevice;
}

struct CompiledStep::State {
  TrainStep step;
  std::vector<BatchSpec> batch;
  std::vector<Parameter> parameters;
  double lr;  // the optimizer's
};

// The device of a step by its name; empty: that of eager tensors. Nothing else is taken instead: ErrorCode::unsupported says why it cannot be used.
detail::EagerDevice& step_device(const std::string& name);
// The format of its products. auto goes by `rates`, where there are any.
PrecisionChoice step_precision(const std::string& request, const detail::EagerDevice& device, const RateLookup& rates = {});

// The optimizer is the step's own, and the backend the device's, whatever the options say. From here on the parameters' tensors lie in the memory of the
// compiled step.
std::shared_ptr<CompiledStep::State> compile_step(const Step& step, const std::vector<BatchSpec>& batch, StepOptions options, detail::EagerDevice& device);

}  // namespace ridge
