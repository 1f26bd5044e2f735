// Plans a run before it starts, for every task: device, number format, memory budget, micro-batch, the choices of an earlier part, memory by item,
// expected time, and what decided each of these. Nothing large is allocated.
#pragma once
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "base/decision.h"
#include "base/error.h"
#include "config/config.h"
#include "data/prefetch.h"
#include "machine/memory_budget.h"
#include "train/run_device.h"
#include "train/run_state.h"
#include "train/training_loop.h"
#include "tune/kernel_trials.h"
#include "tune/search.h"
#include "tune/tuned_choice.h"

namespace ridge {

constexpr const char* kTheProgram = "the program";   // the source of settings made by a C++ program
constexpr const char* kRunSoFar = "the run so far";  // and of what a resumed run keeps

struct MemoryItem {
  std::string what;
  int64_t bytes = 0;
};

// Identifies one of a command's runs, and how to open it.
struct RunOptions {
  std::string data = "builtin";
  uint64_t seed = 1337;
  std::filesystem::path folder;  // the run folder; empty: none
  bool resume = false;
  bool measure = true;  // base decisions and the expected time on measurements; false: use none, not even earlier ones
  std::chrono::steady_clock::time_point started = std::chrono::steady_clock::now();  // when the run was asked for: what it reports as its time to a target
  bool tune = false;                        // search for faster choices before the run, if the setting `tune` allows it: takes seconds
  std::optional<double> tune_seconds = {};  // search for so long, whatever is stored
  std::vector<std::string> tune_over = {};  // the dimensions to search; empty: all. The result is then not stored
  std::function<void(StepTrials& trials, const TuneResult& result)> tuned = {};  // called after a search, while its steps still exist
  std::function<void(const std::vector<KernelSite>& sites, const KernelSearchResult& result)> kernels_tuned = {};  // after a search for kernels
  bool probe = false;  // measure a GPU that has not been measured yet, which takes seconds
  std::function<void(const std::string& what, double done)> progress = {};
  std::shared_ptr<Backend> backend = {};      // overrides the settings, for tests
  std::function<int64_t()> free_memory = {};  // overrides what the system reports, for tests
};

struct PlannedRun {
  std::string task = {}, unit = "samples";  // the task's name, used as a prefix of messages, and the unit that rates count
  std::shared_ptr<Backend> backend;         // null until chosen
  TrainStep* step = nullptr;                // owned by the task
  std::vector<Parameter> parameters;        // in the form stored in files
  std::vector<Decision> decisions;
  std::string fallback;              // why the requested device is not used, and which one replaces it
  std::vector<std::string> notices;  // other fallbacks, and settings without effect
  MemoryBudget budget;
  std::vector<MemoryItem> memory;  // of the whole process or, on a GPU, of device memory; the sum is planned_bytes
  int64_t planned_bytes = 0;
  int64_t passed_bytes = 0;             // part of planned_bytes: held earlier and already freed
  std::vector<MemoryItem> host_memory;  // on a GPU: host memory, in addition to `memory`
  int64_t host_planned_bytes = 0;
  double min_seconds = 0;                 // lower bound for a step: its roof
  double flops_rate = 0, bytes_rate = 0;  // the measured ceilings behind it; 0: unknown
  double roof_others = 0;                 // share of the machine used by other programs when the rates behind it were measured
  double expected_step_seconds = 0;
  std::string expected_from;  // "kernels measured on this machine", "an earlier run"
  std::string expected_key;   // store key for the measured step time of a run on a GPU
  std::string tuning_key;     // store key for the choices of steps of this kind
  int threads = 0;            // of the device's own team; 0: the default team
  int64_t steps_done = 0;     // by the run being resumed
  TrainerOptions trainer;

