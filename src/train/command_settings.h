// What settings mean for every command that reads them.
#pragma once
#include <string_view>

#include "config/config.h"
#include "measure/thread_choice.h"

namespace ridge {

// Says on stderr why the cache is not used, where it is not.
void note_cache();

// Tells of words on the command line that this command does not look at.
void note_unused(const config::Resolved& settings, std::string_view command);

// What the settings threads, affinity, wait and optimize_perf ask for.
ThreadRequest thread_request(const config::Resolved& settings);

}  // namespace ridge
