// Reads runs back from their folders and summarises them over seeds.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "ridge/score.h"

namespace ridge {

using LossPoints = std::vector<std::pair<int64_t, double>>;  // step and loss, in ascending order of steps

// How a run ended that was to reach a score.
struct TargetResult {
  double score = 0;  // to reach
  bool reached = false;
  int64_t units = 0;                 // until the run ended, such as an agent's decisions
  double seconds = 0;                // from the start of the program, or of this run if others came before it
  std::optional<double> evaluation;  // the last one
};

// The contents of a run folder. For a run that has not ended, taken from its metrics.
struct ExperimentRun {
  std::filesystem::path folder;
  std::string dataset;
  std::string end;  // finished, interrupted, …; empty: still running, or killed
  int64_t steps = 0;
  std::optional<double> final_train_loss, best_val_loss, seconds, tokens_s, sampled_tokens_s;  // best_val_loss: at the best score
  Score score;                                                                                 // the run's validation metric
  std::optional<double> best_score;
  std::vector<std::pair<std::string, double>> test;  // figures on test data, the most important first: "mse", "last_value"; empty: none
  std::string device, precision, unit = "tokens";    // unit: what tokens_s counts; older folders do not say
  double units_per_step = 0;                         // 0: unknown
  std::optional<TargetResult> target;                // if it had one
  LossPoints train, validation;
  LossPoints train_score, scores;  // of training steps and of validations; empty if the score is the loss
  std::string damage;              // what is damaged in its summary, one line; empty: nothing
};

// ErrorCode::io if it is not a run folder. Skips damaged lines of the metrics, such as the last line of a killed run.
ExperimentRun read_experiment_run(const std::filesystem::path& folder, const std::string& dataset = {});

// The folder itself, or the runs below it (several datasets and seeds), sorted by name.
std::vector<std::filesystem::path> find_runs(const std::filesystem::path& folder);

struct MeanError {
  double mean = 0, error = 0;  // standard error of the mean: sd / √n with n - 1 in the sd; 0 for one value
  size_t count = 0;
};
MeanError mean_error(std::span<const double> values);

// Runs that differ only in their seed (folders seed_N of one folder).
struct RunGroup {
  std::string name;
  std::vector<ExperimentRun> runs;
  std::vector<double> values(std::optional<double> ExperimentRun::*what) const;  // of the runs that have this value
  std::vector<double> test_values(const std::string& figure) const;
  std::string test_figure() const;  // the most important one on test data: "mse"; empty: none
  const Score& score() const { return runs.front().score; }
};
std::vector<RunGroup> group_seeds(std::vector<ExperimentRun> runs);  // in order of first appearance

// For each dataset {"means": {"best_val_loss_mean": …}, "stderrs": {…}, "final_info_dict": {"best_val_loss": […]}}. If the runs have
// another score than the loss, it is included: "best_accuracy". So are figures on test data: "test_mse".
nlohmann::ordered_json final_info(const std::vector<ExperimentRun>& runs);

}  // namespace ridge
