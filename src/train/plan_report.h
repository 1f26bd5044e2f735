// A planned run as text and as JSON.
#pragma once
#include <string>

#include "train/run_planner.h"
#include "train/train_text.h"

namespace ridge {

std::string plan_text(const PlannedRun& run, const TerminalStyle& style);
std::string plan_json(const PlannedRun& run);  // one document

}  // namespace ridge
