// Starts a GPT run as start_run() does for any task, and returns it as what it is.
#pragma once
#include <optional>

#include "tasks/gpt/run.h"

namespace ridge {

inline GptRun start_gpt_run(const config::Resolved& settings, const RunOptions& options) {
  std::optional<GptRun> run;
  start_run(options, [&](const RunOptions& o) -> TaskRun& {
    run.reset();
    return run.emplace(plan_gpt_run(settings, o));
  });
  return std::move(*run);
}

}  // namespace ridge
