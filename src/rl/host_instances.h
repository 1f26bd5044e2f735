// Plays a host environment for ever, by the rules of Instances: the same draws, flags and figures, computed by the host.
#pragma once
#include <atomic>

#include "ridge/host_environment.h"
#include "rl/host_watch.h"
#include "threads/thread_team.h"

namespace ridge {

class HostInstances {
 public:
  // What a decision gives: element i belongs to instance i. Null: not wanted.
  struct Results {
    float* reward = nullptr;  // clipped and scaled as the options say
    std::byte *terminated = nullptr, *truncated = nullptr;
    float *episode_return = nullptr, *episode_length = nullptr;
    std::byte* final_frame = nullptr;  // what the last state of an episode looked like; written where one ended
    float* discounted = nullptr;       // running return, with return_discount
  };

  // `report`: called instead of ending the process when the environment hangs.
  HostInstances(const Instances& game, int64_t count, rl::HostWatch::Report report = {});

  int64_t count() const { return count_; }
  int64_t frame_bytes() const { return frame_bytes_; }
  void start(ThreadTeam& team, uint64_t seed, int64_t first);  // the first states of instances first, first + 1, … of the run with this seed
  // One decision of instances [begin, end). `action`: of all instances, as the environment takes them.
  void decide(ThreadTeam& team, int64_t begin, int64_t end, const std::byte* action, const Results& results);

  const std::byte* frames() const { return frames_.data(); }  // [count, frame]: what can be seen now
  const std::vector<int64_t>& age() const { return age_; }    // as Instances::age(), counter() and instance()
  const std::vector<int64_t>& counter() const { return counter_; }
  const std::vector<int64_t>& instance() const { return instance_; }
  HostEnvironment& environment() { return *environment_; }

  // For checkpoints: the wrapper's own numbers, then what the environment saves of each instance.
  static constexpr int64_t kWrapper = 5;
  struct Saved {
    std::vector<int64_t> wrapper;   // [count, kWrapper]: counter, age, no-ops left, return, discounted return
    std::vector<std::byte> states;  // of all instances, one after the other: the previous action, then what the environment saved
    std::vector<int64_t> sizes;     // [count]
  };
  Saved save() const;
  bool restore(ThreadTeam& team, uint64_t seed, const Saved& saved);  // false: without can_save(), new episodes have begun

 private:
  void each_range(ThreadTeam& team, int64_t begin, int64_t end, const std::function<void(int64_t begin, int64_t end)>& act);
  void decide_range(int64_t begin, int64_t end, const std::byte* action, const Results& results);
  void begin_episodes(HostEnvironment::Which which);
  void look(HostEnvironment::Which which, std::byte* to);
  void draw(std::vector<float>& to, HostEnvironment::Which which, uint32_t stream, int64_t per_decision, int64_t first, int64_t count);
  template <class Call>
  void call(const char* function, HostEnvironment::Which which, const Call& call) const;

  EnvSpec spec_;
  EnvOptions options_;
  int64_t count_, components_, frame_bytes_;
  bool real_;  // continuous actions
  std::unique_ptr<HostEnvironment> environment_;
  std::unique_ptr<rl::HostWatch> watch_;
  uint64_t seed_ = 0;
  std::vector<int64_t> instance_, counter_, age_, noops_;
  std::vector<float> total_, discounted_;
  std::vector<std::byte> frames_, played_, previous_;  // actions of this decision and of the last
  // Memory that the environment is given.
  std::vector<uint64_t> seeds_;
  // Two lists of draws: with other numbers per instance, the same place would belong to different ranges.
  std::vector<float> reset_draws_, step_draws_, reward_, sum_;
  std::unique_ptr<bool[]> terminated_, truncated_;
  std::vector<int64_t> which_, ended_;  // lists of instances; a range uses its own part
  double unit_ns_ = 1000;               // of one decision of one instance, measured
};

}  // namespace ridge
