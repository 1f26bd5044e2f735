// The training loop for all models and sources of batches: feed, step, guards, metrics, checkpoint.
#pragma once
#include <chrono>
#include <cmath>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "data/batch_source.h"
#include "io/folder_lock.h"
#include "ridge/score.h"
#include "step/train_step.h"
#include "train/checkpoint.h"
#include "train/data_feed.h"
#include "train/schedule.h"
#include "tune/live_choice.h"

namespace ridge {

constexpr const char* kDeviceChoice = "device";  // key among a checkpoint's stored choices

// Where a run spends its time.
enum class Phase : uint8_t { data, step, validation, sample, checkpoint };
constexpr int kPhases = 5;
constexpr size_t kMedianSteps = 31, kMeanSteps = 50;  // number of last steps behind the reported median time and mean loss
std::string_view name(Phase phase);

struct TrainerOptions {
  std::filesystem::path folder;  // the run folder; empty: nothing is written
  bool resume = false;
  bool locked = false;                         // the caller holds the folder's lock
  Schedule schedule;                           // includes the number of steps
  double tokens_per_sample = 1;                // what tokens/s counts
  std::optional<int64_t> validation_interval;  // steps; none: as often as possible for under 5 % of the time
  std::optional<int64_t> checkpoint_interval;  // steps; none: ten per run, at least checkpoint_rest and at most ten minutes apart
  std::optional<int64_t> sample_interval;      // steps; none: four times per run
  double checkpoint_rest = 20;  // seconds between checkpoints without a set interval; on a device with its own memory, a best one waits this long
  bool validate = true, keep_checkpoints = true, samples = true;
  double max_minutes = 0;             // 0: no limit
  std::optional<double> target = {};  // in the task's score; the run ends when a validation reaches it
  int prefetch = 2;                   // these three are for the data_feed() of a task
  bool async_loading = true;
  bool load_parts = false;                     // make batches one micro-batch at a time, if the source supports parts
  int64_t trim_interval = 0;                   // steps between trims of the memory pools; 0: never
  double min_seconds = 0;                      // lower bound for a step, for the share of the roof; 0: unknown
  double roof_others = 0;                      // share of the machine used by other programs when the rates behind that were measured
  double expected_step_seconds = 0;            // used to space checkpoints; 0: unknown
  int64_t planned_bytes = 0;                   // of the whole process or, on a GPU, of device memory
  int64_t pinned_bytes = int64_t(2) << 30;     // limit for pinned checkpoint copies, which the device writes to directly and which cannot be swapped out
  std::function<int64_t()> device_bytes = {};  // memory held on a GPU; empty: the process's memory is reported
  std::string device_choice = "cpu";           // stored with the run, so that it resumes on this device
  bool handle_signals = true;                  // SIGINT and SIGTERM end the run after a checkpoint
  const FileCalls* files = &kSystemFileCalls;
  bool share_live = false;  // try other ways to share out the work on the run's own steps, and keep the fastest; none changes a result
  LiveChoice::Limits live_limits = {};
  std::function<double(size_t way, double seconds)> live_seconds = {};  // replaces a step's time there, for tests
  std::function<void()> accepted = {};                                  // called when the run is certain to start or resume
  std::function<void(Phase, int64_t step)> before = {};                 // called before each phase and once per step, for tests
};

struct Validation {
  double loss = 0;  // NaN: none, if there is another score
  ScalarMeans scalars = {};
};

// A tensor that a task keeps in checkpoints (task.safetensors).
struct StateTensor {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  std::vector<std::byte> data;
};

// The model and data to train on. Everything must outlive the run.
struct TrainerTask {
  TrainStep* step = nullptr;
  std::vector<Parameter> parameters;  // as stored in files: names, and shapes that may have fewer leading rows than the step's
  std::shared_ptr<BatchFeed> feed;
  const BatchSource* validation = nullptr;  // null: none, or `validate`
  // Replaces validation data: metrics computed by the task, for example from episodes played. Returns nothing if `stop` returned true; the
  // validation is then repeated when the run is resumed.
  using Validate = std::function<std::optional<Validation>(const std::function<bool()>& stop)>;
  Validate validate = {};
  std::vector<std::string> validation_scalars = {};  // names of the scalars that `validate` returns with the loss
  std::string validation_data = {};                  // identifies it, as other data makes earlier results incomparable; empty: unknown
  Score score = {};                                  // the validation metric that decides what is best
  // Task state other than parameters and moments: saved in every checkpoint and restored with the weights, including on a rollback.
  std::function<std::vector<StateTensor>()> save = {};
  std::function<void(const SafetensorsFile&)> restore = {};
  std::function<void()> restore_nothing = {};   // for a checkpoint without such state; empty: that is an error
  std::function<std::string()> sample = {};     // text to show
  std::map<std::string, std::string> identity;  // must match when the run is resumed: "vocabulary" -> "65"
  std::map<std::string, std::string> settings;  // should match for a bit-exact resume: "lr" -> "0.001"
  std::map<std::string, std::string> kept;      // settings among these that must match, and why: "window" -> "errors so far are of other windows"
  std::map<std::string, std::string> texts;     // files saved in every checkpoint with the weights
  std::string inexact = {};                     // why a resumed run cannot repeat the bits of one that was never stopped; empty: it can
  std::string restart_hint = {};                // how to start afresh if the run cannot be resumed; empty: the command line's wording
};

struct Progress {
  int64_t step = 0, steps = 0;  // attempted
  double loss = 0, gradient_norm = 0, lr = 0;
  bool applied = true;
  double ms = 0;                                           // of this step's work, without waiting for data
  double wall_ms = 0, tokens_s = 0;                        // wall-clock, including everything between steps: over the last kMedianSteps
  double compute_tokens_s = 0, roof = 0, roof_others = 0;  // from the median of the steps' own times
  double frames_s = 0;                                     // of the environment that an agent plays
  double eta_s = 0, elapsed_s = 0;
  double data_wait_s = 0;  // in total
  int64_t resident_bytes = 0, planned_bytes = 0;
  double loss_scale = 1;
  bool newest = true;                              // false: a later step is reported in the same burst
  std::span<const std::string> scalar_names = {};  // of the loss and of the feed; owned by the run
  ScalarMeans scalars = {};
};

struct ValidationResult {
  int64_t step = 0;
  double loss = 0;
  bool best = false;
  double seconds = 0;
  std::span<const std::string> scalar_names = {};
  ScalarMeans scalars = {};
  Score score = {};  // the metric
  double value = 0;  // the score's value
  bool has_loss() const { return score.is_loss() || !std::isnan(loss); }
};

// Receives a run's events. All calls come from the training thread, between steps. Quick steps are reported in bursts, twice a second, and before
// any other event. An exception from a view affects only the view, not the run (train/outputs.h).
class TrainerView {
 public:
  virtual ~TrainerView() = default;
  virtual void on_step(const Progress&) {}
  virtual void on_validation(const ValidationResult&) {}
  virtual void on_sample(int64_t step, const std::string& text) { (void)step, (void)text; }
  virtual void on_checkpoint(int64_t step, const std::string& folder, double seconds) { (void)step, (void)folder, (void)seconds; }
  virtual void on_notice(const std::string& line) { (void)line; }  // skipped steps, rollbacks, resumes, failed outputs
  // Number of writes to its destination so far, which shows that it works again after an exception. None: every call that returns counts as one.
  virtual std::optional<int64_t> writes() const { return {}; }
};

struct Outcome {
  using End = TrainingEnd;
  End end = End::finished;
  std::string reason;                                   // one line
  std::chrono::steady_clock::time_point ended_at = {};  // when that was certain, before the last checkpoint
  std::optional<int64_t> state_lost_since;              // set if the last checkpoint could not be written: training after this step is lost
  int64_t steps = 0;                                    // attempted in total, including earlier parts of a resumed run
  int64_t own_steps = 0;                                // without earlier parts
  int64_t skipped = 0;
  int roll_backs = 0;
  double first_loss = 0, final_train_loss = 0;  // final_train_loss: mean over the last kMeanSteps steps
  Score score;
  std::optional<double> best_score, final_score;        // from validations
  std::optional<double> best_val_loss, final_val_loss;  // of the same validations: the first is the loss at the best score
  int64_t best_step = 0;
  int64_t validated_step = -1;                    // of the last validation in this part; -1: none
  double seconds = 0;                             // over all parts
  double earlier_seconds = 0;                     // of the parts before this one
  double tokens_s = 0;                            // of this part, wall-clock, including all waits
  double compute_tokens_s = 0, roof = 0, ms = 0;  // counting only time spent in steps; ms: median
  double roof_others = 0;                         // share of the machine used by other programs when the roof was measured
  double phase_seconds[kPhases] = {};
  double update_seconds = 0;  // of the optimizer, part of the steps' time
  double data_wait_seconds = 0;
  double reporting_seconds = 0;  // for metrics and views, step by step; not part of any phase
  int64_t peak_bytes = 0;
  bool resumed = false, bit_exact = true;  // bit_exact: nothing that can change bits differs from earlier parts
};

// Locks the run folder for this process; empty for no folder. ErrorCode::usage if another process holds it.
std::optional<FolderLock> lock_run(const std::filesystem::path& folder);

// The data feed that these options request.
std::shared_ptr<BatchFeed> data_feed(const BatchSource& source, const TrainStep& step, const TrainerOptions& options);

struct RunState;
std::optional<RunState> newest_state(const std::filesystem::path& folder);  // of the newest intact checkpoint; empty: none

// ErrorCode::usage says why a run cannot be resumed; ErrorCode::io: a file of the run.
Outcome train(const TrainerTask& task, const TrainerOptions& options, const std::vector<TrainerView*>& views = {});

}  // namespace ridge