  std::string decided(std::string_view setting) const;  // the value that was decided
  int64_t parameter_count() const;                      // numbers
  bool on_device() const;                               // the device has its own memory
  double expected_total() const;                        // seconds for the remaining steps; 0: unknown
  void count_driver();                                  // adds the driver's own memory; call when all kernels are loaded
};

// What the planner needs to know about a task.
struct RunNeeds {
  const char* task = "";                    // prefix of messages: "gpt"
  const BatchSource* train = nullptr;       // null: the task makes its own batches, of feed_bytes
  const BatchSource* validation = nullptr;  // null: none
  Prefetcher::Options loading = {};
  int64_t feed_bytes = 0;                      // of a batch that the task makes itself, if the plan is to count it
  int64_t batch = 0;                           // samples per step
  int64_t steps = 0;                           // of the whole run; 0: unknown
  int64_t parameters = 0;                      // numbers, as the step holds them
  StepWork work = {};                          // of a step, for choose_device()
  int copies = 3;                              // of the parameters on the host, for checkpoints of a device with its own memory
  int64_t program_bytes = int64_t(6) << 20;    // rough heap use of compiled programs; replaced by the actual use once they exist
  int64_t data_bytes = 0;                      // of mapped data
  std::function<int64_t()> sample_bytes = {};  // of sampling programs; empty: there are none
  std::function<int64_t()> read_bytes = {};    // of the task's own programs on the step's parameters, called when the step exists; empty: none
  StepOptions step = {};                       // the planner sets memory, micro-batch, precision and device
  std::function<void(size_t parameter, std::span<float> values)> fill = {};  // initial weights for trials; empty: drawn as the parameters' descriptions say
  bool fixed_device = false;                                                 // make_step() uses a device of its own, so that its threads are settled
  // Called again if the first attempt was too large, and after a search for faster choices.
  std::function<TrainStep*(const StepOptions&)> make_step = {};
};

// Why the search for choices ended with this one: what was faster, or that nothing was for certain.
std::string tuning_reason(const TuneSpace& space, const TuneResult& result);

class RunPlanner {
 public:
  RunPlanner(const config::Resolved& settings, const RunOptions& options, PlannedRun& run) : s_(settings), o_(options), run_(run) {}

  // The state of the run being resumed; empty: a new run.
  void read_earlier();
  const std::optional<RunState>& earlier() const { return earlier_; }
  std::string earlier_text(const std::string& file) const;  // of the checkpoint being resumed; empty: there is none
  // ErrorCode::usage if the run being resumed has nothing left to do. A run killed after its last step still needs its summary, so it is allowed.
  // `length_key`: the setting that says how long a run is.
  void refuse_finished_run(int64_t steps, const char* length_key = "steps");
  // The same if the run ended before these steps, at the task's own target.
  void refuse_reached_target(int64_t steps, const char* key, double target);

  // Opens a device requested by name before any slow work; otherwise starts measuring unmeasured GPUs in the background.
  void choose_named_device();
  // `try_formats` compares number formats on the CPU within `memory` bytes.
  using TryFormats = std::function<FormatTrial(int64_t memory, Figures figures)>;
  void choose_device(const StepWork& work, const TryFormats& try_formats);  // if no device was named
  void use_device(std::shared_ptr<Backend> backend, Decision device);       // overrides the settings

  // Sets the number format, overriding the settings; the caller then controls how the device multiplies f32. Call before use_device().
  void use_precision(const PrecisionChoice& choice, std::string decided_by);

  // Compiles the step so that it fits, counts all memory, and estimates the step time. ErrorCode::memory says what would fit.
  void plan(const RunNeeds& needs);

  // Lists the decisions: `first`, the device and memory, the batch and how it is split, `last`, and the expected time.
  void describe(std::vector<Decision> first, Decision batch, const std::vector<Decision>& last);

