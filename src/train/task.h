// What is trained, as the trainer, the planner, reports and the command line know it: a task has a name, keys, presets and commands of its own, and
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

// One planned run of a task.
class TaskRun : public PlannedRun {
 public:
  TaskRun() = default;
  TaskRun(TaskRun&&) noexcept = default;
  virtual ~TaskRun() = default;

  // Takes all memory that was planned, where it was not taken yet, and places programs that read the step's parameters. ErrorCode::memory: it cannot be had.
  virtual void prepare();
  virtual void fill_parameters() = 0;  // of a new run
  // What the loop needs to know: step, data, validation, samples, and what a resumed run must have in common. `settings` as they were resolved.
  virtual TrainerTask trainer_task(const config::Resolved& settings) = 0;
  virtual void add_to_summary(RunSummary& summary) const = 0;                            // what was trained, files in the folder, commands to try next
  virtual void add_found_settings(config::Resolved& settings) const { (void)settings; }  // those that the run found out itself
  // A folder for other programs that a run leaves in its own: its name (empty: none), how it is written, and how to write it later.
  virtual std::string artifact() const { return {}; }
  virtual void write_artifact(const std::filesystem::path& folder) { (void)folder; }
  virtual std::string artifact_remedy() const { return {}; }
};

// A command that only one task has. Its bodies are called with the settings of the line.
struct Verb {
  struct Option {
    enum class Kind { word, text, positive, flag, range } kind;
    const char* name;  // of options with their dashes
    std::variant<std::string*, int64_t*, bool*> value;
    const char* help;
    int64_t low = 1, high = 1;
  };
  const char* name;
  const char* summary;
  std::vector<Option> options = {};
  bool has_settings = true;
  const char* footer = "";
  std::function<int(config::Sources)> run = {};  // the exit code; what options point to lives as long as this
  std::vector<Verb> below = {};                  // commands below this one, which then does nothing itself,
  const char* example = "";                      // and a line that names one of them
};

struct Task {
  const char* name;
  const char* summary;  // one line for people
  unsigned keys;        // whose settings it reads: a bit of config::Task
  const char* example;  // settings of a first training: "data=my.txt"
  void (*register_keys)();
  std::vector<Verb> (*verbs)();
  // ErrorCode::usage, io (data) and memory (does not fit, with what would).
  std::unique_ptr<TaskRun> (*plan)(const config::Resolved& settings, const RunOptions& options);
  // Refuses what plan() would refuse about the data, and about sizes.
  void (*check_data)(const config::Resolved& settings, const RunOptions& options);
};

// Plans a run and takes its memory. Where others have taken what the plan counts on, it is planned again, and says so. `plan` replaces its run each time.
void start_run(const RunOptions& options, const std::function<TaskRun&(const RunOptions&)>& plan);
std::unique_ptr<TaskRun> start_run(const Task& task, const config::Resolved& settings, const RunOptions& options);

// Fills the parameters, unless the run is resumed, and trains.
Outcome train_run(TaskRun& run, const config::Resolved& settings, const std::vector<TrainerView*>& views);

RunSummary summary_of(const TaskRun& run, const Outcome& outcome, const std::string& cores);

}  // namespace ridge
