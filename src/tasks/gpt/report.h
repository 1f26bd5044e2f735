// What a GPT run tells before and after: the plan as text and JSON, and the summary.
#pragma once
#include <string>

#include "tasks/gpt/run.h"
#include "train/train_text.h"

namespace ridge {

std::string plan_text(const GptRun& run, const Look& look);
std::string plan_json(const GptRun& run);  // one document
double expected_total(const GptRun& run);  // seconds for the steps that are left; 0: not known

RunSummary summary_of(const GptRun& run, const Outcome& outcome, const std::string& cores);

}  // namespace ridge
