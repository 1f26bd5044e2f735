// Settings on a command's line: key=value, --key=value, --key value, and --config FILE.
#pragma once
#include <functional>

#include "cli/command.h"
#include "config/config.h"
#include "measure/thread_choice.h"

namespace ridge::cli {

// Adds --config to the command and takes every word that it does not know as a setting; so the command can have words of its own
// only before them. What it returns gathers all sources once the line is parsed; config::resolve() does the rest.
std::function<config::Sources()> add_settings(Line line, unsigned task = config::kAllTasks);

// The same settings for a run that goes on: what it was started with holds, unless this call says otherwise. ErrorCode::usage: `out` is no run.
config::Resolved resolve_resumed(config::Sources& sources);

// The tasks that can be trained today: gpt. ErrorCode::usage names the nearest.
void check_task(const std::string& task);

// Says on stderr why the cache is not used, where it is not.
void note_cache();

// Tells of words on the command line that this command does not look at.
void note_unused(const config::Resolved& settings, std::string_view command);

// What the settings threads, affinity, wait and optimize_perf ask for.
ThreadRequest thread_request(const config::Resolved& settings);

}  // namespace ridge::cli
