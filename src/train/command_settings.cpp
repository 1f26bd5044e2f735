#include "train/command_settings.h"

#include <algorithm>
#include <cstdio>

#include <fmt/core.h>

#include "machine/measurement_store.h"

namespace ridge {

void note_cache() {
  if (const std::string problem = cache_problem(); !problem.empty()) std::fputs(fmt::format("ridge: {}\n", problem).c_str(), stderr);
}

void note_unused(const config::Resolved& settings, std::string_view command, std::initializer_list<std::string_view> read) {
  for (const config::Row& row : settings.describe({}))
    if (row.source == "command line" && row.key->used_by.find(command) == std::string_view::npos && std::ranges::find(read, row.key->name) == read.end())
      std::fputs(fmt::format("ridge: {}={} has no effect on ridge {}\n", row.key->name, row.value, command).c_str(), stderr);  // ignores a closed stderr
}

bool is_asked(const config::Resolved& settings, std::string_view key) {
  const config::Setting& setting = settings.setting(key);
  const std::string origin = settings.origin(key);
  return origin != "default" && !origin.starts_with("preset ") && !origin.starts_with("spec ") && setting.value != settings.history(key).front().value;
}

std::vector<std::string> named_data(const config::Resolved& s) {
  const std::string& source = s.setting("data").source;
  if (source == "default" || source.starts_with("preset")) return {};
  return s.get<std::vector<std::string>>("data");
}

std::string one_named_data(const config::Resolved& s) {
  const std::vector<std::string> named = named_data(s);
  if (named.size() > 1) fail(ErrorCode::usage, "[data] {} data sets are named, one is needed; files of one set are joined by '+'", named.size());
  return named.empty() ? "" : named[0];
}

void refuse_without_effect(const config::Resolved& s, const char* task, std::initializer_list<const char*> keys, const std::string& why) {
  for (const char* key : keys)  // a resumed run's own settings were accepted
    if (is_asked(s, key) && (!s.get<bool>("resume") || s.setting(key).source == "command line"))
      fail(ErrorCode::usage, "[{}] {}={} ({}) has no effect {}. Leave it out", task, key, s.get<std::string>(key), s.setting(key).source, why);
}

ThreadRequest thread_request(const config::Resolved& settings) {
  ThreadRequest request;
  request.threads = settings.get<std::string>("threads");
  request.affinity = parse_affinity(settings.get<std::string>("affinity"));
  request.wait = parse_wait(settings.get<std::string>("wait"));
  request.source = settings.setting("threads").source;
  request.measure = settings.get<bool>("optimize_perf");
  return request;
}

}  // namespace ridge
