// Settings that every command handles in the same way.
#pragma once
#include <string_view>

#include "config/config.h"
#include "measure/thread_choice.h"

namespace ridge {

// If the cache is not used, prints the reason to stderr.
void note_cache();

// Reports command-line words that this command ignores.
void note_unused(const config::Resolved& settings, std::string_view command);

// Reads the settings threads, affinity, wait and optimize_perf.
ThreadRequest thread_request(const config::Resolved& settings);

}  // namespace ridge
