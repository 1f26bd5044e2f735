// Settings on the command line: key=value, --key=value, --key value, and --config FILE.
#pragma once
#include <functional>

#include "cli/command.h"
#include "config/config.h"
#include "train/command_settings.h"
#include "train/task.h"

namespace ridge::cli {

// Adds --config to the command and treats every unknown word as a setting, so the command's own positional words must come first.
// The returned function gathers all sources once the line is parsed; config::resolve() does the rest.
std::function<config::Sources()> add_settings(Line line, unsigned task = config::kAllTasks);

// Settings for a resumed run: its original settings, unless overridden on this command line. ErrorCode::usage if `out` is not a run.
config::Resolved resolve_resumed(config::Sources& sources);

// Adds the settings that others imply (Task::implied), and prints what they say on stderr.
void add_implied(const Task& task, config::Sources& sources);

// batch=auto: measures the smallest batch within 2 % of the fastest, prints the curve on stderr and adds the batch to the sources.
void measure_batch(const Task& task, config::Sources& sources, const RunOptions& options);

std::string task_words();  // names of the tasks, for help texts

}  // namespace ridge::cli
