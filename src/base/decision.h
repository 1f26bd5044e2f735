// One thing that Ridge settled before a run: what, by whom, why, and what else it could have been.
#pragma once
#include <string>

namespace ridge {

struct Decision {
  std::string setting, value;
  std::string decided_by;  // default, measured, preset tiny, command line, …
  std::string why = {}, runner_up = {};
};

}  // namespace ridge
