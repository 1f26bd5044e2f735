// Environments without a policy: how long they take, and how random actions score.
#include <chrono>

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

// Random actions in all instances, some decisions at a time.
class RandomPlay {
 public:
  RandomPlay(TrainStep& step, const Instances& instances, int64_t first, int64_t rows, int64_t decisions) {
    auto first_state = [&] { return instances.start(iota({rows}) + Tensor(double(first), DType::i64)); };
    std::vector<Type> types, outputs;
    for (const Tensor& t : first_state()) types.push_back({t.dtype(), t.shape()});
    carries_ = types.size();
    start_ = std::make_unique<ReadProgram>(step, std::vector<Type>{}, traced_function([&](const std::vector<Tensor>&) { return first_state(); }, {}));
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
              outputs.clear();
              for (const Tensor& t : all) outputs.push_back({t.dtype(), t.shape()});
              return all;
            },
            {}));
    for (const Type& t : outputs) out_.push_back(memory_.emplace_back(size_t(t.bytes())).data());
  }

  void start(uint64_t seed) { start_->run({}, {out_.data(), carries_}, seed); }
  void run(uint64_t seed, int64_t number) { play_->run(std::vector<const void*>(out_.begin(), out_.begin() + long(carries_)), out_, seed, number); }
  std::span<const float> returns() const { return floats(carries_); }      // [decisions, instances], as is lengths()
  std::span<const float> lengths() const { return floats(carries_ + 1); }  // 0 where no episode ended

 private:
  std::span<const float> floats(size_t i) const { return {reinterpret_cast<const float*>(memory_[i].data()), memory_[i].size() / sizeof(float)}; }

  size_t carries_ = 0;
  std::unique_ptr<ReadProgram> start_, play_;
  std::vector<std::vector<std::byte>> memory_;
  std::vector<void*> out_;
};

}  // namespace

double environment_seconds(TrainStep& step, const Instances& instances, const PpoArgs& args) {
  RandomPlay play(step, instances, 0, args.instances, args.horizon);
  play.start(args.seed);
  double seconds = 0;
  for (int turn = 0; turn < 2; ++turn) {  // the first turn touches the memory
    const auto begin = std::chrono::steady_clock::now();
    play.run(args.seed, turn);
    seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  return seconds;
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
    for (size_t i = 0; i < play.lengths().size(); ++i)
      if (const size_t row = i % finished.size(); play.lengths()[i] > 0 && !finished[row])
        finished[row] = true, played.returns.push_back(play.returns()[i]), played.lengths.push_back(play.lengths()[i]);
  }
  return played;
}

}  // namespace ridge
