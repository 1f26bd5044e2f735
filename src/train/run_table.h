// A table of runs, as text and as JSON.
#pragma once
#include <span>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "train/experiment.h"

namespace ridge {

// One row per group, with means over its seeds and standard errors. Drops the last columns of the table to fit `width` characters.
std::string run_table(std::span<const RunGroup> groups, int width);
nlohmann::ordered_json run_document(std::span<const RunGroup> groups);  // {"runs": [{"name": …, "best_val_loss": …}]}

}  // namespace ridge
