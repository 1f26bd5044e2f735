// Settings that every command handles in the same way.
#pragma once
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"
#include "measure/thread_choice.h"

namespace ridge {

// If the cache is not used, prints the reason to stderr.
void note_cache();

// Reports command-line words that this command ignores. `read`: keys that it reads for this task only.
void note_unused(const config::Resolved& settings, std::string_view command, std::initializer_list<std::string_view> read = {});

// Whether a user set a key, and to something else than the default. Presets and other programs' specs may set what only some models use.
bool is_asked(const config::Resolved& settings, std::string_view key);

std::vector<std::string> named_data(const config::Resolved& settings);  // by a user; empty: what a model was trained on
std::string one_named_data(const config::Resolved& settings);           // the same for commands that read one data set; ErrorCode::usage for several

// ErrorCode::usage if one of these keys was asked for: a setting without effect would be believed to have one. `why` completes "has no effect …".
void refuse_without_effect(const config::Resolved& settings, const char* task, std::initializer_list<const char*> keys, const std::string& why);

// Reads the settings threads, affinity, wait and optimize_perf.
ThreadRequest thread_request(const config::Resolved& settings);

}  // namespace ridge
