// The one training loop: feed, step, guards, metrics, checkpoint. For any model and any source of batches.
#pragma once
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
#include "step/step.h"
#include "train/checkpoint.h"
#include "train/data_feed.h"
#include "train/schedule.h"

namespace ridge {

constexpr const char* kDeviceChoice = "device";  // among the choices that a checkpoint stores

// Where a run spends its time.
enum class Phase : uint8_t { data, step, validation, sample, checkpoint };
constexpr int kPhases = 5;
constexpr size_t kMedianSteps = 31, kMeanSteps = 50;  // the last ones, of which a run tells the median time and the mean loss
std::string_view name(Phase phase);

struct TrainerOptions {
  std::filesystem::path folder;  // the run's own; empty: nothing is written
  bool resume = false;
  bool locked = false;                         // whoever calls holds the folder's lock
  bool complete = false;                       // a run whose steps are all done is brought to its end instead of refused
  Schedule schedule;                           // and how many steps
  int64_t tokens_per_sample = 1;               // what tokens/s counts
  std::optional<int64_t> validation_interval;  // steps; none: as often as costs under 5 % of the time
  std::optional<int64_t> checkpoint_interval;  // steps; none: ten in a run, as far apart as checkpoint_rest at least and ten minutes at most
  std::optional<int64_t> sample_interval;      // steps; none: four in a run
  double checkpoint_rest = 20;                 // expected seconds between two that nobody asked for; a best on a device with memory of its own waits so long
  bool validate = true, keep_checkpoints = true, samples = true;
  double max_minutes = 0;             // 0: none
  std::optional<double> target = {};  // of the task's score: a validation that reaches it ends the run
  int prefetch = 2;                   // these three are for the data_feed() of a task
  bool async_loading = true;
  bool load_parts = false;                     // batches are made a micro-batch at a time, by a source that has parts
  int64_t trim_interval = 0;                   // steps between trims of the memory pools; 0: never
  double least_seconds = 0;                    // of a step, for the share of the roof; 0: not known
  double roof_others = 0;                      // share of the machine that others had when the rates behind that were measured
  double expected_step_seconds = 0;            // for the pace of checkpoints; 0: not known
  int64_t planned_bytes = 0;                   // of the whole process, or on a GPU of that
  int64_t pinned_bytes = int64_t(2) << 30;     // of copies for checkpoints that a device may write to by itself; such memory cannot be swapped out
  std::function<int64_t()> device_bytes = {};  // what is held on a GPU; none: what the process holds is told
  std::string device_choice = "cpu";           // kept with the run, so that it goes on there
  bool handle_signals = true;                  // SIGINT and SIGTERM end the run after a checkpoint
  const FileCalls* files = &kSystemFileCalls;
  std::function<void()> accepted = {};                   // called when the run is sure to begin or to go on
  std::function<void(Phase, int64_t step)> before = {};  // called before each phase, and once for each step, for tests
};

struct Validation {
  double loss = 0;
  ScalarMeans scalars = {};
};

// A tensor that a task keeps in checkpoints (task.safetensors).
struct StateTensor {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  std::vector<std::byte> data;
};

// What is trained, and on what. All must live as long as the run.
struct TrainerTask {
  TrainStep* step = nullptr;
  std::vector<Parameter> parameters;  // as files hold them: names, and shapes that may have fewer leading rows than the step's own
  std::shared_ptr<Feed> feed;
  const BatchSource* validation = nullptr;  // null: none, or `validate`
  // Instead of validation data: figures of the task's own, as of episodes that are played. Empty: `stop` returned true, and it is done again
  // when the run is resumed.
  using Validate = std::function<std::optional<Validation>(const std::function<bool()>& stop)>;
  Validate validate = {};
  std::vector<std::string> validation_scalars = {};  // names of what `validate` gives besides a loss
  Score score = {};                                  // the validation's figure that decides what is best
  // What is neither parameter nor moment: it goes into every checkpoint and comes back with the weights, also when a run rolls back.
  std::function<std::vector<StateTensor>()> save = {};
  std::function<void(const SafetensorsFile&)> restore = {};
  std::function<std::string()> sample = {};     // text to show
  std::map<std::string, std::string> identity;  // what a resumed run must have in common with this one: "vocabulary" -> "65"
  std::map<std::string, std::string> settings;  // what it should have in common to be bit-exact: "lr" -> "0.001"
  std::map<std::string, std::string> texts;     // files that go into every checkpoint beside the weights
  std::string anew = {};                        // how a run that cannot go on is left alone; empty: as the command line says it
};

struct Progress {
  int64_t step = 0, steps = 0;  // attempted
  double loss = 0, gradient_norm = 0, lr = 0;
  bool applied = true;
  double ms = 0;                                           // of this step's own work, without the wait for its data
  double wall_ms = 0, tokens_s = 0;                        // by the clock, whatever the time went to: of the last kMedianSteps
  double compute_tokens_s = 0, roof = 0, roof_others = 0;  // by the median of the steps' own times
  double eta_s = 0, elapsed_s = 0;
  double data_wait_s = 0;  // in all
  int64_t resident_bytes = 0, planned_bytes = 0;
  double loss_scale = 1;
  bool newest = true;                              // false: a later step is told at once
  std::span<const std::string> scalar_names = {};  // of the step, and valid as long as it
  ScalarMeans scalars = {};
};

struct ValidationResult {
  int64_t step = 0;
  double loss = 0;
  bool best = false;
  double seconds = 0;
  std::span<const std::string> scalar_names = {};
  ScalarMeans scalars = {};
  Score score = {};  // by which it is judged
  double value = 0;  // of that
};

// Who is told. Every call comes from the training thread, between steps. Quick steps are told together, twice a second, and before anything
// else is. What a view throws costs the view, not the run (train/outputs.h).
class TrainerView {
 public:
  virtual ~TrainerView() = default;
  virtual void on_step(const Progress&) {}
  virtual void on_validation(const ValidationResult&) {}
  virtual void on_sample(int64_t step, const std::string& text) { (void)step, (void)text; }
  virtual void on_checkpoint(int64_t step, const std::string& folder, double seconds) { (void)step, (void)folder, (void)seconds; }
  virtual void on_notice(const std::string& line) { (void)line; }  // skipped steps, roll-backs, what was resumed, which output failed
  // How often it has written to where it goes, which shows that it works again after it threw. None: whenever a call returns.
  virtual std::optional<int64_t> writes() const { return {}; }
};

struct Outcome {
  using End = TrainingEnd;
  End end = End::finished;
  std::string reason;                       // one line
  std::optional<int64_t> state_lost_since;  // the last checkpoint could not be written: what was learnt after this step is lost
  int64_t steps = 0;                        // attempted in all, earlier parts of a resumed run included
  int64_t own_steps = 0;                    // without those
  int64_t skipped = 0;
  int roll_backs = 0;
  double first_loss = 0, final_train_loss = 0;  // the latter a mean over the last kMeanSteps steps
  Score score;
  std::optional<double> best_score, final_score;        // by validation
  std::optional<double> best_val_loss, final_val_loss;  // of the same validations
  int64_t best_step = 0;
  double seconds = 0;                             // of all parts
  double earlier_seconds = 0;                     // of the parts before this one
  double tokens_s = 0;                            // of this part, by the clock: all that was waited for included
  double compute_tokens_s = 0, roof = 0, ms = 0;  // of its steps' own work; ms: a median
  double roof_others = 0;                         // share of the machine that others had when the roof was measured
  double phase_seconds[kPhases] = {};
  double update_seconds = 0;  // of the optimizer, within the steps' time
  double data_wait_seconds = 0;
  double telling_seconds = 0;  // for metrics and views, step by step; a part of no phase
  int64_t peak_bytes = 0;
  bool resumed = false, bit_exact = true;  // bit_exact: nothing that can change bits differs from the parts before
};

// The run folder for this process alone; empty for no folder. ErrorCode::usage: another process has it.
std::optional<FolderLock> lock_run(const std::filesystem::path& folder);

// The data feed that these options ask for.
std::shared_ptr<Feed> data_feed(const BatchSource& source, const TrainStep& step, const TrainerOptions& options);

struct RunState;
std::optional<RunState> newest_state(const std::filesystem::path& folder);  // of a run's newest whole checkpoint; empty: it has none
// ErrorCode::usage when all these steps are done.
void refuse_finished(const std::filesystem::path& folder, const RunState& state, int64_t steps);

// ErrorCode::usage: a run that cannot be resumed, and why; ErrorCode::io: its files.
Outcome train(const TrainerTask& task, const TrainerOptions& options, const std::vector<TrainerView*>& views = {});

}  // namespace ridge
