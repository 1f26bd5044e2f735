// One training step as programs that are compiled once and replayed: n micro-batches add up gradients, then one update.
#pragma once
#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "graph/builder.h"
#include "measure/default_team.h"
#include "nn/parameter.h"
#include "ridge/error.h"
#include "ridge/training.h"
#include "runtime/executable.h"
#include "step/step_plan.h"

namespace ridge {

class Backend;

constexpr size_t kMostScalars = 16;

// The sum of losses and their number, and named scalars that are reported with them: each the mean sum / count over the whole batch.
struct StepLoss : Builder::SumCount {
  struct Scalar {
    std::string name;  // of letters, digits and "_-./"; "loss" is taken
    SumCount value;
  };
  std::vector<Scalar> scalars;
  StepLoss(SumCount loss = {}, std::vector<Scalar> named = {}) : SumCount(loss), scalars(std::move(named)) {}
};
// Means in the order of their names; those that nothing was counted for are not numbers.
using ScalarMeans = std::array<double, kMostScalars>;

// What is trained: parameters (f32), the batch's tensors (first axis: samples), and the losses of a batch of any size.
struct StepModel {
  std::vector<Parameter> parameters;
  std::vector<Type> batch;
  // (builder, parameters, batch tensors, random operands whose base counts samples) -> sum of losses and their number
  using Loss = std::function<StepLoss(Builder&, std::span<const NodeId>, std::span<const NodeId>, const RandomOperands&)>;
  Loss loss;
  Loss evaluate = {};  // the same for validation, without dropout; empty: `loss`
};

// Of fp16: gradients are multiplied by it on their way, so that small ones do not vanish. Powers of two change no digit.
struct LossScaleOptions {
  double initial = 65536, floor = 1, cap = 16777216;
  int64_t growth_interval = 2000;  // applied steps after which it doubles
};

struct StepOptions {
  Optimizer optimizer;
  double clip = 0;                        // global norm; 0: none
  int64_t memory = 0;                     // bytes that the step may hold; 0: no limit
  int64_t micro = 0;                      // samples in a micro-batch; 0: decided by memory
  std::optional<Recompute> recompute;     // none: decided by memory
  bool evaluation = true;                 // programs for evaluate() are planned too
  int64_t evaluation_micro = 0;           // samples that an evaluation takes at a time; 0: as the micro-batch, if that fits
  Precision precision = Precision::fp32;  // of products; parameters, moments, gradients and every other sum stay f32
  LossScaleOptions loss_scale = {};
  uint64_t seed = 0;
  std::string passes;
  Backend* backend = &default_backend();  // never null; must live as long as the step
  // Operations that products take in the time of a byte moved, as measured on the device; asked for where splitting and recomputing are
  // compared. None, or 0: a guess stands in, and the plan says so.
  std::function<double()> balance = {};
  // Moments in the host's memory, brought to the device part by part in every update; none: only where nothing else fits.
  std::optional<bool> offload;
};

// Asks for what a checkpoint's choices say (StepChoices::words), precision included.
void honour(StepOptions& options, const std::map<std::string, std::string>& choices);
bool same_device(const Backend& backend, const std::map<std::string, std::string>& choices);  // whether those were made on such a one

// ErrorCode::memory of a step that does not fit.
struct StepTooLarge : Error {
  StepTooLarge(const std::string& what, int64_t least_bytes) : Error(ErrorCode::memory, what), least(least_bytes) {}
  int64_t least;  // the smallest budget that works
};

struct StepMetrics {
  double loss = 0, gradient_norm = 0;
  bool applied = true;        // false: something was not finite and nothing was changed
  double loss_scale = 1;      // with which this step ran
  bool scale_search = false;  // it was not applied, and the loss scale, still above its floor, was lowered (the loss itself was finite)
  ScalarMeans scalars = {};   // by TrainStep::scalars()
};

// What a step carries besides parameters and moments.
struct StepState {
  int64_t attempted = 0, applied = 0;
  double loss_scale = 1;
  int64_t scale_age = 0;  // applied steps since the scale was last changed
};

struct KernelRun {
  KernelReport kernel;
  int64_t times = 1;  // in one whole step
};

class TrainStep {
 public:
  // Plans and compiles; memory is mapped at the first run. StepTooLarge says what does not fit and what would.
  TrainStep(StepModel model, StepOptions options);
  ~TrainStep();
  TrainStep(TrainStep&&) noexcept;

