// One decision that Ridge made before a run: what was decided, by which source, why, and the alternatives.
#pragma once
#include <string>

namespace ridge {

struct Decision {
  std::string setting, value;
  std::string decided_by;  // default, measured, preset tiny, command line, …
  std::string why = {}, runner_up = {};
};

}  // namespace ridge
