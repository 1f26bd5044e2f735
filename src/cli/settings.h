// Settings on a command's line: key=value, --key=value, --key value, and --config FILE.
#pragma once
#include <functional>

#include "cli/command.h"
#include "config/config.h"
#include "train/command_settings.h"

namespace ridge::cli {

// Adds --config to the command and takes every word that it does not know as a setting; so the command can have words of its own
// only before them. What it returns gathers all sources once the line is parsed; config::resolve() does the rest.
std::function<config::Sources()> add_settings(Line line, unsigned task = config::kAllTasks);

// The same settings for a run that goes on: what it was started with holds, unless this call says otherwise. ErrorCode::usage: `out` is no run.
config::Resolved resolve_resumed(config::Sources& sources);

std::string task_words();  // the tasks that can be trained, for help texts

}  // namespace ridge::cli
