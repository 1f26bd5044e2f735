// Instances of a host environment, played by a policy: the network's part is a program, the environment's is done by the thread team.
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "rl/host_instances.h"
#include "tasks/ppo/ppo.h"

namespace ridge {

class HostPlay {
 public:
  // With the step's weights. `sampled`: draws actions; false: the most likely ones. `halves`: the environment steps for one half of the instances while the
  // network acts for the other.
  HostPlay(TrainStep& step, std::shared_ptr<const Policy> policy, std::span<const Tensor> weights, const Instances& instances, bool normalized, int64_t rows,
           bool sampled, bool halves = false);
  ~HostPlay();
  static bool can_have_halves(const Instances& instances, int64_t rows);
  // For a HostPlay that was made with halves and is used for nothing else: whether halves give the same bits, which products of other shapes may not, and how
  // long a decision of all instances takes, as a mean over so many.
  bool halves_keep_bits(bool normalized);
  double decision_seconds(bool halves, bool normalized, int64_t decisions);

  void start(uint64_t seed, int64_t first);  // instances first, first + 1, … of the run with this seed

  // What a decision gives besides HostInstances::Results. Null: not wanted.
  struct Record : HostInstances::Results {
    std::byte* frame = nullptr;                      // that the policy saw last
    int64_t* age = nullptr;                          // of the episode until then
    std::byte *action = nullptr, *played = nullptr;  // as the policy chose it, and as the environment got it
    float *log_p = nullptr, *value = nullptr;
    std::vector<float*> states = {};  // of the policy's memory, even if the decision ended the episode; empty: not wanted
  };
  // `scales`: shift and scale of observations, if they are normalised, and mean and deviation of values.
  void decide(std::span<const void* const> scales, const Record& record);

  // A rollout of `horizon` decisions, with inputs and outputs as those of the program that plays tensor code (Collector): the policy's memory and the scales;
  // the memory, the last value, and what each decision gave.
  struct Outputs {
    bool stacked, bounded, discounted;  // which of the optional outputs there are
  };
  void roll_out(std::span<const void* const> inputs, std::span<void* const> outputs, int64_t horizon, const Outputs& has);

  HostInstances& instances() { return instances_; }
  double environment_seconds() const { return environment_seconds_; }  // so far: in the environment, or with halves, waiting for it
  int64_t bytes() const;

  std::vector<StateTensor> save() const;
  bool restore(const SafetensorsFile& file, uint64_t seed);  // false: new episodes have begun, as the environment cannot be saved

 private:
  class StepThread;
  std::unique_ptr<ReadProgram> acting(TrainStep& step, std::span<const Tensor> weights, const Instances& instances, bool normalized, int64_t rows,
                                      bool sampled) const;
  // Of instances [begin, end): the network's part, the environment's, and what follows it.
  void act(int64_t begin, int64_t end, std::span<const void* const> scales, const Record& record);
  void step(ThreadTeam& team, int64_t begin, int64_t end, const HostInstances::Results& results);
  void follow_up(int64_t begin, int64_t end, const HostInstances::Results& results);
  void play(int64_t decisions, bool halves, std::span<const void* const> scales, const std::function<Record(int64_t decision)>& record);
  void stack_frames(int64_t begin, int64_t end, bool only_new = false);

  std::shared_ptr<const Policy> policy_;
  HostInstances instances_;
  int64_t rows_, stack_;
  bool bounds_;                                  // actions for the environment differ from those of the policy
  std::unique_ptr<ReadProgram> act_, act_half_;  // for all instances; for half of them, if there are halves
  uint64_t seed_ = 0;
  std::vector<std::byte> action_, played_, stacked_;
  std::vector<float> log_p_, value_;
  std::vector<std::vector<float>> memory_;
  std::vector<std::byte> terminated_, truncated_;
  double environment_seconds_ = 0;
  std::unique_ptr<StepThread> step_thread_;  // if there are halves; the last member, as it uses all others
};

}  // namespace ridge
