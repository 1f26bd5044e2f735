// The runs that one command requests: each data set with each seed.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"

namespace ridge {

struct RunState;

struct Part {
  std::string data;
  std::string name;  // of the data in reports
  uint64_t seed = 0;
  std::filesystem::path folder;
  bool begun = false, finished = false;  // set by find_progress()
};

std::string word_for(const std::string& data);  // the data's name in a form suitable for a folder name
// `name`: what the runs of a task without data are called in reports, such as its environment; empty: the data's own name.
std::vector<Part> parts_of(const config::Resolved& settings, const std::filesystem::path& out, const std::string& name = {});

bool can_start_from_weights(const config::Resolved& settings);  // of another run: whether the task of these settings reads init_from

// Whether all these steps are done, or the target is reached by the run's own score, and its summary says so. `state`: of its newest checkpoint, if it has one.
// Without a number of steps (a task that has another measure of its length): whether the run ended by itself, at its end or its target.
bool is_finished(const std::filesystem::path& folder, const std::optional<RunState>& state, std::optional<int64_t> steps, std::optional<double> target);
// Whether the run's last part ended because it had reached a target of its task, which was at least this one or is below its score.
bool has_ended_at(const std::filesystem::path& folder, const std::optional<RunState>& state, double target);

// Finds out which runs of a resumed command have begun or finished; finished ones are skipped. ErrorCode::usage if all of several runs
// are finished, one was trained but has no checkpoint, or only runs other than these have begun.
void find_progress(std::vector<Part>& parts, const config::Resolved& settings, const std::filesystem::path& out);

// The settings of one of several runs.
config::Resolved settings_of(const Part& part, config::Sources sources);

}  // namespace ridge
