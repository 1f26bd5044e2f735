// A GPT training run, planned before it starts: data, model, device, precision, threads, memory, and the step's programs. `ridge plan` shows
// it, `ridge train` runs it. Nothing large is allocated before the first step.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "nn/gpt.h"
#include "train/task.h"

namespace ridge {

struct GptWeights;
class GptSampler;

// Identifies the data set, so that a resumed run can check it.
std::string data_identity(const Dataset& data);

class GptRun final : public TaskRun {
 public:
  GptRun();
  GptRun(GptRun&&) noexcept;
  ~GptRun() override;

  void prepare() override;
  void fill_parameters() override;  // from init_from, or random
  TrainerTask trainer_task(const config::Resolved& settings) override;
  void add_to_summary(RunSummary& summary) const override;
  void add_found_settings(config::Resolved& settings) const override;
  std::string artifact() const override { return "model"; }
  void write_artifact(const std::filesystem::path& folder) override;  // the current weights, with config.json and tokenizer.json
  std::string artifact_remedy() const override { return "ridge export writes it from the checkpoint"; }

  void make_sampler(std::vector<const void*> weights);  // reads the step's weights in place
  std::string sample();                                 // text sampled with the current weights

  uint64_t seed = 0;
  Dataset data;
  GptConfig model;
  std::unique_ptr<TrainStep> own_step;
  std::unique_ptr<BatchSource> train, validation;
  int64_t validation_windows = 0, all_validation_windows = 0;
  double tokens_per_epoch = 0;
  std::unique_ptr<GptWeights> init_from;                         // null: new weights
  std::vector<std::pair<std::string, std::string>> fixed_sizes;  // sizes determined by those weights, by key
  std::unique_ptr<GptSampler> sampler;                           // null: no samples requested, or no tokenizer
  int64_t sampled_tokens = 0;
  double sampled_seconds = 0;
};

Task gpt_task();
std::vector<BenchRow> gpt_bench_rows(bool gpu);
BenchStep gpt_bench_step(const BenchRow& row, const config::Resolved& settings);

// Throws ErrorCode::usage, io (data) and memory (does not fit; says what would).
GptRun plan_gpt_run(const config::Resolved& settings, const RunOptions& options);

// Throws what plan_gpt_run() would throw about the data, the initial model, and sizes. New tokens stay in the cache.
void check_gpt_data(const config::Resolved& settings, const RunOptions& options);

// Converts a loss from nats per token to nats per character, if the text behind the tokens is known.
std::optional<double> nats_per_character(const GptRun& run, double loss);

}  // namespace ridge
