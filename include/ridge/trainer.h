// Trains a user-defined model on user-supplied data, with planning before the start, data prefetching, skipping of non-finite steps,
// checkpoints, resume, validation, and a live line on the terminal. The run folder is the same as that of `ridge train`.
#pragma once
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ridge/score.h"
#include "ridge/step.h"

namespace ridge {

// A batch tensor to be filled.
struct BatchTensor {
  Shape shape;  // the first axis counts samples
  DType dtype = DType::f32;
  void* data = nullptr;

  std::span<float> floats() const;  // ErrorCode::dtype if the type differs
  std::span<int64_t> ints() const;
};

// Batches that depend on the run so far, such as episodes played with the current weights: reading the module's tensors gives the weights after the last
// step, and a tensor computed from them keeps its value in later steps. All calls come from the thread that trains, between two steps. What next(), and
// TrainerArgs::validate and sample, draw with Ridge's functions depends only on TrainerArgs::seed and the step, not on what was drawn before.
class Feed {
 public:
  virtual ~Feed() = default;
  virtual std::vector<Tensor> next(int64_t step) = 0;  // the batch of a step, counted from 0
  virtual int64_t position() const = 0;                // after that batch: where a resumed or rolled-back run continues
  virtual void seek(int64_t position) = 0;             // continues there; called before the first batch, and after restore()
  // What the next batches depend on besides position and weights. Saved in every checkpoint and restored with the weights, also if a run rolls back.
  virtual std::map<std::string, Tensor> save() const { return {}; }
  virtual void restore(const std::map<std::string, Tensor>& state) { (void)state; }
};

// The source of batches. Unless a Feed makes them, a batch depends only on its number 0, 1, 2, …, so that a resumed run continues with the same data.
class Data {
 public:
  Data() = default;  // none

  // Samples in memory; the first axis of every tensor counts samples. Each epoch shuffles them differently; validation keeps their order.
  Data(std::initializer_list<Tensor> tensors) : Data(std::vector<Tensor>(tensors)) {}
  explicit Data(std::vector<Tensor> tensors);

  // Batches generated on demand: fill(number, batch) writes every element. It is called from a separate thread, ahead of the
  // step, and must not compute with Tensors. `batches`: how many there are, required for validation; -1: unlimited.
  using Fill = std::function<void(int64_t number, std::span<const BatchTensor> batch)>;
  Data(std::vector<BatchSpec> batch, Fill fill, int64_t batches = -1);

  Data(std::vector<BatchSpec> batch, std::shared_ptr<Feed> feed);  // for training only

  struct State;
  const std::shared_ptr<const State>& state() const { return state_; }

 private:
  std::shared_ptr<const State> state_;
};

struct TrainerArgs {
  int64_t steps = 1000;
  int64_t batch = 0;  // samples per step; 0: the batch size of the data, or 32 if it has none
  using Rate = RateKind;
  Rate rate = Rate::cosine;
  int64_t warmup = 0;                 // steps over which the rate rises to the optimizer's lr
  std::optional<double> min_lr = {};  // final rate; none: a tenth of the optimizer's lr
  double clip = 0;                    // limit on the global gradient norm; 0: no clipping
  uint64_t seed = 1;                  // for the sample order and random ops

  std::string out = {};                                      // the run folder; empty: nothing is written, so the run cannot be resumed
  bool resume = true;                                        // continues the run in `out`; false: throws if `out` already holds a run
  std::string memory = "auto";                               // "512MiB": limit for the whole process; the batch is split to fit
  int64_t validation_interval = 0, checkpoint_interval = 0;  // steps; 0: chosen automatically
  double max_minutes = 0;                                    // 0: no limit
  bool show = true;                                          // plan, live line and summary on stdout

  // The validation metric: the loss, or a scalar that it reports. The best checkpoint is the one with the best score.
  //   .score = {.name = "accuracy", .higher_is_better = true}
  Score score = {};
  std::optional<double> target = {};         // the run ends when a validation score reaches it
  std::function<double()> validate = {};     // replaces validation data: returns the score of the current weights, for example of episodes played
  std::function<std::string()> sample = {};  // returns text to show, made with the current weights
  int64_t sample_interval = 0;               // steps; 0: four times per run
  bool tensorboard = false;                  // event files in out/tensorboard
  bool profile = false;                      // where the time of one step in 50 goes: out/profile.json, a trace and pictures

