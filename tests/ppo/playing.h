// A collector and everything behind it, without a run.
#pragma once
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "io/safetensors.h"
#include "step/compiled_step.h"
#include "tasks/ppo/ppo.h"

namespace ridge {

// On the CPU.
struct Playing {
  Playing(const std::string& environment, PolicyArgs policy_args, const PpoArgs& given, EnvOptions options = {}, bool on_device = false,
          Precision precision = Precision::fp32)
      : args(given), instances(make_environment(environment), options) {
    seed(args.seed);
    policy_args.observation = instances.observation_shape(), policy_args.dtype = instances.spec().dtype, policy_args.actions = instances.spec().actions;
    policy = std::make_shared<Policy>(policy_args);
    const std::vector<NamedTensor> weights = parameters(*policy);
    for (const NamedTensor& w : weights) tensors.push_back(*w.tensor);
    const Step learnt(weights, adam({.lr = 1e-2}), [this](const std::vector<Tensor>& batch) { return ppo_loss(*policy, args, batch); });
    StepOptions o;
    o.evaluation = false, o.precision = precision;
    held = compile_step(learnt, ppo_batch(*policy, args), o, step_device("cpu"));
    for (size_t i = 0; i < weights.size(); ++i)
      held->step.write(TrainStep::Held::parameter, i, {static_cast<const float*>(weights[i].tensor->data()), size_t(weights[i].tensor->size())});
    collector = std::make_unique<Collector>(held->step, policy, tensors, instances, args, on_device);
    collector->begin();
  }
  std::vector<Tensor> batch(int64_t step) {
    const BatchFeed::Batch b = collector->next(step);
    std::vector<Tensor> tensors;
    const std::vector<BatchSpec> specs = ppo_batch(*policy, args);
    for (size_t i = 0; i < specs.size(); ++i) tensors.push_back(Tensor::from_bytes(specs[i].shape, specs[i].dtype, b.tensors[i]));
    return tensors;
  }

  // How far the log-probabilities and values that the learner would find in a minibatch are from the stored ones, in the step's number format.
  std::array<float, 2> learner_apart(const std::vector<Tensor>& batch) {
    if (!learner) {
      std::vector<Type> types;
      for (const Tensor& t : batch) types.push_back({t.dtype(), t.shape()});
      learner = std::make_unique<ReadProgram>(
          held->step, types,
          traced_function(
              [this](const std::vector<Tensor>& b) {
                const Policy::Output out = policy->has_memory() ? policy->sequence(b[0], {b.begin() + 8, b.end()}, b[7]) : policy->sequence(b[0], {}, {});
                auto apart = [&](const Tensor& now, const Tensor& stored) { return max(abs(now - reshape(stored, {args.minibatch}))); };
                Shape actions{args.minibatch};
                if (b[1].shape().rank() == 3) actions.push_back(b[1].shape()[2]);
                return std::vector<Tensor>{apart(policy->log_probability(out.distribution, reshape(b[1], actions)), b[2]), apart(out.value, b[3])};
              },
              tensors));
    }
    std::vector<const void*> in;
    for (const Tensor& t : batch) in.push_back(t.data());
    std::array<float, 2> apart;
    void* out[] = {&apart[0], &apart[1]};
    learner->run(in, out);
    return apart;
  }

  PpoArgs args;
  Instances instances;
  std::shared_ptr<Policy> policy;
  std::vector<Tensor> tensors;
  std::shared_ptr<CompiledStep::State> held;
  std::unique_ptr<ReadProgram> learner;
  std::unique_ptr<Collector> collector;
};

inline PpoArgs small_ppo() {
  PpoArgs a;
  a.instances = 6, a.horizon = 32, a.minibatch = 64, a.epochs = 2, a.seed = 5, a.iterations = 4;
  return a;
}

// Into another collector, through a file as a checkpoint does.
inline void hand_over(const Collector& from, Collector& to, const std::string& path) {
  const std::vector<StateTensor> state = from.save();
  std::vector<SafetensorView> views;
  for (const StateTensor& t : state) views.push_back({t.name, t.dtype, t.shape, t.data});
  write_safetensors(path, views);
  to.restore(SafetensorsFile(path));
}

}  // namespace ridge
