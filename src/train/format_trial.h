// Whether a coarser number format pays for a model on the CPU: short steps of one of its layers in each, timed.
#pragma once
#include <cstdint>
#include <string>

#include "machine/precision.h"
#include "nn/gpt.h"

namespace ridge {

class ThreadTeam;

struct FormatTrial {
  RateLookup rates;    // steps in a second, of formats that this CPU multiplies natively and of fp32; empty: none is known
  std::string reason;  // why nothing was tried though it could have been
};

// From the profile, where such steps were timed before. Else, if `measure` says so, now: some tenths of a second and less memory than the
// model's own step takes.
FormatTrial try_formats(const GptConfig& model, int64_t batch, ThreadTeam& team, bool measure);

}  // namespace ridge
