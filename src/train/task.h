// The interface of a task for the trainer, the planner, reports and the command line: a task has a name, its own keys, presets and commands, and
// opens runs.
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "config/config.h"
#include "train/run_planner.h"
#include "train/train_text.h"

namespace ridge {

class ThreadTeam;

// One planned run of a task.
class TaskRun : public PlannedRun {
 public:
  TaskRun() = default;
  TaskRun(TaskRun&&) noexcept = default;
  virtual ~TaskRun() = default;

  // Allocates all planned memory not yet allocated, and sets up programs that read the step's parameters. ErrorCode::memory if that fails.
  virtual void prepare();
  virtual void fill_parameters() = 0;  // for a new run
  // Input of the training loop: step, data, validation, samples, and what must match when a run is resumed. `settings`: as resolved.
  virtual TrainerTask trainer_task(const config::Resolved& settings) = 0;
  virtual void add_to_summary(RunSummary& summary) const = 0;                            // what was trained, files in the folder, commands to try next
  virtual void add_found_settings(config::Resolved& settings) const { (void)settings; }  // settings that the run determined itself
  // A folder for other programs inside the run folder: its name (empty: none), how to write it, and advice on writing it later.
  virtual std::string artifact() const { return {}; }
  virtual void write_artifact(const std::filesystem::path& folder) { (void)folder; }
  virtual std::string artifact_remedy() const { return {}; }
  virtual void write_pictures(const std::filesystem::path& folder) { (void)folder; }  // of the trained model, at the end of a run, into its folder
};

// A task-specific command. `run` is called with the settings of the command line.
struct Verb {
  struct Option {
    enum class Kind { word, text, positive, flag, range } kind;
    const char* name;  // options include their dashes
    std::variant<std::string*, int64_t*, bool*> value;
    const char* help;
    int64_t low = 1, high = 1;
  };
  const char* name;
  const char* summary;
  std::vector<Option> options = {};
  bool has_settings = true;
  const char* footer = "";
  std::function<int(config::Sources)> run = {};  // returns the exit code; owns the variables that options point to
  std::vector<Verb> below = {};                  // subcommands; a command that has any does nothing itself
  const char* example = "";                      // a command line that uses one of the subcommands
};

// A whole training step as a benchmark row, on a batch of random data.
struct BenchRow {
  std::string name;                                                   // "gpt/gpt2-medium"
  std::vector<std::string> settings;                                  // the row's defaults: "preset=tiny"
  std::string rival = {};                                             // a command that measures the same work in another program, in fp32; empty: none
  std::vector<std::pair<std::string, std::string>> rival_flags = {};  // what it takes for another number format: "bf16" -> "--dtype bfloat16"
  std::string rival_option = {};                                      // with which the rival may be faster, or slower; empty: none
  std::string rival_line = {};                                        // what only this row's line of its output contains; empty: there is one line
};
struct BenchStep {
  StepModel model;
  StepOptions options;                        // optimizer and clipping
  std::vector<std::vector<std::byte>> batch;  // in the order of model.batch; empty: normal numbers
  int64_t units = 0;                          // in a batch: what rates count, such as tokens
  int64_t time_steps = 0;                     // of a loop over time, which is then reported too; 0: none
  // Compares number formats on the CPU, as a training run would.
  std::function<FormatTrial(ThreadTeam& team, int64_t memory, Figures figures)> try_formats = {};
  std::function<void(size_t parameter, std::span<float> values)> fill = {};  // initial weights; empty: drawn as the parameters' descriptions say
  // Instead of `batch`, for batches that are collected with the current weights: a row is then a whole group of the feed's steps.
  struct Collected {
    std::shared_ptr<BatchFeed> feed;
    std::function<double()> playing_seconds;  // that the feed has spent in its environments so far
    double frames = 1;                        // per unit
    std::string environment;                  // for people
  };
  std::function<Collected(TrainStep& step)> collect = {};
};

// What a task says about several runs that differ in their seeds, besides means.
struct RunsReport {
  std::string text;        // for people; ends with a newline
  std::string file, json;  // for the folder of the runs
  std::string event;       // one line of JSON
};
using ReportRuns = std::function<RunsReport(std::span<const ExperimentRun> runs, int width)>;

struct Task {
  // A setting that changes what is learnt and how fast it trains, with the values that ridge tune tries besides the present one, smallest first.
  // None: the task measures it by itself if it is auto.
  struct Size {
    const char* key;
    std::vector<int64_t> values;
  };
  const char* name;
  const char* summary;  // one line
  unsigned keys;        // which settings the task reads: its config::task_bit()
  const char* example;  // settings for a first run: "data=my.txt"
  void (*register_keys)();
  std::vector<Verb> (*verbs)();  // commands; several tasks may have one of the same name for their own models
  // Throws ErrorCode::usage, io (data) and memory (does not fit; says what would).
  std::unique_ptr<TaskRun> (*plan)(const config::Resolved& settings, const RunOptions& options);
  // Throws what plan() would throw about the data and sizes.
  void (*check_data)(const config::Resolved& settings, const RunOptions& options);
  std::string (*run_name)(const config::Resolved& settings);  // part of the name of a new run folder, such as the preset
  std::vector<BenchRow> (*bench_rows)(bool gpu);
  BenchStep (*bench_step)(const BenchRow& row, const config::Resolved& settings);
  // Settings that others imply, such as those of another program's file, and remarks about them: weaker than the command line, stronger than files. Null: none.
  struct Implied {
    std::vector<std::string> words, notes;
    std::string source = {};  // of the words: "spec ppo_pong"
  };
  Implied (*implied)(const config::Resolved& settings) = nullptr;
  bool (*owns)(const std::filesystem::path& model) = nullptr;                      // whether a run or model folder is this task's
  RunsReport (*report)(std::span<const ExperimentRun> runs, int width) = nullptr;  // at the end of an experiment; null: none
  std::vector<Size> sizes = {};                                                    // the first one is measured as a curve: the batch
  // Whether a model of these settings has that size; null: it has all.
  bool (*uses_size)(const config::Resolved& settings, std::string_view key) = nullptr;
  std::vector<const char*> kept = {};  // settings of the model that a resumed run cannot change, named before any other difference
  bool has_data = true;                // false: run_name() says what is trained, and the setting `data` has no meaning
};

// Plans a run and allocates its memory. If other programs have taken that memory meanwhile, plans again and reports it. `plan` replaces its run each time.
void start_run(const RunOptions& options, const std::function<TaskRun&(const RunOptions&)>& plan);
std::unique_ptr<TaskRun> start_run(const Task& task, const config::Resolved& settings, const RunOptions& options);

// Initialises the parameters, unless the run is resumed, and trains.
Outcome train_run(TaskRun& run, const config::Resolved& settings, const std::vector<TrainerView*>& views);

RunSummary summary_of(const TaskRun& run, const Outcome& outcome, const std::string& cores);

}  // namespace ridge
