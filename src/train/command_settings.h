// Settings that every command handles in the same way.
#pragma once
#include <initializer_list>
#include <string_view>

#include "config/config.h"
#include "measure/thread_choice.h"

namespace ridge {

// If the cache is not used, prints the reason to stderr.
void note_cache();

// Reports command-line words that this command ignores. `read`: keys that it reads for this task only.
void note_unused(const config::Resolved& settings, std::string_view command, std::initializer_list<std::string_view> read = {});

// Whether a user set a key, and to something else than the default. Presets and other programs' specs may set what only some models use.
bool is_asked(const config::Resolved& settings, std::string_view key);

// Reads the settings threads, affinity, wait and optimize_perf.
ThreadRequest thread_request(const config::Resolved& settings);

}  // namespace ridge
