// The work of a training step, estimated from its model before anything is compiled: enough to choose a device by.
#pragma once
#include "ridge/device.h"
#include "step/train_step.h"

namespace ridge {

// A loop over time counts as one kernel and some time for each of its steps, as a resident kernel takes on a GPU. One that runs step by step takes longer.
StepWork step_work(const StepModel& model);

}  // namespace ridge