  std::string device = {};         // "cpu", "cuda", "cuda:1", "auto"; empty: the device set by use_device(). ErrorCode::unsupported if unusable
  std::string precision = "fp32";  // of matrix products: fp32, tf32, bf16, fp16, or auto: the fastest measured format that trains safely
  bool deterministic = false;      // no choice that can change bits is measured, so that every new run of this program gives equal bits
};

struct TrainingResult {
  using End = TrainingEnd;
  End end = End::finished;
  std::string reason;  // one line
  bool finished() const { return end == End::finished || end == End::target; }
  // Set if the last checkpoint could not be written, e.g. on a full disk: training after this step is lost when the process ends. `ridge train` exits with 6.
  std::optional<int64_t> state_lost_since;

  int64_t steps = 0, skipped = 0;                 // attempted, over all parts of a resumed run
  double train_loss = 0;                          // mean over the last steps
  std::optional<double> best_score, score;        // best and last validation score; empty: none, or not finite
  std::optional<double> best_val_loss, val_loss;  // losses of the same two validations: the first is the loss at the best score
  double seconds = 0, samples_s = 0;              // of this part, wall-clock, including all waits
  double compute_samples_s = 0;                   // counting only time spent in steps
  int64_t planned_bytes = 0, peak_bytes = 0;
  bool resumed = false;
};

// The constructor plans and compiles, and allocates nothing large. From run() on the module's tensors show the current weights.
// SIGINT and SIGTERM end run() after a checkpoint; a second SIGINT ends the process. Running the same program again resumes from there.
// During run(), SIGPIPE is ignored, and so is SIGXFSZ unless the program handles it: a failed write is reported and costs only that
// output or checkpoint. Afterwards the previous signal handlers are restored.
class Trainer {
 public:
  Trainer(const Step& step, Data train, TrainerArgs args = {}, Data validation = {});
  ~Trainer();
  Trainer(Trainer&&) noexcept;

  std::string plan() const;       // decisions and their reasons, memory by class, kernels
  int64_t planned_bytes() const;  // of the whole process; TrainingResult::planned_bytes also counts memory held and freed before
  TrainingResult run();           // call only once

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Repeats a training with several seeds, each in its own folder, and summarises the results.
struct ExperimentArgs {
  std::string out;  // each run is in out/seed_N; final_info.json and plots with bands are written here
  int seeds = 3;
  uint64_t first_seed = 1;  // the others are consecutive
  bool show = true;         // a table of means at the end
};
struct ExperimentResult {
  struct Mean {
    double mean = 0, error = 0;  // standard error of the mean: sd / sqrt(n), sd with n - 1
    int count = 0;               // number of values
  };
  std::vector<TrainingResult> runs;  // ends with the first that was interrupted, diverged or could not be saved
  bool finished = false;             // all runs finished
  Mean best_score, train_loss;
};
// `train` creates a model, trains it with this seed in this folder, and returns the result of run(). A run that is already complete returns immediately, so
// running the same program again continues where it stopped. ErrorCode::usage if there is no folder or no seeds.
//   experiment({.out = "runs/rings"}, [&](uint64_t s, const std::string& out) {
//     seed(s);
//     Mlp net;
//     return Trainer(learner(net), data, {.seed = s, .out = out}).run();
//   });
ExperimentResult experiment(const ExperimentArgs& args, const std::function<TrainingResult(uint64_t seed, const std::string& out)>& train);

// Loads trained weights by name from a run folder (the best checkpoint), a checkpoint or a safetensors file.
void load_weights(const std::vector<NamedTensor>& parameters, const std::string& path);
template <class Module>
void load_weights(Module& module, const std::string& path) {
  load_weights(parameters(module), path);
}

}  // namespace ridge
