// Runs side by side, for people and for programs.
#pragma once
#include <span>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "train/experiment.h"

namespace ridge {

// A row for each group, with means over its seeds and their errors; at most `width` columns, the last ones are left out when it is narrow.
std::string run_table(std::span<const RunGroup> groups, int width);
nlohmann::ordered_json run_document(std::span<const RunGroup> groups);  // {"runs": [{"name": …, "best_val_loss": …}]}

}  // namespace ridge
