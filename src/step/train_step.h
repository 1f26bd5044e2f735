// One training step as programs that are compiled once and replayed: n micro-batches accumulate gradients, then one update.
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

constexpr size_t kMaxScalars = 16;

// The sum and count of the losses, and named scalars reported with them, each as the mean sum / count over the whole batch.
struct StepLoss : Builder::SumCount {
  struct Scalar {
    std::string name;  // letters, digits and "_-./"; "loss" is reserved
    SumCount value;
  };
  std::vector<Scalar> scalars;
  StepLoss(SumCount loss = {}, std::vector<Scalar> named = {}) : SumCount(loss), scalars(std::move(named)) {}
};
// Means in the order of the scalars' names; NaN where the count is 0.
using ScalarMeans = std::array<double, kMaxScalars>;

// The model to train: parameters (f32), the batch's tensors (first axis: samples), and the losses of a batch of any size.
struct StepModel {
  std::vector<Parameter> parameters;
  std::vector<Type> batch;
  // (builder, parameters, batch tensors, random operands whose base counts samples) -> sum and count of the losses
  using Loss = std::function<StepLoss(Builder&, std::span<const NodeId>, std::span<const NodeId>, const RandomOperands&)>;
  Loss loss;
  Loss evaluate = {};  // the same for validation, without dropout; empty: `loss`
};

// For fp16: gradients are scaled up during the backward pass so that small ones do not underflow. Scales are powers of two, so scaling is exact.
struct LossScaleOptions {
  double initial = 65536, floor = 1, cap = 16777216;
  int64_t growth_interval = 2000;  // applied steps after which the scale doubles
};

struct StepOptions {
  Optimizer optimizer;
  double clip = 0;                        // global norm; 0: none
  int64_t memory = 0;                     // limit in bytes; 0: no limit
  int64_t micro = 0;                      // samples per micro-batch; 0: chosen to fit memory
  std::optional<Recompute> recompute;     // none: chosen to fit memory
  bool evaluation = true;                 // also plan programs for evaluate()
  int64_t evaluation_micro = 0;           // samples evaluated at a time; 0: the micro-batch, if that fits
  Precision precision = Precision::fp32;  // of matrix products; parameters, moments, gradients and all other sums stay f32
  LossScaleOptions loss_scale = {};
  uint64_t seed = 0;
  // For small networks on a GPU: what is computed sample by sample becomes one kernel, where docs/loops.md allows it and that is measured to be faster.
  bool join_samples = false;
  std::string passes;
  Backend* backend = &default_backend();  // never null; must outlive the step
  // Arithmetic operations of matrix products in the time it takes to move one byte, as measured on the device. Called to compare splitting with
  // recomputing. Empty, or 0: an estimate is used, and the plan says so.
  std::function<double()> balance = {};
  // Keep moments in host memory and copy them to the device part by part in every update; none: only if nothing else fits.
  std::optional<bool> offload;
};

// Sets the options to the choices stored in a checkpoint (StepChoices::words), including precision.
void reuse_choices(StepOptions& options, const std::map<std::string, std::string>& choices);
bool same_device(const Backend& backend, const std::map<std::string, std::string>& choices);  // whether the choices were made on the same kind of device

// Thrown if a step does not fit in memory; ErrorCode::memory.
struct StepTooLarge : Error {
  StepTooLarge(const std::string& what, int64_t least_bytes) : Error(ErrorCode::memory, what), least(least_bytes) {}
  int64_t least;  // the smallest budget that works
};

struct StepMetrics {
  double loss = 0, gradient_norm = 0;
  bool applied = true;        // false: a value was not finite, so the update was skipped
  double loss_scale = 1;      // used by this step
  bool scale_search = false;  // the step was skipped only to lower the loss scale, which was above its floor (the loss was finite)
  ScalarMeans scalars = {};   // in the order of TrainStep::scalars()
  double lr = 0;
  bool left_out = false;  // its rate, made on the device, left it out: neither applied nor at fault
};

// The state carried between steps in addition to parameters and moments.
struct StepState {
  int64_t attempted = 0, applied = 0;
  double loss_scale = 1;
  int64_t scale_age = 0;  // applied steps since the scale last changed
};

struct KernelRun {
  KernelReport kernel;
  int64_t times = 1;  // per whole step
};

class TrainStep {
 public:
  // Plans and compiles; memory is mapped at the first run. Throws StepTooLarge, which says what does not fit and what would.
  TrainStep(StepModel model, StepOptions options);
  ~TrainStep();
  TrainStep(TrainStep&&) noexcept;

