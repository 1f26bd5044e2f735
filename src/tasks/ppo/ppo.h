// Proximal policy optimisation: what is collected with the current weights, and the loss on it.
#pragma once
#include <array>
#include <chrono>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/safetensors.h"
#include "ridge/step.h"
#include "step/read_program.h"
#include "tasks/ppo/policy.h"
#include "train/batch_feed.h"
#include "train/training_loop.h"

namespace ridge {

struct PpoArgs {
  int64_t instances = 64, horizon = 64;  // decisions of a rollout: instances × horizon
  int64_t minibatch = 1024, epochs = 4;  // decisions per update, and passes over a rollout
  int64_t segment = 1;                   // decisions in a row that belong together in a minibatch: 1 without memory
  double gamma = 0.99, lambda = 0.95;    // discount, and the decay of advantages over time
  double clip_range = 0.2;               // of the ratio of probabilities
  double value_clip = 0;                 // largest change of a value that counts; 0: any
  double value_weight = 0.5;             // of the value's loss
  double entropy = 0.01;                 // weight of the entropy bonus
  std::optional<double> final_entropy;   // which falls to this linearly; below 0 it favours decided policies. None: it is constant
  double target_kl = 0;                  // a rollout is left when the mean KL divergence of an epoch exceeds it; 0: never
  double adaptive_kl = 0;                // the learning rate follows the KL divergence of the epochs; 0: it does not
  bool halves = false;                   // a host environment steps for one half of the instances while the network acts for the other
  bool normalize_observations = false, normalize_values = false, scale_rewards = false;
  int64_t iterations = 1;  // rollouts in the whole run
  uint64_t seed = 1;

  int64_t decisions() const { return instances * horizon; }
  int64_t minibatches() const { return decisions() / minibatch; }
  int64_t updates() const { return epochs * minibatches(); }  // per rollout
};
void check(const PpoArgs& args);  // ErrorCode::usage names the sizes that do not fit together

// A minibatch [rows, segment, …]: observations, actions, their log-probabilities and values when they were taken, advantages, values to learn, the weight of
// the entropy; with memory also where episodes begin, and its states [rows, …] at the beginning. Every sum is over decisions, so minibatches can be split.
std::vector<BatchSpec> ppo_batch(const Policy& policy, const PpoArgs& args);
Loss ppo_loss(const Policy& policy, const PpoArgs& args, const std::vector<Tensor>& batch);

// Advantages and the returns that values learn, each [time, instances], from what a rollout gave. final_value: of the last observation where an episode was
// truncated; last_value [instances]: of the observation after the rollout.
std::pair<Tensor, Tensor> advantages(const Tensor& reward, const Tensor& value, const Tensor& terminated, const Tensor& truncated, const Tensor& final_value,
                                     const Tensor& last_value, double gamma, double lambda);

// Mean and variance of everything seen so far, merged batch by batch.
struct RunningMoments {
  explicit RunningMoments(size_t size = 1) : mean(size, 0), variance(size, 1) {}
  void add(std::span<const float> rows);                                               // [n, size]
  void merge(double n, std::span<const float> means, std::span<const float> squares);  // n more rows, by their means and sums of squared distances from them
  double count = 1e-4;
  std::vector<double> mean, variance;
};

// Figures of finished episodes. Every instance counts with its last few, so quick losers do not dominate.
class EpisodeScore {
 public:
  EpisodeScore(int64_t instances, int64_t episodes = 100);
  void add(int64_t instance, float episode_return, float length);
  std::optional<double> score() const, length() const;  // once every instance has finished its quota
  std::optional<double> length_so_far() const;          // of the episodes that have finished, if any has
  int64_t quota() const { return quota_; }
  std::vector<float>& returns() { return returns_; }
  std::vector<float>& lengths() { return lengths_; }
  std::vector<int64_t>& counts() { return counts_; }

 private:
  int64_t quota_;
  std::vector<float> returns_, lengths_;  // [instances, quota]
  std::vector<int64_t> counts_;           // finished so far
};

// How the updates of a rollout go on, by their KL divergence (tasks/ppo/kl_control.h).
template <class Number>
struct KlControl {
  Number factor;   // of the learning rate
  Number sum;      // of the KL divergences of this epoch's updates that were applied
  Number applied;  // their number
  Number made;     // updates of this epoch, applied or not
  Number stopped;  // 1: the rest of the rollout's updates are left out
};

// Numbers of instances that are only evaluated, and only shown: their draws are not those of training.
inline constexpr int64_t kFirstEvaluated = int64_t(1) << 24, kFirstShown = kFirstEvaluated + (int64_t(1) << 20);
inline constexpr int64_t kLongestPlayed = 10000;  // decisions of an evaluated episode without a time limit

// Episodes played by a policy as it is.
struct PlayedEpisodes {
  std::vector<float> returns, lengths;
  int64_t capped = 0;  // cut off by the time limit
  double mean() const, deviation() const, mean_length() const;
  double interval() const;  // half of the 95 % confidence interval of the mean
};

class DeviceRollout;
class HostPlay;

// Collects rollouts with the step's weights, and hands them out as minibatches. The environments' states are part of it: saving it saves everything. On a
// device with memory of its own, rollouts and minibatches stay there; `on_device` decides otherwise, for tests.
class Collector final : public BatchFeed {
 public:
  Collector(TrainStep& step, std::shared_ptr<const Policy> policy, std::span<const Tensor> weights, const Instances& instances, const PpoArgs& args,
            std::optional<bool> on_device = {});
  ~Collector();