  StepMetrics run(std::span<const void* const> batch, double lr);
  StepMetrics run(std::span<const void* const> batch);  // at the optimizer's rate

  // The same without waiting for the device. The batch may be changed afterwards; what came of the step is collected later, in order.
  void enqueue(std::span<const void* const> batch, double lr);
  // The same for a batch that comes in parts: `part` gives the tensors of these samples, which are read before it is asked again.
  using Parts = std::function<std::span<const void* const>(int64_t first, int64_t count)>;
  void enqueue(const Parts& part, double lr);
  static constexpr int kMostPending = 4;
  int pending() const;            // steps that are enqueued and not collected
  StepMetrics collect();          // waits for the oldest of them
  void discard();                 // waits for all of them; what they did to parameters stays
  double update_seconds() const;  // of all updates so far, by those that were timed
  void time_next_update();        // on a device that works by itself, which waits for it; elsewhere all are timed
  bool behind() const;            // the device works while the host goes on, so that collecting late pays

  // Losses of the first `samples` samples of a batch, by the model's `evaluate`. Changes nothing, allocates nothing.
  struct Losses {
    double sum = 0, count = 0;
    struct Ratio {
      double sum = 0, count = 0;
    };
    std::array<Ratio, kMostScalars> scalars = {};  // by evaluation_scalars()
  };
  Losses evaluate(std::span<const void* const> batch, int64_t samples);
  void check_evaluation(int64_t samples) const;  // ErrorCode::unsupported where evaluate() could not take so many

  StepState state() const;               // after the last step that was collected
  void restore(const StepState& state);  // with parameters and moments as they were then, what follows is the same bit for bit
  void compile_ahead();                  // in the background, where the device allows it
  void touch();                          // maps all memory and writes to every page of it now, so that nothing can be taken away later

  const std::vector<std::string>& scalars() const;             // names of what the loss reports besides itself
  const std::vector<std::string>& evaluation_scalars() const;  // the same of `evaluate`
  const StepModel& model() const;
  const StepOptions& options() const;
  Backend& device();
  const StepPlan& plan() const;
  std::map<std::string, std::string> choices() const;  // the plan's, and those that the device's kernels have made so far
  // Wherever they lie: the first values of a parameter, or of a moment of it (all of them where the span is as long).
  enum class Held { parameter, first, second };
  void read(Held what, size_t index, std::span<float> to);
  void write(Held what, size_t index, std::span<const float> from);
  // Memory of the host that the device copies to by itself: reading into it takes no other hand. It must go before the step does.
  std::shared_ptr<float> host_memory(size_t count);
  void read_straight(Held what, size_t index, std::span<float> host_memory);
  void fill_parameter(size_t index, const std::function<void(std::span<float>)>& fill);
  // In place, on devices that work in the host's memory; ErrorCode::usage elsewhere.
  bool in_place() const;
  std::span<float> parameter(size_t index);
  std::span<float> gradient(size_t index);  // sums of the last step, before division by the count (fp16: times a power of two)
  std::span<float> moment(size_t index, int which);
  int moments() const;                        // that the optimizer keeps for each parameter
  const void* parameter_place(size_t index);  // its address on the device
  std::vector<KernelRun> kernels() const;     // of one whole step, update included
  // The least that one step can take: for each kernel the longer of its arithmetic and its memory traffic, at these rates.
  double least_seconds(double flops_per_second, double bytes_per_second) const;
  std::string report() const;  // for people: memory by class, kernels, decisions
  std::string dump() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ridge
