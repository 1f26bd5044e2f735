// Training of a user's own model on a user's own data: planned before it starts, data made ahead of the step, non-finite steps skipped,
// checkpoints, resume, validation, and a live line on the terminal.
#pragma once
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ridge/score.h"
#include "ridge/step.h"

namespace ridge {

// A tensor of a batch that is to be filled.
struct BatchTensor {
  Shape shape;  // the first axis counts samples
  DType dtype = DType::f32;
  void* data = nullptr;

  std::span<float> floats() const;  // ErrorCode::dtype where it holds something else
  std::span<int64_t> ints() const;
};

// Where batches come from. A batch is a function of its number 0, 1, 2, … alone, so that a run that was stopped goes on with the same data.
class Data {
 public:
  Data() = default;  // none

  // Samples in memory, counted by the first axis of every tensor. Each epoch takes them in another order; validation takes them as they are.
  Data(std::initializer_list<Tensor> tensors) : Data(std::vector<Tensor>(tensors)) {}
  explicit Data(std::vector<Tensor> tensors);

  // Batches that are made when they are needed: fill(number, batch) writes every element. It is called from a thread of its own, ahead of the
  // step, and must not compute with Tensors. `batches`: how many there are, which validation has to know; -1: without end.
  using Fill = std::function<void(int64_t number, std::span<const BatchTensor> batch)>;
  Data(std::vector<BatchSpec> batch, Fill fill, int64_t batches = -1);

  struct State;
  const std::shared_ptr<const State>& state() const { return state_; }

 private:
  std::shared_ptr<const State> state_;
};

struct TrainerArgs {
  int64_t steps = 1000;
  int64_t batch = 0;  // samples in a step; 0: as many as the data's batches have, or 32
  using Rate = RateKind;
  Rate rate = Rate::cosine;
  int64_t warmup = 0;                 // steps in which the rate grows to the optimizer's
  std::optional<double> min_lr = {};  // at the end; none: a tenth of the optimizer's
  double clip = 0;                    // global norm of the gradients; 0: none
  uint64_t seed = 1;                  // of the order of samples and of random ops

  std::string out = {};                                      // the run's folder; empty: nothing is written, and nothing can be resumed
  bool resume = true;                                        // goes on with what is in `out`; false: a folder that holds a run is refused
  std::string memory = "auto";                               // "512MiB": what the whole process may hold; the batch is split to fit
  int64_t validation_interval = 0, checkpoint_interval = 0;  // steps; 0: decided
  double max_minutes = 0;                                    // 0: no limit
  bool show = true;                                          // plan, live line and summary on stdout

  // What validations are judged by: the loss, or a scalar that it reports. The best checkpoint is the one with the best score.
  //   .score = {.name = "accuracy", .higher_is_better = true}
  Score score = {};
  std::optional<double> target = {};         // a validation whose score reaches it ends the run
  std::function<std::string()> sample = {};  // makes a text to show with the weights as they are, as a sample or a picture of letters
  int64_t sample_interval = 0;               // steps; 0: four in a run
  bool tensorboard = false;                  // event files in out/tensorboard

  std::string device = {};         // "cpu", "cuda", "cuda:1", "auto"; empty: the one that use_device() named. ErrorCode::unsupported: it cannot be used
  std::string precision = "fp32";  // of products: fp32, tf32, bf16, fp16, or auto: what is fastest on the device as measured and trains safely
};

struct TrainingResult {
  using End = TrainingEnd;
  End end = End::finished;
  std::string reason;  // one line
  bool finished() const { return end == End::finished || end == End::target; }
  // The last checkpoint could not be written, as on a full disk: what was learnt after this step is lost when the process ends. `ridge train` exits with 6.
  std::optional<int64_t> state_lost_since;

  int64_t steps = 0, skipped = 0;                 // attempted, in all parts of a resumed run
  double train_loss = 0;                          // mean of the last steps
  std::optional<double> best_score, score;        // by validation: the best one, and the last one
  std::optional<double> best_val_loss, val_loss;  // losses of the same validations
  double seconds = 0, samples_s = 0;              // of this part, by the clock: all that was waited for included
  double compute_samples_s = 0;                   // of its steps' own work
  int64_t planned_bytes = 0, peak_bytes = 0;
  bool resumed = false;
};

// Plans and compiles when it is made; the module's tensors show the current weights from then on.
// SIGINT and SIGTERM end run() after a checkpoint; a second SIGINT ends the process. The same program, started again, goes on from there.
// While run() lasts, SIGPIPE, and SIGXFSZ where the program does not handle it, are ignored: what cannot be written is an error that is told, and costs an
// output or a checkpoint. Afterwards all signals are as they were.
class Trainer {
 public:
  Trainer(const Step& step, Data train, TrainerArgs args = {}, Data validation = {});
  ~Trainer();
  Trainer(Trainer&&) noexcept;

  std::string plan() const;       // what was decided and why, memory by class, kernels
  int64_t planned_bytes() const;  // that the process will hold; the result's figure counts what was held before too
  TrainingResult run();           // once

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The same training with several seeds, each in a folder of its own, and what they say together.
struct ExperimentArgs {
  std::string out;  // each run is in out/seed_N; final_info.json and plots with bands are written here
  int seeds = 3;
  uint64_t first_seed = 1;  // then those that follow it
  bool show = true;         // a table of means at the end
};
struct ExperimentResult {
  struct Mean {
    double mean = 0, error = 0;  // standard error of the mean: sd / sqrt(n), sd with n - 1
    int count = 0;               // of values
  };
  std::vector<TrainingResult> runs;  // those that were made: the first that was interrupted, diverged or could not be saved is the last
  bool finished = false;             // all of them
  Mean best_score, train_loss;
};
// `train` makes a model, trains it with this seed in this folder, and returns what run() returned. A run that is complete already costs nothing, so
// the same program, started again, continues where it was stopped. ErrorCode::usage: no folder, or no seeds.
//   experiment({.out = "runs/rings"}, [&](uint64_t s, const std::string& out) {
//     seed(s);
//     Mlp net;
//     return Trainer(learner(net), data, {.seed = s, .out = out}).run();
//   });
ExperimentResult experiment(const ExperimentArgs& args, const std::function<TrainingResult(uint64_t seed, const std::string& out)>& train);

// Reads weights by their names, so that a trained model can be used: from a run folder (the best checkpoint), a checkpoint or a safetensors file.
void load_weights(const std::vector<NamedTensor>& parameters, const std::string& path);
template <class Module>
void load_weights(Module& module, const std::string& path) {
  load_weights(parameters(module), path);
}

}  // namespace ridge
