// How long an environment takes without a policy.
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

}  // namespace

double environment_seconds(TrainStep& step, const Instances& instances, const PpoArgs& args) {
  const int64_t rows = args.instances;
  std::vector<Type> types, outputs;
  for (const Tensor& t : instances.start(iota({rows}))) types.push_back({t.dtype(), t.shape()});
  ReadProgram start(step, {}, traced_function([&](const std::vector<Tensor>&) { return instances.start(iota({rows})); }, {}));
  ReadProgram play(step, types,
                   traced_function(
                       [&](const std::vector<Tensor>& in) {
                         const ScanOutput played = scan(
                             [&](const std::vector<Tensor>& state, const std::vector<Tensor>&) {
                               const Instances::Decision d = instances.step(state, random_action(instances, state));
                               return ScanOutput{d.state, {instances.frame(state), d.reward, d.terminated, d.truncated, d.episode_return, d.episode_length}};
                             },
                             in, {iota({args.horizon})});
                         std::vector<Tensor> all = played.carry;
                         all.insert(all.end(), played.outputs.begin(), played.outputs.end());
                         outputs.clear();
                         for (const Tensor& t : all) outputs.push_back({t.dtype(), t.shape()});
                         return all;
                       },
                       {}));
  std::vector<std::vector<std::byte>> memory;
  std::vector<void*> out;
  for (const Type& t : outputs) out.push_back(memory.emplace_back(size_t(t.bytes())).data());
  start.run({}, {out.data(), types.size()}, args.seed);
  const std::vector<const void*> in(out.begin(), out.begin() + long(types.size()));
  double seconds = 0;
  for (int turn = 0; turn < 2; ++turn) {  // the first turn touches the memory
    const auto begin = std::chrono::steady_clock::now();
    play.run(in, out, args.seed, turn);
    seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  return seconds;
}

}  // namespace ridge
