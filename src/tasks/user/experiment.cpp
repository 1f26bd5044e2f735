#include "train/experiment.h"

#include <filesystem>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/terminal.h"
#include "io/atomic_file.h"
#include "ridge/trainer.h"
#include "train/loss_plot.h"
#include "train/run_table.h"
#include "train/train_view.h"

namespace ridge {
namespace {

ExperimentResult::Mean mean_of(const std::vector<double>& values) {
  const MeanError m = mean_error(values);
  return {m.mean, m.error, int(m.count)};
}

}  // namespace

ExperimentResult experiment(const ExperimentArgs& args, const std::function<TrainingResult(uint64_t seed, const std::string& out)>& train) {
  if (args.out.empty()) fail(ErrorCode::usage, "[experiment] the folder of the runs is not given; set .out");
  if (args.seeds < 1) fail(ErrorCode::usage, "[experiment] {} seeds; give at least 1", args.seeds);
  if (!train) fail(ErrorCode::usage, "[experiment] the function that trains is empty");
  ExperimentResult result;
  std::vector<std::filesystem::path> folders;
  std::vector<double> scores, losses;
  for (int i = 0; i < args.seeds; ++i) {
    const uint64_t seed = args.first_seed + uint64_t(i);
    folders.push_back(std::filesystem::path(args.out) / fmt::format("seed_{}", seed));
    const TrainingResult& r = result.runs.emplace_back(train(seed, folders.back().string()));
    if (r.best_score) scores.push_back(*r.best_score);
    losses.push_back(r.train_loss);
    if (r.end != TrainingResult::End::finished && r.end != TrainingResult::End::time) break;
    result.finished = i + 1 == args.seeds;
  }
  result.best_score = mean_of(scores), result.train_loss = mean_of(losses);
  if (!result.finished) return result;
  std::vector<ExperimentRun> runs;
  for (const std::filesystem::path& folder : folders) runs.push_back(read_experiment_run(folder));
  const std::filesystem::path out = args.out;
  write_atomically((out / "final_info.json").string(), final_info(runs).dump(2) + "\n");
  write_loss_plots(out, folders);
  if (args.show) stdout_screen().write(fmt::format("\nMeans and standard errors of {} seeds\n{}", args.seeds, run_table(group_seeds(runs), terminal_width())));
  return result;
}

}  // namespace ridge
