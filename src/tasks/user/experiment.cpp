#include "train/experiment.h"

#include <filesystem>

#include "base/error.h"
#include "ridge/trainer.h"
#include "train/run_folder.h"

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
  std::vector<Part> parts;
  std::vector<double> scores, losses;
  for (int i = 0; i < args.seeds; ++i) {
    const uint64_t seed = args.first_seed + uint64_t(i);
    parts.push_back({args.out, word_for(args.out), seed, std::filesystem::path(args.out) / fmt::format("seed_{}", seed)});
    const TrainingResult& r = result.runs.emplace_back(train(seed, parts.back().folder.string()));
    if (r.best_score) scores.push_back(*r.best_score);
    losses.push_back(r.train_loss);
    if (r.state_lost_since || !(r.finished() || r.end == TrainingResult::End::time)) break;
    result.finished = i + 1 == args.seeds;
  }
  result.best_score = mean_of(scores), result.train_loss = mean_of(losses);
  if (result.finished) finish_experiment(args.out, parts, {.show = args.show});
  return result;
}

}  // namespace ridge
