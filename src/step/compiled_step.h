// What is behind a CompiledStep.
#pragma once
#include <memory>
#include <vector>

#include "ridge/step.h"
#include "step/step.h"

namespace ridge {

struct CompiledStep::State {
  TrainStep step;
  std::vector<BatchSpec> batch;
  std::vector<Parameter> parameters;
  double lr;  // the optimizer's
};

// The optimizer is the step's own and the device that of eager tensors, whatever the options say. From here on the parameters' tensors lie in the memory of the
// compiled step.
std::shared_ptr<CompiledStep::State> compile_step(const Step& step, const std::vector<BatchSpec>& batch, StepOptions options);

}  // namespace ridge