  // Whether the key was set in this invocation rather than when the run was started (the config.yaml of its folder or of the experiment's folder).
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
  void fit_step(const RunNeeds& needs);
  void estimate();
  bool tune(const RunNeeds& needs);
  double tuning_seconds(const RunNeeds& needs) const;
  StepTrialOptions trial_options(const RunNeeds& needs) const;
  void choose_kernels(const KernelWords& words);
  bool tune_kernels(const RunNeeds& needs);
  bool fit_with_kernels(const RunNeeds& needs);  // false: they do not fit, and the planned ones are taken
  bool has_tunable_kernels() const;
  KernelWords search_kernels(const RunNeeds& needs, MeasurementStore& store, double seconds);
  KernelWords stored_kernels(const MeasurementStore& store, bool& imported) const;
  int own_threads() const;
  void note_new_bits(const std::string& by);
  TunedChoice search_choices(const RunNeeds& needs, StepTrials& trials, double seconds);
  bool take_choice(const TunedChoice& choice, const std::string& by, const std::string& why);
  TrainStep* tuned_step(const RunNeeds& needs, const StepOptions& options, int64_t& others);
  void fill_trainer(const RunNeeds& needs);
  Precision precision_as_before(Precision before);
  void note_settings_without_effect();
  [[noreturn]] void fail_at_target(const char* key, double target) const;
  Figures figures() const { return o_.measure ? Figures::measured : Figures::none; }
  bool deterministic() const { return s_.get<bool>("deterministic"); }
  // For choices that change bits.
  Figures figures_of_bits() const { return deterministic() ? Figures::none : figures(); }
  Figures step_figures() const;

  const config::Resolved& s_;
  const RunOptions& o_;
  PlannedRun& run_;
  std::optional<RunState> earlier_;
  Decision device_, precision_;
  Precision number_format_ = Precision::fp32;
  std::string precision_key_ = "precision";
  Prefetcher::Options loading_;
  std::function<void()> gpus_;  // waits for background measurements
  BudgetFacts facts_;
  std::optional<std::pair<size_t, size_t>> others_count_;  // of run_.memory and run_.host_memory, before the step's
  int64_t batch_ = 0, baseline_ = 0, left_by_trial_ = 0, read_bytes_ = 0;
  bool chosen_ = false, on_device_ = false, chooses_products_ = true;
  TunedWords tuned_;                 // choices in use; empty: as planned
  std::optional<StepPlan> untuned_;  // the plan that they change
  std::optional<Decision> tuning_, kernels_;
  std::vector<std::shared_ptr<Backend>> former_;  // of steps that are being replaced
  double tuned_for_ = 0;                          // seconds spent on searches
  bool reused_ = false;                           // splitting and recomputation are the same as in the earlier part of the run
  DeviceMemory device_before_;
};

Decision as_set(const config::Resolved& settings, const char* key, std::string value, std::string why = {});
Decision rate_decision(const Schedule& schedule, std::string source);

// A setting that presets have. ErrorCode::usage if it is not given; `preset`: one to name.
template <class T>
T required(const config::Resolved& settings, const char* key, const char* task, const char* preset) {
  if (const std::optional<T> value = settings.get<std::optional<T>>(key)) return *value;
  if (settings.setting(key).source != "default" && std::string_view(key) == "batch")
    fail(ErrorCode::usage, "[{}] {}=auto is measured by ridge train and ridge tune; here set {}=N", task, key, key);
  fail(ErrorCode::usage, "[{}] {} is not given: set {}=N or a preset that has it (preset={})", task, key, key, preset);
}

std::string_view name(Optimizer::Kind kind);                 // adamw, adam, sgd, muon
StepOptions step_options(const config::Resolved& settings);  // optimizer and clipping

// Reads the settings for the learning rate, and for intervals, stopping and loading. ErrorCode::usage if the rate would rise.
Schedule schedule_of(const config::Resolved& settings, int64_t steps, const char* task);
void read_interval(const config::Resolved& settings, const char* key, std::optional<int64_t>& steps, bool& on);  // none: off
void read_intervals(const config::Resolved& settings, TrainerOptions& trainer);

}  // namespace ridge