  Batch next(int64_t step) override;
  int64_t position() const override { return position_; }
  void seek(int64_t position, const std::vector<int64_t>& left_out) override;
  bool on_policy() const override { return true; }
  bool needs_results(int64_t step) const override { return !device_ || step % args_.updates() == 0; }
  int64_t group() const override { return args_.updates(); }
  double rate(double scheduled) const override { return scheduled * kl_.factor * rate_scale; }
  void collected(const StepMetrics& metrics) override;
  std::span<const std::string> scalar_names() const override;
  std::span<const double> scalars() const override { return scalars_; }
  double frames() const override { return double(instances_.options().frame_skip); }
  bool wants_validation() const override { return wants_validation_; }
  double validation_seconds() const override;
  std::string diagnosis() const override;
  bool may_end() const override { return !goes_on_ && (!target || score_.score().value_or(-std::numeric_limits<double>::infinity()) >= *target); }
  void go_on() { goes_on_ = true; }  // past the evaluation that ended the run so far: only one after another rollout may end it

  // Plays episodes, the same number in each of 100 instances (one in fewer instances, if fewer are wanted), with draws of their own. Empty: `stop` returned
  // true.
  std::optional<PlayedEpisodes> play(int64_t episodes, bool sampled, const std::function<bool()>& stop = {});
  uint64_t evaluation_seed() const;              // of the next evaluation's draws
  std::optional<double> target;                  // a score from which on validations are requested
  std::function<double(int64_t step)> schedule;  // of the learning rate; none: the optimizer's

  std::vector<StateTensor> save() const;
  void restore(const SafetensorsFile& file);
  int64_t bytes() const;  // of all programs and buffers
  void begin();           // allocates the buffers and starts all instances; call once, when the step has its memory

  double rollout_seconds();  // measured; begins, and is not to be used afterwards

  struct Times {
    double playing = 0, advantages = 0, preparing = 0, learning = 0;  // seconds; learning: from a minibatch to the end of its update
    std::optional<double> environment;                                // its part of playing, if that is known
    int64_t rollouts = 0;                                             // in this process
  };
  const Times& times() const { return times_; }
  // Tensor code and policy are one program, so the environment's part is measured alone: when the run has taken this many seconds, and long enough not to slow
  // it down noticeably. Without it, that part stays unknown.
  std::optional<double> measure_environment_after;
  int64_t rollouts() const { return rollouts_; }
  const RunningMoments& observations() const { return observations_; }
  const RunningMoments& values() const { return values_; }
  void use_statistics_of(const RunningMoments& observations, const RunningMoments& values);  // of a trained agent

 private:
  struct Programs;
  struct Buffers;
  void make_player(bool sampled);
  std::optional<PlayedEpisodes> play_on_host(HostPlay& game, int64_t episodes, const std::function<bool()>& stop);
  std::vector<Type> host_outputs() const;
  void collect();
  void collect_on_device(int64_t step);
  void measure_environment();
  void finish_scalars(double error, double spread);
  float entropy_weight() const;
  void find_final_values();
  void count_episodes();
  void update_statistics();
  void use_statistics();
  void finish_rollout();
  void pack_records();
  int64_t record_bytes() const;
  void fill_minibatch(int64_t epoch, int64_t minibatch);
  void fill_rows(std::span<const uint32_t> order, int64_t begin, int64_t end);
  void copy_observation(int64_t t, int64_t e, bool final, std::byte* to) const;
  std::vector<const void*> program_inputs(const std::vector<std::vector<std::byte>>& carry) const;

  TrainStep& step_;
  std::shared_ptr<const Policy> policy_;
  Instances instances_;
  PpoArgs args_;
  std::vector<Tensor> weights_;
  std::unique_ptr<Programs> programs_;
  std::unique_ptr<Buffers> buffers_;
  std::unique_ptr<DeviceRollout> device_;
  RunningMoments observations_, values_, returns_;
  EpisodeScore score_;
  int64_t position_ = 0, rollouts_ = 0, since_validation_ = 0;
  bool wants_validation_ = false, goes_on_ = false;
  KlControl<double> kl_ = {1, 0, 0, 0, 0};  // of a GPU: only the factor; the rest is in its memory
  size_t kl_at_ = 0;                        // index of the KL divergence among the loss's scalars
  std::array<double, 6> scalars_ = {};
  std::chrono::steady_clock::time_point begun_ = {}, handed_out_ = {};
  Times times_;
  bool environment_measured_ = false;
  std::optional<double> environment_seconds_;  // of a rollout
};

// Seconds of a rollout by random actions, without a policy: the environment's part of playing. Measured once, in a few times that long. None: there is no
// memory for it.
std::optional<double> environment_seconds(TrainStep& step, const Instances& instances, const PpoArgs& args);

// Episodes of actions drawn uniformly, one in each of as many instances.
PlayedEpisodes random_episodes(TrainStep& step, const Instances& instances, int64_t episodes, uint64_t seed);

}  // namespace ridge
