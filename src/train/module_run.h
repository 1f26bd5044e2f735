// A run whose model is a module of tensors, which hold its weights before training and receive them afterwards.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "ridge/step.h"
#include "train/task.h"

namespace ridge {

class ModuleRun : public TaskRun {
 public:
  void fill_parameters() override;
  std::string artifact() const override { return "model"; }
  std::string artifact_remedy() const override { return "ridge eval uses the checkpoints"; }

 protected:
  // What the planner needs to know about the module, with the settings' optimizer. The caller adds data, or a feed.
  RunNeeds module_needs(const config::Resolved& settings, const RunOptions& options, const char* name, const Step& model, const std::vector<BatchSpec>& batch);
  void read_weights() const;                                       // from the step, wherever they are
  void add_files(RunSummary& summary, const char* purpose) const;  // that every run has; `purpose`: of the model folder
  // The command that continues a run, or lengthens one that is complete: `length_key` and twice its length.
  std::pair<std::string, std::string> resume_command(const RunSummary& summary, const char* length_key, int64_t twice,
                                                     const char* target_key = "target_loss") const;

  std::vector<NamedTensor> weights_;  // in the order of the step's parameters
  std::unique_ptr<TrainStep> own_step_;
};

// A module's step as a benchmark row, with the module's weights.
BenchStep module_bench(const Step& step, const std::vector<BatchSpec>& batch);

// Settings whose change makes a resumed run inexact: those of every training, and `more`.
std::map<std::string, std::string> training_words(const config::Resolved& settings, std::initializer_list<const char*> more);

}  // namespace ridge
