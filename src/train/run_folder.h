// A training in its folder: the log and what people see, TensorBoard, plots, the summary, and what a run leaves for other programs.
#pragma once
#include <cstdio>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "config/config.h"
#include "train/parts.h"
#include "train/task.h"

namespace ridge {

void make_run_folder(const std::filesystem::path& folder);
std::filesystem::path new_run_folder(const std::filesystem::path& runs, const std::string& model, const std::string& data);  // named by the time

// A new run writes over no other, nor over files that no run wrote, and not among its own texts. ErrorCode::usage says what is in the way.

void check_place(const std::filesystem::path& place, const std::vector<Part>& parts, const config::Resolved& settings);

// What is shown and kept of a run besides its metrics and checkpoints.
struct RunOutput {
  bool show = true;                // on stdout
  bool json = false;               // JSON lines there
  bool tensorboard = false;        // event files too
  std::string log_level = "info";  // warning leaves notices, error nothing; debug adds what the step decided
  std::string config = {};         // the text of config.yaml; empty: there is none
};

struct RunResult {
  Outcome outcome;
  RunSummary summary;
  bool has_artifact = true;  // false: it could not be written
};

// Trains it in the folder of its options, or without one where that is empty. What cannot be written at the end is reported, and the rest is tried.
RunResult train_in_folder(TaskRun& run, const config::Resolved& settings, const RunOutput& output);

// The text of a config.yaml: a run is resumed and evaluated from other folders too. That it was resumed is no setting of the run, and changes no source of
// those that it had.
std::string config_text(config::Resolved settings, const std::filesystem::path& folder);

// What several runs together leave in the folder above them: final_info.json and plots; the rows are printed where that is asked for.
void finish_experiment(const std::filesystem::path& out, const std::vector<Part>& parts, const RunOutput& output);

void say(FILE* stream, const std::string& line);  // also where nobody reads it any more

}  // namespace ridge
