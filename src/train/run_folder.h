// Runs a training in its folder: the log, terminal output, TensorBoard, plots, the summary, and the model folder for other programs.
#pragma once
#include <cstdio>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "train/parts.h"
#include "train/task.h"

namespace ridge {

void make_run_folder(const std::filesystem::path& folder);
// Named after the current time, the model and the data; without data (empty): after time and model.
std::filesystem::path new_run_folder(const std::filesystem::path& runs, const std::string& model, const std::string& data);

// The first existing file that a run would overwrite and that no run wrote. A run's config.yaml is recognised by its first line.
std::optional<std::string> conflicting_file(const std::filesystem::path& place, bool is_part, const config::Resolved& settings);

// Makes sure that a new run is not placed among other files, such as another run, a user's own files or its training texts. Settings files may be there
// already. ErrorCode::usage names the conflict.
void check_place(const std::filesystem::path& place, const std::vector<Part>& parts, const config::Resolved& settings);

// What a run shows and writes in addition to its metrics and checkpoints.
struct RunOutput {
  bool show = true;                // on stdout
  bool json = false;               // JSON lines on stdout
  bool tensorboard = false;        // also write event files
  std::string log_level = "info";  // warning: only notices; error: nothing; debug: also the step's decisions
  std::string config = {};         // the text of config.yaml; empty: none
};

struct RunResult {
  Outcome outcome;
  RunSummary summary;
  bool has_artifact = true;  // false: writing it failed
};

// Trains in the folder given by the run's options, or without a folder if that is empty. Files that cannot be written at the end are reported, and the rest are
// still written.
RunResult train_in_folder(TaskRun& run, const config::Resolved& settings, const RunOutput& output);

// The text of config.yaml, valid from any working directory, because a run may be resumed and evaluated from elsewhere. Resuming is not recorded as
// a setting and does not change the recorded source of the others.
std::string config_text(config::Resolved settings, const std::filesystem::path& folder);

// Writes the summary of several runs to the folder above them: final_info.json and plots, and what the task itself reports about them; prints the rows if
// requested.
void finish_experiment(const std::filesystem::path& out, const std::vector<Part>& parts, const RunOutput& output, const ReportRuns& report = {});

void print_line(FILE* stream, const std::string& line);  // ignores a closed stream

}  // namespace ridge