  StepMetrics run(std::span<const void* const> batch, double lr);
  StepMetrics run(std::span<const void* const> batch);  // at the optimizer's learning rate

  // The same without waiting for the device. The batch may be changed after the call; results are collected later, in order.
  void enqueue(std::span<const void* const> batch, double lr);
  // The same for a batch that arrives in parts: `part` returns the tensors of these samples, which are read before its next call.
  using Parts = std::function<std::span<const void* const>(int64_t first, int64_t count)>;
  // If it throws, the step is not made, and the parameters stay as they are.
  void enqueue(const Parts& part, double lr);
  // The same for a batch that programs put into device memory, and the learning rate into places().rate. A rate that is not finite leaves the step out: it is
  // counted, but changes nothing.
  void enqueue_in_place(std::span<const void* const> batch);
  // Device addresses of what programs between steps may read: sum and count of each scalar, and whether the last update was applied.
  struct Places {
    float* rate;
    const float* scalars;
    const uint8_t* applied;
  };
  Places places();
  // The tensors of a whole batch from this sample on, for the same purpose; valid until the next call.
  std::span<const void* const> from_sample(std::span<const void* const> batch, int64_t first);
  static constexpr int kMaxPending = 4;
  int pending() const;            // steps enqueued but not yet collected
  StepMetrics collect();          // waits for the oldest pending step
  void discard();                 // waits for all pending steps and drops their metrics; their updates stay
  double update_seconds() const;  // of all updates so far, extrapolated from those timed
  void time_next_update();        // on an asynchronous device, where timing forces a wait; elsewhere all updates are timed
  bool behind() const;            // the device runs asynchronously, so that collecting late pays off

  // Losses of the first `samples` samples of a batch, computed by the model's `evaluate`. Changes no state and allocates nothing.
  struct Losses {
    double sum = 0, count = 0;
    struct Ratio {
      double sum = 0, count = 0;
    };
    std::array<Ratio, kMaxScalars> scalars = {};  // in the order of evaluation_scalars()
  };
  Losses evaluate(std::span<const void* const> batch, int64_t samples);
  void check_evaluation(int64_t samples) const;  // ErrorCode::unsupported if evaluate() cannot handle this many

  void leave_out();                      // counts a step as attempted that computes nothing; all steps must have been collected
  StepState state() const;               // after the last collected step
  void restore(const StepState& state);  // with the same parameters and moments, later steps are bit-identical
  void compile_ahead();                  // in the background, if the device supports it
  void touch();                          // maps all memory and writes to every page, so that no other process can take it later

  const std::vector<std::string>& scalars() const;                                // names of the scalars reported with the loss
  std::span<const std::string> scalars_and(std::span<const std::string> others);  // these and others, kept as long as the step
  const std::vector<std::string>& evaluation_scalars() const;                     // the same for `evaluate`
  const StepModel& model() const;
  const StepOptions& options() const;
  Backend& device();
  const StepPlan& plan() const;
  std::map<std::string, std::string> choices() const;  // the plan's, and those made by the device's kernels so far
  // Reads or writes the first values of a parameter or one of its moments, wherever it is stored; the span's length says how many.
  enum class Held { parameter, first, second };
  void read(Held what, size_t index, std::span<float> to);
  void write(Held what, size_t index, std::span<const float> from);
  void before_parameters_change(std::function<void()> call);  // called before every step and before parameters are written or filled
  // Host memory that the device can copy to directly, for read_straight(). Must be released before the step.
  std::shared_ptr<float> host_memory(size_t count);
  void read_straight(Held what, size_t index, std::span<float> host_memory);
  void fill_parameter(size_t index, const std::function<void(std::span<float>)>& fill);
  // Direct access, for devices that work in host memory; ErrorCode::usage elsewhere.
  bool in_place() const;
  std::span<float> parameter(size_t index);
  std::span<float> gradient(size_t index);  // sums of the last step, before division by the count (fp16: times a power of two)
  std::span<float> moment(size_t index, int which);
  int moments(size_t index) const;            // moments of a parameter that the optimizer keeps
  const void* parameter_place(size_t index);  // the device address
  std::vector<KernelRun> kernels() const;     // of one whole step, including the update
  // Lower bound for the time of one step: for each kernel, the longer of its arithmetic and its memory traffic at these rates.
  double min_seconds(double flops_per_second, double bytes_per_second) const;
  std::string report() const;  // human-readable: memory by class, kernels, decisions
  std::string dump() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ridge
