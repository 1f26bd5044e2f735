// Runs read back from their folders, and summed up over seeds.
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

using LossPoints = std::vector<std::pair<int64_t, double>>;  // step and loss; steps ascend

// What a run folder says. Of a run that has not ended, what its metrics say.
struct ExperimentRun {
  std::filesystem::path folder;
  std::string dataset;
  std::string end;  // finished, interrupted, …; empty: it has not ended, or was killed
  int64_t steps = 0;
  std::optional<double> final_train_loss, best_val_loss, seconds, tokens_s, sampled_tokens_s;
  Score score;  // by which the run was judged
  std::optional<double> best_score;
  std::string device, precision;
  LossPoints train, validation;
  LossPoints train_score, scores;  // of training steps and of validations; none where the score is the loss
  std::string damage;              // of its summary, one line; empty: none
};

// ErrorCode::io: no run folder. Damaged lines of the metrics are passed over, as the last one of a killed run is.
ExperimentRun read_experiment_run(const std::filesystem::path& folder, const std::string& dataset = {});

// The folder itself, or the runs below it (of several datasets and seeds), by name.
std::vector<std::filesystem::path> find_runs(const std::filesystem::path& folder);

struct MeanError {
  double mean = 0, error = 0;  // of the mean: sd / √n with n - 1 in the sd; 0 for one value
  size_t count = 0;
};
MeanError mean_error(std::span<const double> values);

// Runs that differ in their seed alone (folders seed_N of one folder) belong together.
struct RunGroup {
  std::string name;
  std::vector<ExperimentRun> runs;
  std::vector<double> values(std::optional<double> ExperimentRun::*what) const;  // of those that have it
  const Score& score() const { return runs.front().score; }
};
std::vector<RunGroup> group_seeds(std::vector<ExperimentRun> runs);  // in the order in which they first come

// For each dataset {"means": {"best_val_loss_mean": …}, "stderrs": {…}, "final_info_dict": {"best_val_loss": […]}}. Where runs are judged by
// another score, that too: "best_accuracy".
nlohmann::ordered_json final_info(const std::vector<ExperimentRun>& runs);

}  // namespace ridge
