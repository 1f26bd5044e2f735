// Whether a coarser number format pays for a model on the CPU: short steps of one of its layers in each, timed.
#pragma once
#include <cstdint>

#include "nn/gpt.h"
#include "train/run_device.h"

namespace ridge {

class ThreadTeam;

// What this process or, by the profile, an earlier one has found for such steps. Else, if `figures` says so, they are timed now, in some tenths of
// a second and within `memory` bytes. A verdict that another moment might change is kept for this process alone.
FormatTrial try_formats(const GptConfig& model, int64_t batch, ThreadTeam& team, int64_t memory, Figures figures);

}  // namespace ridge
