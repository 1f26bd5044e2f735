// Plans a run before it starts, for every task: device, number format, memory budget, micro-batch, the choices of an earlier part, memory by item,
// expected time, and who decided each of these. Nothing large is allocated.
#pragma once
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "base/decision.h"
#include "config/config.h"
#include "data/prefetch.h"
#include "machine/memory_budget.h"
#include "train/run_device.h"
#include "train/run_state.h"
#include "train/trainer.h"

namespace ridge {

constexpr const char* kTheProgram = "the program";  // the source of settings that a C++ program gives

struct MemoryItem {
  std::string what;
  int64_t bytes = 0;
};

// Which of a command's runs it is, and how it is opened.
struct RunOptions {
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

struct PlannedRun {
  std::string task = {}, unit = "samples";  // which task, at the start of messages, and what rates count
  std::shared_ptr<Backend> backend;         // null until it is chosen
  TrainStep* step = nullptr;                // the task's
  std::vector<Parameter> parameters;        // as files hold them
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
  std::string expected_from;  // "kernels measured on this machine", "an earlier run"
  std::string expected_key;   // under which the profile learns from a run on a GPU
  int64_t steps_done = 0;     // by the run that is resumed
  TrainerOptions trainer;

  std::string decided(std::string_view setting) const;  // what that became
  int64_t parameter_count() const;                      // numbers
  bool on_device() const;                               // the device has memory of its own
  double expected_total() const;                        // seconds for the steps that are left; 0: not known
  void count_driver();                                  // the driver's own memory, once all kernels are loaded
};

// What a task tells the planner.
struct RunNeeds {
  const char* task = "";                    // at the start of messages: "gpt"
  const BatchSource* train = nullptr;       // null: the task makes its batches itself
  const BatchSource* validation = nullptr;  // null: none
  Prefetcher::Options loading = {};
  int64_t batch = 0;                           // samples in a step
  int64_t parameters = 0;                      // numbers, as the step holds them
  int copies = 3;                              // of the parameters on the host, for checkpoints of a device with memory of its own
  int64_t program_bytes = int64_t(6) << 20;    // what compiled programs take on the heap, roughly; counted once they are there
  int64_t data_bytes = 0;                      // of mapped data
  std::function<int64_t()> sample_bytes = {};  // of programs for samples; none: there are none
  StepOptions step = {};                       // without what the planner decides: memory, micro-batch, precision, device
  // Called again where a first attempt was too large.
  std::function<TrainStep*(const StepOptions&)> make_step = {};
};

class RunPlanner {
 public:
  RunPlanner(const config::Resolved& settings, const RunOptions& options, PlannedRun& run) : s_(settings), o_(options), run_(run) {}

  // The state of the run that is resumed; empty: a new one.
  void read_earlier();
  void set_earlier(RunState state) { earlier_ = std::move(state); }
  const std::optional<RunState>& earlier() const { return earlier_; }
  // ErrorCode::usage where the run that is resumed has nothing left to do; one that was killed after its last step still has to be summed up.
  void refuse_finished_run(int64_t steps);

  // A device that was asked for by name is opened before anything takes time; of others, those that were never measured are measured meanwhile.
  void choose_named_device();
  // `try_formats` compares number formats on the CPU within so many bytes.
  using TryFormats = std::function<FormatTrial(int64_t memory, Figures figures)>;
  void choose_device(const StepWork& work, const TryFormats& try_formats);  // where none was named
  void use_device(std::shared_ptr<Backend> backend, Decision device);       // whatever the settings say

  // The number format, whatever the settings say; the device's products of f32 numbers are then the caller's affair. Before use_device().
  void use_precision(const PrecisionChoice& choice, std::string decided_by);

  // Compiles the step so that it fits, counts all memory, and says how long a step will take. ErrorCode::memory: what would fit.
  void plan(const RunNeeds& needs);

  // `first`, the device and memory, the batch and how it is split, `last`, and the expected time.
  void describe(std::vector<Decision> first, Decision batch, std::vector<Decision> last);

  // Given with this call, and not by what the run was started with: that is in the config.yaml of its folder, or of the experiment's around it.
  bool is_set_now(const char* key) const;

 private:
  BudgetFacts host_facts(int64_t held) const;
  void count_others(const RunNeeds& needs);
  int64_t ahead_bytes(const RunNeeds& needs) const;
  void check_host(const RunNeeds& needs);
  TrainStep* make_step(const RunNeeds& needs, int64_t others);
  TrainStep* fitting_step(const RunNeeds& needs, StepOptions options, int64_t& others);
  TrainStep* step_as_before(const RunNeeds& needs, const StepOptions& options, int64_t& others);
  int64_t smallest_budget(const RunNeeds& needs, int64_t others, int64_t step) const;
  void count_step(const RunNeeds& needs);
  void count_past();
  void estimate();
  void fill_trainer(const RunNeeds& needs);
  Precision precision_as_before(Precision before);
  void note_settings_without_effect();
  Figures figures() const { return o_.measure ? Figures::measured : Figures::none; }
  Figures step_figures() const;

  const config::Resolved& s_;
  const RunOptions& o_;
  PlannedRun& run_;
  std::optional<RunState> earlier_;
  Decision device_, precision_;
  Precision number_format_ = Precision::fp32;
  std::string precision_key_ = "precision";
  Prefetcher::Options loading_;
  std::function<void()> gpus_;  // waits for measurements that were begun
  BudgetFacts facts_;
  int64_t batch_ = 0, baseline_ = 0, left_by_trial_ = 0;
  bool chosen_ = false, on_device_ = false, chooses_products_ = true;
  bool reused_ = false;  // the step is split and recomputed as in the run so far
  DeviceMemory device_before_;
};

Decision as_set(const config::Resolved& settings, const char* key, std::string value, std::string why = {});
Decision rate_decision(const Schedule& schedule, std::string source);

// What the settings say about the rate, and about intervals, ends and loading. ErrorCode::usage: a rate that would rise.
Schedule schedule_of(const config::Resolved& settings, int64_t steps, const char* task);
void read_interval(const config::Resolved& settings, const char* key, std::optional<int64_t>& steps, bool& on);  // none: off
void read_intervals(const config::Resolved& settings, TrainerOptions& trainer);

}  // namespace ridge
