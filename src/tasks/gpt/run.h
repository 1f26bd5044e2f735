// A GPT training run, settled before it starts: data, model, device, precision, threads, memory, and the step's programs. `ridge plan` shows
// it, `ridge train` runs it. Nothing large is allocated before the first step.
#pragma once
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/decision.h"
#include "config/config.h"
#include "data/dataset.h"
#include "machine/memory_budget.h"
#include "nn/gpt.h"
#include "train/trainer.h"

namespace ridge {

struct GptWeights;
class Backend;
class GptSampler;

struct MemoryItem {
  std::string what;
  int64_t bytes = 0;
};

// By which a resumed run knows its data again.
std::string data_identity(const Dataset& data);

struct GptRun {
  uint64_t seed = 0;
  Dataset data;
  GptConfig model;
  std::vector<Parameter> parameters;  // as files hold them
  std::shared_ptr<Backend> backend;   // never null
  std::unique_ptr<TrainStep> step;
  std::unique_ptr<BatchSource> train, validation;
  int64_t validation_windows = 0, all_validation_windows = 0;
  double tokens_per_epoch = 0;

  std::vector<Decision> decisions;
  std::string fallback;              // why this is not the device that was asked for, and which one runs instead
  std::vector<std::string> notices;  // other fallbacks, and what has no effect
  MemoryBudget budget;
  std::vector<MemoryItem> memory;  // of the whole process, or on a GPU of that; the sum is planned_bytes
  int64_t planned_bytes = 0;
  int64_t passed_bytes = 0;             // of these: held before and given back, asked for no more
  std::vector<MemoryItem> host_memory;  // beside a GPU's: the host's
  int64_t host_planned_bytes = 0;
  double least_seconds = 0;  // of a step: its roof
  double roof_others = 0;    // share of the machine that others had when the rates behind it were measured
  double expected_step_seconds = 0;
  int64_t steps_done = 0;     // by the run that goes on
  std::string expected_from;  // "kernels measured on this machine", "an earlier run"
  std::string expected_key;   // under which the profile learns from a run on a GPU
  TrainerOptions trainer;
  std::unique_ptr<GptWeights> init_from;                     // null: new weights
  std::vector<std::pair<std::string, std::string>> settled;  // sizes that those weights decided, by key
  std::unique_ptr<GptSampler> sampler;                       // null: no samples are asked for, or there is no tokenizer

  void make_sampler(std::vector<const void*> weights);  // that reads them where the step has them
  std::string sample();                                 // some text by the model as it is now
  int64_t sampled_tokens = 0;
  double sampled_seconds = 0;
  int64_t parameter_count() const;

  GptRun();
  GptRun(GptRun&&) noexcept;
  ~GptRun();
};

struct GptRunOptions {
  std::string data = "builtin";
  uint64_t seed = 1337;
  std::filesystem::path folder;  // of the run; empty: none
  bool resume = false;
  bool measure = true;  // what decisions and the expected time go by; false: nothing measured, now or before, decides
  bool probe = false;   // a GPU that was never measured is, though that takes seconds
  std::function<void(const std::string& what, double done)> progress = {};
  std::shared_ptr<Backend> backend = {};      // where to run, whatever the settings say, for tests
  std::function<int64_t()> free_memory = {};  // instead of what the system says, for tests
};

// ErrorCode::usage, io (data) and memory (does not fit, with what would).
GptRun settle_gpt_run(const config::Resolved& settings, const GptRunOptions& options);

// Refuses what that would refuse about the data, the model it starts from, and sizes. New tokens stay in the cache.
void check_gpt_data(const config::Resolved& settings, const GptRunOptions& options);

// The same with its memory mapped and touched. Where others have taken what the plan counts on, it plans again and says so.
GptRun start_gpt_run(const config::Resolved& settings, const GptRunOptions& options);

// Draws or loads the weights, unless the run goes on from a checkpoint, and trains.
Outcome run_gpt(GptRun& run, const config::Resolved& settings, const std::vector<TrainerView*>& views);

// The weights as they are now, for other programs too, with config.json and tokenizer.json.
void write_model(GptRun& run, const std::filesystem::path& folder);

// A loss in nats per token as nats per character, where the text behind the tokens is known.
std::optional<double> nats_per_character(const GptRun& run, double loss);

}  // namespace ridge
