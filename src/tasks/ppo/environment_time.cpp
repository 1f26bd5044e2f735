// Environments without a policy: how long they take, and how random actions score.
#include <algorithm>
#include <chrono>
#include <limits>

#include "backend/backend.h"
#include "base/error.h"
#include "compile/plan_memory.h"
#include "step/compiled_step.h"
#include "tasks/ppo/ppo.h"

namespace ridge {
namespace {

constexpr uint32_t kRandomStream = 1 << 20;  // no policy uses it

Tensor random_action(const Instances& instances, const EnvState& state) {
  const ActionSpace& space = instances.spec().actions;
  const Tensor counter = instances.counter(state), instance = instances.instance(state);
  std::vector<Tensor> components;
  for (int64_t i = 0; i < space.components(); ++i) {
    const Tensor u = uniform_at(counter, instance, kRandomStream + uint32_t(i));
    if (space.kind == ActionSpace::Kind::continuous)
      components.push_back(u * (space.high[size_t(i)] - space.low[size_t(i)]) + space.low[size_t(i)]);
    else
      components.push_back(cast(floor(u * double(space.choices[size_t(i)])), DType::i64));
  }
  return space.kind == ActionSpace::Kind::discrete ? components[0] : stack(components, 1);
}

// Random actions in all instances, some decisions at a time, in the memory of the step's device.
class RandomPlay {
 public:
  RandomPlay(TrainStep& step, const Instances& instances, int64_t first, int64_t rows, int64_t decisions) : device_(step.device()), memory_(step.device()) {
    auto first_state = [&] { return instances.start(iota({rows}) + Tensor(double(first), DType::i64)); };
    std::vector<Type> types;
    for (const Tensor& t : first_state()) types.push_back({t.dtype(), t.shape()});
    carries_ = types.size();
    start_ = std::make_unique<ReadProgram>(step, std::vector<Type>{}, traced_function([&](const std::vector<Tensor>&) { return first_state(); }, {}), 0);
    play_ = std::make_unique<ReadProgram>(
        step, types,
        traced_function(
            [&](const std::vector<Tensor>& in) {
              const ScanOutput played = scan(
                  [&](const std::vector<Tensor>& state, const std::vector<Tensor>&) {
                    const Instances::Decision d = instances.step(state, random_action(instances, state));
                    return ScanOutput{d.state, {d.episode_return, d.episode_length, instances.frame(state), d.reward, d.terminated, d.truncated}};
                  },
                  in, {iota({decisions})});
              std::vector<Tensor> all = played.carry;
              all.insert(all.end(), played.outputs.begin(), played.outputs.end());
              return all;
            },
            {}),
        carries_);
    int64_t end = 0;
    std::vector<int64_t> at;
    for (const Type& t : play_->output_types()) at.push_back(end), end += (t.bytes() + kAlignment - 1) / kAlignment * kAlignment;
    memory_.require(end);
    for (const int64_t offset : at) out_.push_back(memory_.data() + offset);
  }

  void start(uint64_t seed) { start_->run_in_place({}, {out_.data(), carries_}, seed); }
  void run(uint64_t seed, int64_t number) { play_->run_in_place(std::vector<const void*>(out_.begin(), out_.begin() + long(carries_)), out_, seed, number); }
  void wait() { device_.wait_for(device_.mark()); }
  std::vector<float> returns() const { return floats(carries_); }      // [decisions, instances], as is lengths()
  std::vector<float> lengths() const { return floats(carries_ + 1); }  // 0 where no episode ended

 private:
  std::vector<float> floats(size_t i) const {
    const int64_t bytes = play_->output_types()[i].bytes();
    std::vector<float> values(size_t(bytes) / sizeof(float));
    device_.download(values.data(), out_[i], bytes);
    return values;
  }

  Backend& device_;
  size_t carries_ = 0;
  std::unique_ptr<ReadProgram> start_, play_;
  Arena memory_;
  std::vector<void*> out_;  // states, and what the decisions gave
};

}  // namespace

std::optional<double> environment_seconds(TrainStep& step, const Instances& instances, const PpoArgs& args) try {
  constexpr int64_t kMostFrames = int64_t(8) << 20;  // bytes: a part of a rollout with larger frames is enough
  const int64_t frames = args.instances * Type{instances.spec().dtype, instances.spec().observation}.bytes();
  const int64_t decisions = std::clamp<int64_t>(kMostFrames / frames, 1, args.horizon);
  RandomPlay play(step, instances, 0, args.instances, decisions);
  play.start(args.seed);
  double shortest = std::numeric_limits<double>::infinity();
  for (int turn = 0; turn < 3; ++turn) {
    const auto begin = std::chrono::steady_clock::now();
    play.run(args.seed, turn);
    play.wait();
    if (turn > 0)  // the first turn touches the memory
      shortest = std::min(shortest, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return shortest * double(args.horizon) / double(decisions);
} catch (const Error& error) {
  if (error.code() != ErrorCode::memory) throw;
  return {};  // the run has planned its memory without this
}

PlayedEpisodes random_episodes(TrainStep& step, const Instances& instances, int64_t episodes, uint64_t seed) {
  constexpr int64_t kAtOnce = 128;  // decisions
  EnvOptions options = instances.options();
  if (options.time_limit == 0) options.time_limit = kLongestPlayed;
  const Instances players(instances.environment_pointer(), options);
  RandomPlay play(step, players, kFirstEvaluated, episodes, kAtOnce);
  play.start(seed);
  PlayedEpisodes played;
  std::vector<bool> finished(static_cast<size_t>(episodes));  // one episode of each instance
  for (int64_t chunk = 0; int64_t(played.returns.size()) < episodes; ++chunk) {
    play.run(seed, chunk);
    const std::vector<float> returns = play.returns(), lengths = play.lengths();
    for (size_t i = 0; i < lengths.size(); ++i)
      if (const size_t row = i % finished.size(); lengths[i] > 0 && !finished[row])
        finished[row] = true, played.returns.push_back(returns[i]), played.lengths.push_back(lengths[i]);
  }
  return played;
}

}  // namespace ridge
