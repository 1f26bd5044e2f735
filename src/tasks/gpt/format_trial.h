// Tests whether a lower-precision number format pays off for a model on the CPU, by timing short steps of one of its layers in each format.
#pragma once
#include <cstdint>

#include "nn/gpt.h"
#include "train/run_device.h"

namespace ridge {

class ThreadTeam;

// Returns what this process or an earlier one (through the measurement store) has found for such steps. Otherwise, if `figures` allows it, times them now, in a
// few tenths of a second and within `memory` bytes. A result too close to be stable is kept for this process only.
FormatTrial try_formats(const GptConfig& model, int64_t batch, ThreadTeam& team, int64_t memory, Figures figures);

}  // namespace ridge
