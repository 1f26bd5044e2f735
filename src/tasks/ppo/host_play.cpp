#include "tasks/ppo/host_play.h"

#include <chrono>
#include <cstring>

#include "base/error.h"
#include "measure/default_team.h"
#include "step/compiled_step.h"
#include "tasks/ppo/scales.h"

namespace ridge {
namespace {

using HostClock = std::chrono::steady_clock;

// Something of an observation's type that depends on it and on the actions, for a loop to carry.
Tensor follow(const Tensor& observation, const Tensor& action) {
  const int64_t rows = observation.shape()[0];
  Shape each = Shape::filled(observation.shape().rank(), 1);
  each[0] = rows;
  const Tensor any = max(reshape(cast(action, DType::f32), {rows, -1}), {1}) > 0;
  return where(reshape(any, each), observation, full({}, 0, observation.dtype()));
}

}  // namespace

HostPlay::HostPlay(TrainStep& step, std::shared_ptr<const Policy> policy, std::span<const Tensor> weights, const Instances& instances, bool normalized,
                   int64_t rows, bool sampled)
    : policy_(std::move(policy)), instances_(instances, rows), rows_(rows), stack_(instances.options().stack) {
  const EnvSpec& spec = instances.spec();
  bounds_ = spec.actions.kind == ActionSpace::Kind::continuous;
  Shape observation = instances.observation_shape();
  observation.insert(0, rows);
  const Type numbers{DType::i64, {rows}};
  std::vector<Type> inputs = {{spec.dtype, observation}, numbers, numbers};
  for (const Tensor& t : policy_->zero_state(rows)) inputs.push_back({t.dtype(), t.shape()}), memory_.emplace_back(size_t(t.size()));
  const size_t scales_at = inputs.size();
  const int64_t width = spec.observation.numel();
  if (normalized) inputs.insert(inputs.end(), 2, {DType::f32, {width}});
  inputs.push_back({DType::f32, {2}});
  // A loop of one step: the compiler then does what it does in the rollout of tensor code, and the bits are the same. All inputs that change from decision to
  // decision are carried, as they are there, or their products would be computed before the loop.
  auto act = [this, scales_at, normalized, sampled](const std::vector<Tensor>& in) {
    Scales scales;
    size_t at = scales_at;
    if (normalized) scales.shift = in[at++], scales.scale = in[at++];
    scales.value = in[at];
    const ScanOutput acted = scan(
        [&](const std::vector<Tensor>& carry, const std::vector<Tensor>&) {
          const Policy::Output out = policy_->step(scales.observation(carry[0]), {carry.begin() + 3, carry.end()});
          const Tensor action = sampled ? policy_->sample(out.distribution, carry[1], carry[2]) : policy_->most_likely(out.distribution);
          ScanOutput next{carry, {action, policy_->log_probability(out.distribution, action), scales.real_value(out.value)}};
          if (bounds_) next.outputs.push_back(policy_->for_environment(action));
          next.carry[0] = follow(carry[0], action), next.carry[1] = next.carry[1] + Tensor(1, DType::i64);
          std::ranges::copy(out.state, next.carry.begin() + 3);
          return next;
        },
        {in.begin(), in.begin() + long(scales_at)}, {iota({1})});
    std::vector<Tensor> all = acted.outputs;
    all.insert(all.end(), acted.carry.begin() + 3, acted.carry.end());
    return all;
  };
  act_ = std::make_unique<ReadProgram>(step, inputs, traced_function(act, weights));
  const auto n = size_t(rows);
  action_.resize(n * size_t(spec.actions.components()) * (bounds_ ? sizeof(float) : sizeof(int64_t)));
  if (bounds_) played_.resize(action_.size());
  if (stack_ > 1) stacked_.resize(n * size_t(stack_ * instances_.frame_bytes()));
  log_p_.resize(n), value_.resize(n), terminated_.resize(n), truncated_.resize(n);
}

HostPlay::~HostPlay() = default;

void HostPlay::start(uint64_t seed, int64_t first) {
  seed_ = seed;
  instances_.start(default_team(), seed, first);
  for (std::vector<float>& m : memory_) std::ranges::fill(m, 0.0f);
  stack_frames();
}

// Moves the frames of every instance on by one, and fills the stack of an episode that has just begun. `only_new`: does nothing but that.
void HostPlay::stack_frames(bool only_new) {
  if (stack_ == 1) return;
  const auto frame = size_t(instances_.frame_bytes()), stack = size_t(stack_);
  for (size_t i = 0; i < size_t(rows_); ++i) {
    std::byte* to = stacked_.data() + i * stack * frame;
    const std::byte* newest = instances_.frames() + i * frame;
    if (only_new && instances_.age()[i] > 0) continue;
    std::memmove(to, to + frame, (stack - 1) * frame);
    for (size_t k = instances_.age()[i] == 0 ? 0 : stack - 1; k < stack; ++k) std::memcpy(to + k * frame, newest, frame);
  }
}

void HostPlay::act(std::span<const void* const> scales, const Record& record) {
  std::vector<const void*> in = {seen(), instances_.counter().data(), instances_.instance().data()};
  std::vector<void*> out = {action_.data(), record.log_p ? record.log_p : log_p_.data(), record.value ? record.value : value_.data()};
  for (const std::vector<float>& m : memory_) in.push_back(m.data());
  in.insert(in.end(), scales.begin(), scales.end());
  if (bounds_) out.push_back(played_.data());
  for (std::vector<float>& m : memory_) out.push_back(m.data());
  act_->run(in, out, seed_);
}

void HostPlay::decide(std::span<const void* const> scales, const Record& record) {
  act(scales, record);
  const std::vector<std::byte>& played = bounds_ ? played_ : action_;
  if (record.action) std::memcpy(record.action, action_.data(), action_.size());
  if (record.played) std::memcpy(record.played, played.data(), played.size());
  for (size_t m = 0; m < record.states.size(); ++m) std::ranges::copy(memory_[m], record.states[m]);
  HostInstances::Results results = record;
  if (!results.terminated) results.terminated = terminated_.data();
  if (!results.truncated) results.truncated = truncated_.data();
  const HostClock::time_point start = HostClock::now();
  instances_.decide(default_team(), 0, rows_, played.data(), results);
  environment_seconds_ += std::chrono::duration<double>(HostClock::now() - start).count();
  for (std::vector<float>& m : memory_) {
    const size_t width = m.size() / size_t(rows_);
    for (size_t i = 0; i < size_t(rows_); ++i)
      if (results.terminated[i] != std::byte(0) || results.truncated[i] != std::byte(0)) std::fill_n(m.begin() + long(i * width), width, 0.0f);
  }
  stack_frames();
}

void HostPlay::look_ahead(std::span<const void* const> scales, float* value) {
  const std::vector<std::vector<float>> memory = memory_;
  Record record;
  record.value = value;
  act(scales, record);
  memory_ = memory;
}

void HostPlay::roll_out(std::span<const void* const> inputs, std::span<void* const> outputs, int64_t horizon, const Outputs& has) {
  for (size_t m = 0; m < memory_.size(); ++m) std::memcpy(memory_[m].data(), inputs[m], memory_[m].size() * sizeof(float));
  const std::span<const void* const> scales = inputs.subspan(memory_.size());
  const std::span<void* const> given = outputs.subspan(memory_.size() + 1);
  for (int64_t t = 0; t < horizon; ++t) {
    size_t at = 0;
    auto next = [&]<class T>(T*, int64_t elements) { return static_cast<T*>(given[at++]) + t * elements; };
    auto bytes = [&](int64_t each) { return next(static_cast<std::byte*>(nullptr), rows_ * each); };
    auto numbers = [&] { return next(static_cast<float*>(nullptr), rows_); };
    std::memcpy(bytes(instances_.frame_bytes()), instances_.frames(), size_t(rows_ * instances_.frame_bytes()));
    Record r;
    r.action = bytes(int64_t(action_.size()) / rows_), r.log_p = numbers(), r.value = numbers(), r.reward = numbers();
    r.terminated = bytes(1), r.truncated = bytes(1), r.episode_return = numbers(), r.episode_length = numbers();
    if (has.stacked) std::ranges::copy(instances_.age(), next(static_cast<int64_t*>(nullptr), rows_));
    if (has.bounded) r.final_frame = bytes(instances_.frame_bytes());
    if (has.discounted) r.discounted = numbers();
    for (const std::vector<float>& m : memory_) r.states.push_back(next(static_cast<float*>(nullptr), int64_t(m.size())));
    decide(scales, r);
  }
  for (size_t m = 0; m < memory_.size(); ++m) std::memcpy(outputs[m], memory_[m].data(), memory_[m].size() * sizeof(float));
  look_ahead(scales, static_cast<float*>(outputs[memory_.size()]));
}

std::vector<StateTensor> HostPlay::save() const {
  const HostInstances::Saved saved = instances_.save();
  auto numbers = [](const char* name, const std::vector<int64_t>& v) {
    const auto* bytes = reinterpret_cast<const std::byte*>(v.data());
    return StateTensor{name, DType::i64, {int64_t(v.size())}, {bytes, bytes + v.size() * sizeof(int64_t)}};
  };
  std::vector<StateTensor> state = {
      numbers("host.wrapper", saved.wrapper), numbers("host.sizes", saved.sizes), {"host.states", DType::u8, {int64_t(saved.states.size())}, saved.states}};
  if (stack_ > 1) state.push_back({"host.seen", DType::u8, {int64_t(stacked_.size())}, stacked_});
  return state;
}

void HostPlay::restore(const SafetensorsFile& file, uint64_t seed) {
  auto read = [&](const char* name, auto& values, int64_t expected) {  // expected: elements; -1: any number
    const SafetensorView& view = file.at(name);
    const size_t each = sizeof values[0];
    if (expected >= 0 && view.data.size() != size_t(expected) * each)
      fail(ErrorCode::io, "[resume] {} of the checkpoint's state has {} bytes instead of {}: it was made with other settings", name, view.data.size(),
           size_t(expected) * each);
    values.resize(view.data.size() / each);
    std::memcpy(values.data(), view.data.data(), values.size() * each);
  };
  HostInstances::Saved saved;
  read("host.wrapper", saved.wrapper, rows_ * HostInstances::kWrapper), read("host.sizes", saved.sizes, rows_), read("host.states", saved.states, -1);
  seed_ = seed;
  instances_.restore(default_team(), seed, saved);
  if (stack_ == 1) return;
  read("host.seen", stacked_, int64_t(stacked_.size()));
  stack_frames(true);
}

int64_t HostPlay::bytes() const { return act_->bytes() + int64_t(stacked_.size()) + 2 * rows_ * instances_.frame_bytes(); }

}  // namespace ridge
