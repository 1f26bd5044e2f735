// A GPT training run, settled before it starts: data, model, device, precision, threads, memory, and the step's programs. `ridge plan` shows
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

// By which a resumed run knows its data again.
std::string data_identity(const Dataset& data);

class GptRun final : public TaskRun {
 public:
  GptRun();
  GptRun(GptRun&&) noexcept;
  ~GptRun() override;

  void prepare() override;
  void fill_parameters() override;  // from init_from, or drawn
  TrainerTask trainer_task(const config::Resolved& settings) override;
  void add_to_summary(RunSummary& summary) const override;
  void add_found_settings(config::Resolved& settings) const override;
  std::string artifact() const override { return "model"; }
  void write_artifact(const std::filesystem::path& folder) override;  // the weights as they are now, with config.json and tokenizer.json
  std::string artifact_remedy() const override { return "ridge export writes it from the checkpoint"; }

  void make_sampler(std::vector<const void*> weights);  // that reads them where the step has them
  std::string sample();                                 // some text by the model as it is now

  uint64_t seed = 0;
  Dataset data;
  GptConfig model;
  std::unique_ptr<TrainStep> own_step;
  std::unique_ptr<BatchSource> train, validation;
  int64_t validation_windows = 0, all_validation_windows = 0;
  double tokens_per_epoch = 0;
  std::unique_ptr<GptWeights> init_from;                     // null: new weights
  std::vector<std::pair<std::string, std::string>> settled;  // sizes that those weights decided, by key
  std::unique_ptr<GptSampler> sampler;                       // null: no samples are asked for, or there is no tokenizer
  int64_t sampled_tokens = 0;
  double sampled_seconds = 0;
};

Task gpt_task();

// ErrorCode::usage, io (data) and memory (does not fit, with what would).
GptRun plan_gpt_run(const config::Resolved& settings, const RunOptions& options);

// Refuses what that would refuse about the data, the model it starts from, and sizes. New tokens stay in the cache.
void check_gpt_data(const config::Resolved& settings, const RunOptions& options);

// The same with its memory mapped and touched. Where others have taken what the plan counts on, it plans again and says so.
GptRun start_gpt_run(const config::Resolved& settings, const RunOptions& options);

// A loss in nats per token as nats per character, where the text behind the tokens is known.
std::optional<double> nats_per_character(const GptRun& run, double loss);

}  // namespace ridge
