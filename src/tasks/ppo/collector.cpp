// Rollouts: the policy plays all instances in one program, and what it did becomes minibatches.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "base/rng.h"
#include "measure/default_team.h"
#include "step/compiled_step.h"
#include "tasks/ppo/collector_parts.h"
#include "tasks/ppo/device_rollout.h"
#include "tasks/ppo/host_play.h"
#include "tasks/ppo/kl_control.h"
#include "tasks/ppo/rollout.h"
#include "threads/each_range.h"

namespace ridge {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

using Bytes = std::vector<std::byte>;

constexpr uint32_t kOrderStream = 0x504F;        // of the permutations; its seed is not that of the draws
constexpr size_t kFigures = 4;                   // numbers of a record
constexpr int64_t kRolloutsBetweenRequests = 4;  // of validations
constexpr int64_t kFetchedAhead = 8;             // records

// 0 … n - 1 in an order that depends on the key alone.
void shuffle(RandomKey key, std::span<uint32_t> order) {
  std::iota(order.begin(), order.end(), 0u);
  for (size_t left = order.size(); left > 1;) {
    const auto words = philox(key, left / 4);  // random_word() of four numbers
    do {
      std::swap(order[left - 1], order[uint64_t(words[left % 4]) * left >> 32]);
      --left;
    } while (left > 1 && left % 4 != 3);
  }
}

// The sum of f(0) … f(n - 1), in an order of additions that depends on n alone and leaves room for vectors.
template <class F>
double sum_of(int64_t n, const F& f) {
  double lanes[8] = {}, total = 0;
  int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    for (int64_t k = 0; k < 8; ++k) lanes[k] += f(i + k);
  for (; i < n; ++i) total += f(i);
  for (double lane : lanes) total += lane;
  return total;
}

Shape with_front(std::initializer_list<int64_t> front, const Shape& shape) {
  std::vector<int64_t> all(front);
  all.insert(all.end(), shape.begin(), shape.end());
  return Shape(all);
}

}  // namespace

Collector::Collector(TrainStep& step, std::shared_ptr<const Policy> policy, std::span<const Tensor> weights, const Instances& instances, const PpoArgs& args,
                     std::optional<bool> on_device)
    : step_(step),
      policy_(std::move(policy)),
      instances_(instances),
      args_(args),
      weights_(weights.begin(), weights.end()),
      programs_(std::make_unique<Programs>()),
      buffers_(std::make_unique<Buffers>()),
      observations_(size_t(instances.spec().observation.numel())),
      score_(args.instances) {
  const int64_t E = args_.instances, T = args_.horizon;
  const EnvSpec& spec = instances_.spec();
  Programs& p = *programs_;
  Buffers& b = *buffers_;
  const std::vector<std::string>& scalars = step_.scalars();
  kl_at_ = size_t(std::ranges::find(scalars, "kl") - scalars.begin());
  b.stack = instances_.options().stack;
  const bool bounded = instances_.may_truncate(), normalized = args_.normalize_observations, on_host = instances_.on_host();
  if (normalized && (spec.dtype != DType::f32 || b.stack > 1))
    fail(ErrorCode::usage, "[ppo] normalize_observations=true needs observations that are numbers and not stacked; leave it out, or set frame_stack=1");

  if (!on_host)
    for (const Tensor& t : instances_.start(iota({E}))) p.carry.push_back(type_of(t));
  p.environment = p.carry.size();
  for (const Tensor& t : policy_->zero_state(E)) p.carry.push_back(type_of(t));
  if (!on_host)
    p.start = std::make_unique<ReadProgram>(step_, std::vector<Type>{},
                                            traced_function([this, E](const std::vector<Tensor>&) { return instances_.start(iota({E})); }, weights_));

  make_player(true);
  if (!on_host && on_device.value_or(!step_.in_place())) {
    device_ = std::make_unique<DeviceRollout>(step_, policy_, weights_, instances_, args_, p.carry, p.environment);
    return;
  }

  std::vector<Type> inputs = p.carry;
  const int64_t width = spec.observation.numel();
  if (normalized) inputs.push_back({DType::f32, {width}}), inputs.push_back({DType::f32, {width}});
  inputs.push_back({DType::f32, {2}});
  auto scales_of = [normalized](const std::vector<Tensor>& in, size_t at) {
    Scales s;
    if (normalized) s.shift = in[at++], s.scale = in[at++];
    s.value = in[at];
    return s;
  };
  const auto outputs = std::make_shared<std::vector<Type>>();
  if (on_host)
    p.host = std::make_unique<HostPlay>(step_, policy_, weights_, instances_, normalized, E, true, args_.halves), *outputs = host_outputs();
  else
    p.rollout = std::make_unique<ReadProgram>(
        step_, inputs,
        traced_function(
            [=, this](const std::vector<Tensor>& in) {
              const size_t carries = programs_->carry.size();
              const std::vector<Tensor> results = roll_out(*policy_, instances_, args_, scales_of(in, carries), {in.data(), carries}, programs_->environment);
              outputs->clear();
              for (const Tensor& t : results) outputs->push_back(type_of(t));
              return results;
            },
            weights_));
  p.outputs = *outputs;

  std::vector<Type> seen = {{spec.dtype, with_front({E}, instances_.observation_shape())}};
  seen.insert(seen.end(), p.carry.begin() + long(p.environment), p.carry.end());
  const size_t scales_at = seen.size();
  seen.insert(seen.end(), inputs.begin() + long(p.carry.size()), inputs.end());
  if (bounded)
    p.value = std::make_unique<ReadProgram>(step_, seen,
                                            traced_function(
                                                [=, this](const std::vector<Tensor>& in) {
                                                  const Scales scales = scales_of(in, scales_at);
                                                  const std::vector<Tensor> memory(in.begin() + 1, in.begin() + long(scales_at));
                                                  return std::vector<Tensor>{scales.real_value(policy_->step(scales.observation(in[0]), memory).value)};
                                                },
                                                weights_));
  const Type number{DType::f32, {T, E}}, flag{DType::boolean, {T, E}};
  p.advantages = std::make_unique<ReadProgram>(step_, std::vector<Type>{number, number, flag, flag, number, {DType::f32, {E}}},
                                               traced_function(
                                                   [this](const std::vector<Tensor>& in) {
                                                     const auto [advantage, goal] =
                                                         ridge::advantages(in[0], in[1], in[2], in[3], in[4], in[5], args_.gamma, args_.lambda);
                                                     return std::vector<Tensor>{advantage, goal};
                                                   },
                                                   weights_));
}

void Collector::begin() {
  const int64_t E = args_.instances, T = args_.horizon, width = instances_.spec().observation.numel();
  const EnvSpec& spec = instances_.spec();
  const Programs& p = *programs_;
  Buffers& b = *buffers_;
  const bool bounded = p.value != nullptr;
  const size_t n = size_t(T * E);
  for (const Type& t : p.carry) b.carry.emplace_back(size_t(t.bytes()));
  b.frame_bytes = Type{spec.dtype, spec.observation}.bytes();
  b.shift.resize(size_t(width)), b.scale.resize(size_t(width));
  use_statistics();
  std::vector<void*> first;
  for (size_t i = 0; i < p.environment; ++i) first.push_back(b.carry[i].data());
  p.host ? p.host->start(args_.seed, 0) : p.start->run({}, first, args_.seed);
  if (device_) {
    b.frames.resize(size_t((b.stack - 1) * E * b.frame_bytes));
    return device_->write_state(b.carry, b.frames);
  }
  b.frames.resize(size_t((b.stack - 1 + T) * E * b.frame_bytes));
  b.action_bytes = ppo_batch(*policy_, args_)[1].dtype == DType::f32 ? 4 * spec.actions.components() : 8 * spec.actions.components();
  b.action.resize(n * size_t(b.action_bytes));
  for (auto* numbers : {&b.log_p, &b.value, &b.reward, &b.episode_return, &b.episode_length, &b.final_value, &b.advantage, &b.goal}) numbers->resize(n);
  b.terminated.resize(n), b.truncated.resize(n), b.last_value.resize(size_t(E));
  if (b.stack > 1) b.age.resize(n);
  if (bounded) b.final_frame.resize(n * size_t(b.frame_bytes));
  if (args_.scale_rewards) b.discounted.resize(n);
  for (size_t i = p.environment; i < p.carry.size(); ++i) b.states.emplace_back(n * size_t(p.carry[i].shape.numel() / E));
  b.order.resize(size_t(args_.epochs * (args_.decisions() / args_.segment)));
  b.record_bytes = record_bytes();
  b.records.resize(n * size_t(b.record_bytes));
  for (const BatchSpec& s : ppo_batch(*policy_, args_)) b.batch.emplace_back(size_t(Type{s.dtype, s.shape}.bytes()));
  for (const Bytes& t : b.batch) b.batch_data.push_back(t.data());
}

Collector::~Collector() = default;

std::span<const std::string> Collector::scalar_names() const {
  static const std::vector<std::string> names = {"score", "length", "explained", "playing", "learning", "environment"};
  return names;
}

std::vector<const void*> Collector::program_inputs(const std::vector<Bytes>& carry) const {
  std::vector<const void*> in;
  for (const Bytes& c : carry) in.push_back(c.data());
  if (args_.normalize_observations) in.push_back(buffers_->shift.data()), in.push_back(buffers_->scale.data());
  in.push_back(buffers_->value_scale);
  return in;
}

void Collector::measure_environment() {
  constexpr double kPatience = 40;  // rollouts; it takes a few
  if (!measure_environment_after || environment_measured_ || instances_.on_host() || times_.rollouts == 0) return;
  if (seconds_since(begun_) < std::max(*measure_environment_after, kPatience * times_.playing / double(times_.rollouts))) return;
  environment_seconds_ = environment_seconds(step_, instances_, args_), environment_measured_ = true;
}

void Collector::collect() {
  measure_environment();
  Buffers& b = *buffers_;
  const Clock::time_point start = Clock::now();
  if (begun_ == Clock::time_point{}) begun_ = start;
  const int64_t older = (b.stack - 1) * args_.instances * b.frame_bytes;
  std::memmove(b.frames.data(), b.frames.data() + int64_t(b.frames.size()) - older, size_t(older));
  std::vector<void*> out;
  for (Bytes& c : b.carry) out.push_back(c.data());
  out.push_back(b.last_value.data());
  out.insert(out.end(), {b.frames.data() + older, b.action.data(), b.log_p.data(), b.value.data(), b.reward.data(), b.terminated.data(), b.truncated.data(),
                         b.episode_return.data(), b.episode_length.data()});
  if (b.stack > 1) out.push_back(b.age.data());
  if (!b.final_frame.empty()) out.push_back(b.final_frame.data());
  if (args_.scale_rewards) out.push_back(b.discounted.data());
  for (std::vector<float>& s : b.states) out.push_back(s.data());
  b.first_states.assign(b.carry.begin() + long(programs_->environment), b.carry.end());
  if (programs_->host)
    programs_->host->roll_out(program_inputs(b.carry), out, args_.horizon, {b.stack > 1, !b.final_frame.empty(), args_.scale_rewards});
  else
    programs_->rollout->run(program_inputs(b.carry), out, args_.seed, rollouts_);
  ++rollouts_, ++times_.rollouts;
  const Clock::time_point played = Clock::now();
  times_.playing += std::chrono::duration<double>(played - start).count();
  if (programs_->host) times_.environment = programs_->host->environment_seconds();
  if (environment_seconds_) times_.environment = std::min(times_.playing, *environment_seconds_ * double(times_.rollouts));

  find_final_values();
  if (args_.scale_rewards) {
    const float factor = float(1 / std::sqrt(returns_.variance[0] + 1e-8));
    for (float& r : b.reward) r *= factor;
  }
  const void* in[] = {b.reward.data(), b.value.data(), b.terminated.data(), b.truncated.data(), b.final_value.data(), b.last_value.data()};
  void* results[] = {b.advantage.data(), b.goal.data()};
  programs_->advantages->run(in, results);
  count_episodes();
  times_.advantages += seconds_since(played);
  const Clock::time_point packing = Clock::now();
  pack_records();
  times_.preparing += seconds_since(packing);
  kl_ = {kl_.factor, 0, 0, 0, 0};
}

double Collector::rollout_seconds() {
  constexpr double kEnough = 0.2;
  auto collect_once = [&] { device_ ? collect_on_device(0) : collect(); };
  begin();
  collect_once();  // touches the memory
  double shortest = std::numeric_limits<double>::infinity();
  const Clock::time_point start = Clock::now();
  do {
    const Clock::time_point now = Clock::now();
    collect_once();
    shortest = std::min(shortest, seconds_since(now));
  } while (seconds_since(start) < kEnough);
  return shortest;
}

void Collector::collect_on_device(int64_t step) {
  measure_environment();
  const Buffers& b = *buffers_;
  const Clock::time_point start = Clock::now();
  if (begun_ == Clock::time_point{}) begun_ = start;
  DeviceRollout::Given given{b.shift, b.scale, b.value_scale, float(1 / std::sqrt(returns_.variance[0] + 1e-8)), float(kl_.factor), 0, {}};
  for (int64_t i = 0; i < args_.updates(); ++i) given.rates.push_back(float(rate_scale * (schedule ? schedule(step + i) : step_.options().optimizer.lr)));
  ++rollouts_, ++times_.rollouts;
  given.entropy = entropy_weight();
  const DeviceRollout::Results r = device_->collect(given);
  times_.playing += seconds_since(start);
  if (environment_seconds_) times_.environment = std::min(times_.playing, *environment_seconds_ * double(times_.rollouts));
  for (size_t i = 0; i < r.episode_length.size(); ++i)
    if (r.episode_length[i] > 0) score_.add(int64_t(i) % args_.instances, r.episode_return[i], r.episode_length[i]);
  finish_scalars(double(r.advantage.squares[0]), double(r.goal.squares[0]));
  const double n = double(args_.decisions());
  if (args_.normalize_observations) observations_.merge(n, r.observation.mean, r.observation.squares);
  if (args_.normalize_values) values_.merge(n, r.goal.mean, r.goal.squares);
  if (args_.scale_rewards) returns_.merge(n, r.discounted.mean, r.discounted.squares);
}

// Values of the last observations of truncated episodes, as many at a time as there are instances.
void Collector::find_final_values() {
  Buffers& b = *buffers_;
  if (!programs_->value) return;
  const int64_t E = args_.instances;
  std::vector<int64_t> rows;
  for (size_t i = 0; i < b.truncated.size(); ++i)
    if (b.truncated[i] != std::byte(0)) rows.push_back(int64_t(i));
  if (rows.empty()) return;
  const int64_t bytes = b.frame_bytes * b.stack;
  Bytes seen(size_t(E * bytes));
  std::vector<Bytes> memory;
  for (size_t i = programs_->environment; i < programs_->carry.size(); ++i) memory.emplace_back(size_t(programs_->carry[i].bytes()));
  std::vector<float> value(static_cast<size_t>(E));
  for (size_t first = 0; first < rows.size(); first += size_t(E)) {
    const size_t count = std::min(rows.size() - first, size_t(E));
    for (size_t k = 0; k < count; ++k) {
      const int64_t t = rows[first + k] / E, e = rows[first + k] % E;
      copy_observation(t, e, true, seen.data() + int64_t(k) * bytes);
      for (size_t m = 0; m < memory.size(); ++m) {
        const size_t row = memory[m].size() / size_t(E);
        std::memcpy(memory[m].data() + k * row, reinterpret_cast<const std::byte*>(b.states[m].data()) + size_t(rows[first + k]) * row, row);
      }
    }
    std::vector<const void*> in = {seen.data()};
    for (const Bytes& m : memory) in.push_back(m.data());
    const std::vector<const void*> scales = program_inputs({});
    in.insert(in.end(), scales.begin(), scales.end());
    void* out[] = {value.data()};
    programs_->value->run(in, out);
    for (size_t k = 0; k < count; ++k) b.final_value[size_t(rows[first + k])] = value[k];
  }
}

// The observation of a decision as the policy sees it, before normalisation: oldest frame first. `final`: what the decision led to, if that ended the episode.
void Collector::copy_observation(int64_t t, int64_t e, bool final, std::byte* to) const {
  const Buffers& b = *buffers_;
  const int64_t E = args_.instances, row = t * E + e, older = b.stack - 1;
  auto frame = [&](int64_t time) { return b.frames.data() + ((older + time) * E + e) * b.frame_bytes; };
  for (int64_t k = 0; k < b.stack; ++k, to += b.frame_bytes) {  // `ago` frames before the newest
    const int64_t ago = older - k;
    const std::byte* from;
    if (final)
      from = ago == 0 ? b.final_frame.data() + row * b.frame_bytes : frame(t - std::min(ago - 1, b.age[size_t(row)]));
    else
      from = frame(ago == 0 ? t : t - std::min(ago, b.age[size_t(row)]));
    std::memcpy(to, from, size_t(b.frame_bytes));
  }
}

void Collector::count_episodes() {
  const Buffers& b = *buffers_;
  const int64_t E = args_.instances;
  for (size_t i = 0; i < b.goal.size(); ++i)
    if (b.episode_length[i] > 0) score_.add(int64_t(i) % E, b.episode_return[i], b.episode_length[i]);
  auto squares_of = [](const std::vector<float>& x) {  // of distances from the mean
    const auto n = int64_t(x.size());
    const double mean = sum_of(n, [&](int64_t i) { return double(x[size_t(i)]); }) / double(n);
    return sum_of(n, [&](int64_t i) { return (double(x[size_t(i)]) - mean) * (double(x[size_t(i)]) - mean); });
  };
  finish_scalars(squares_of(b.advantage), squares_of(b.goal));
}

// error, spread: sums of squares of the values' errors and of the values to learn
void Collector::finish_scalars(double error, double spread) {
  const double whole = seconds_since(begun_);
  constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  scalars_ = {score_.score().value_or(kUnknown),
              score_.length().value_or(kUnknown),
              spread > 0 ? 1 - error / spread : std::numeric_limits<double>::quiet_NaN(),
              times_.playing / whole,
              times_.learning / whole,
              times_.environment ? *times_.environment / whole : kUnknown};
}

// Statistics stay the same from a rollout to its last update; what it adds counts from the next one on.
void Collector::update_statistics() {
  Buffers& b = *buffers_;
  if (device_) return use_statistics();  // they came with the rollout
  if (args_.normalize_observations) {
    const size_t n = size_t(args_.decisions() * b.frame_bytes);
    observations_.add({reinterpret_cast<const float*>(b.frames.data() + (b.frames.size() - n)), n / sizeof(float)});
  }
  if (args_.normalize_values) values_.add(b.goal);
  if (args_.scale_rewards) returns_.add(b.discounted);
  use_statistics();
}

// Minibatches pick decisions at random: what belongs to one is brought together first, as the learner reads it.
void Collector::pack_records() {
  Buffers& b = *buffers_;
  const float value_mean = b.value_scale[0], value_factor = 1 / b.value_scale[1];
  const size_t width = b.shift.size();
  constexpr auto kMost = float(kLargestObservation);
  auto pack = [&](size_t i, std::byte* to) {
    const float figures[kFigures] = {b.log_p[i], (b.value[i] - value_mean) * value_factor, b.advantage[i], (b.goal[i] - value_mean) * value_factor};
    std::memcpy(to, figures, sizeof figures);
    std::memcpy(to + sizeof figures, b.action.data() + i * size_t(b.action_bytes), size_t(b.action_bytes));
    if (b.stack > 1) return;
    const std::byte* seen = b.frames.data() + i * size_t(b.frame_bytes);
    std::byte* observation = to + sizeof figures + b.action_bytes;
    if (!args_.normalize_observations) {
      std::memcpy(observation, seen, size_t(b.frame_bytes));
      return;
    }
    for (size_t k = 0; k < width; ++k) {
      float x;
      std::memcpy(&x, seen + k * sizeof x, sizeof x);
      x = std::clamp((x - b.shift[k]) * b.scale[k], -kMost, kMost);
      std::memcpy(observation + k * sizeof x, &x, sizeof x);
    }
  };
  each_range(default_team(), 0, args_.decisions(), double(b.record_bytes) / 8, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) pack(size_t(i), b.records.data() + i * b.record_bytes);
  });
}

float Collector::entropy_weight() const {
  const double done = double(rollouts_ - 1) / double(std::max<int64_t>(1, args_.iterations - 1));
  return float(args_.entropy + (args_.final_entropy.value_or(args_.entropy) - args_.entropy) * std::min(done, 1.0));
}

void Collector::fill_minibatch(int64_t epoch, int64_t minibatch) {
  Buffers& b = *buffers_;
  const int64_t rows = args_.minibatch / args_.segment;
  const int64_t segments = args_.decisions() / args_.segment;
  if (epoch == 0 && minibatch == 0)
    each_range(default_team(), 0, args_.epochs, 5 * double(segments), [&](int64_t first, int64_t last) {
      for (int64_t k = first; k < last; ++k)
        shuffle({args_.seed, uint32_t((rollouts_ - 1) * args_.epochs + k), kOrderStream}, {b.order.data() + k * segments, size_t(segments)});
    });
  const double row_ns = double(args_.segment) * (40 + double(b.frame_bytes * b.stack) / 8);
  each_range(default_team(), 0, rows, row_ns, [&](int64_t first, int64_t last) {
    fill_rows({b.order.data() + epoch * segments + minibatch * rows, size_t(rows)}, first, last);
  });
  auto* advantage = reinterpret_cast<float*>(b.batch[4].data());
  const int64_t n = args_.minibatch;
  const double mean = sum_of(n, [&](int64_t i) { return double(advantage[i]); }) / double(n);
  const double squares = sum_of(n, [&](int64_t i) { return (double(advantage[i]) - mean) * (double(advantage[i]) - mean); });
  const double deviation = std::sqrt(squares / double(std::max<int64_t>(1, n - 1)));
  for (int64_t i = 0; i < n; ++i) advantage[i] = float((double(advantage[i]) - mean) / (deviation + 1e-8));
}

// Copies some rows of a minibatch, which consists of the segments in `order`.
void Collector::fill_rows(std::span<const uint32_t> order, int64_t begin, int64_t end) {
  Buffers& b = *buffers_;
  const int64_t E = args_.instances, L = args_.segment;
  auto numbers = [&](size_t i) { return reinterpret_cast<float*>(b.batch[i].data()); };
  float *log_p = numbers(2), *value = numbers(3), *advantage = numbers(4), *goal = numbers(5), *entropy = numbers(6);
  const int64_t seen = b.frame_bytes * b.stack;
  std::byte *observation = b.batch[0].data(), *action = b.batch[1].data();
  const float weight = entropy_weight();
  for (int64_t r = begin; r < end; ++r) {
    if (r + kFetchedAhead < end) {  // records lie in no order that the processor could foresee
      const int64_t s = order[size_t(r + kFetchedAhead)];
      const std::byte* record = b.records.data() + (s / E * L * E + s % E) * b.record_bytes;
      __builtin_prefetch(record), __builtin_prefetch(record + b.record_bytes - 1);
    }
    const int64_t s = order[size_t(r)], e = s % E, first = s / E * L;
    for (int64_t k = 0; k < L; ++k) {
      const int64_t t = first + k, from = t * E + e, to = r * L + k;
      const std::byte* record = b.records.data() + from * b.record_bytes;
      float figures[kFigures];
      std::memcpy(figures, record, sizeof figures);
      std::memcpy(action + to * b.action_bytes, record + sizeof figures, size_t(b.action_bytes));
      if (b.stack > 1)
        copy_observation(t, e, false, observation + to * seen);
      else
        std::memcpy(observation + to * seen, record + int64_t(sizeof figures) + b.action_bytes, size_t(seen));
      log_p[to] = figures[0], value[to] = figures[1], advantage[to] = figures[2], goal[to] = figures[3], entropy[to] = weight;
      if (policy_->has_memory()) {  // a step begins an episode if the one before it ended one; the state at the start of a segment says it already
        const bool ended = k > 0 && (b.terminated[size_t(from - E)] != std::byte(0) || b.truncated[size_t(from - E)] != std::byte(0));
        numbers(7)[to] = ended ? 1.0f : 0.0f;
      }
    }
    for (size_t m = 0; m < b.states.size(); ++m) {
      const size_t width = b.states[m].size() / size_t(args_.decisions()), before = size_t((first - 1) * E + e);
      float* to = numbers(8 + m) + size_t(r) * width;
      if (first == 0)
        std::memcpy(to, b.first_states[m].data() + size_t(e) * width * sizeof(float), width * sizeof(float));
      else if (b.terminated[before] != std::byte(0) || b.truncated[before] != std::byte(0))
        std::fill_n(to, width, 0.0f);
      else
        std::memcpy(to, b.states[m].data() + before * width, width * sizeof(float));
    }
  }
}

BatchFeed::Batch Collector::next(int64_t step) {
  const int64_t update = step % args_.updates();
  if (update == 0) device_ ? collect_on_device(step) : collect();
  position_ = step + 1;
  const Clock::time_point start = Clock::now();
  std::span<const void* const> tensors = buffers_->batch_data;
  const bool left_out = kl_.stopped > 0;
  if (device_)
    tensors = device_->pick();
  else if (!left_out)
    fill_minibatch(update / args_.minibatches(), update % args_.minibatches());
  if (update + 1 == args_.updates()) finish_rollout();
  handed_out_ = Clock::now();
  times_.preparing += std::chrono::duration<double>(handed_out_ - start).count();
  return {step, left_out ? std::span<const void* const>() : tensors, left_out, bool(device_)};
}

void Collector::finish_rollout() {
  update_statistics();
  ++since_validation_, goes_on_ = false;
  const std::optional<double> now = score_.score();
  wants_validation_ = target && now && *now >= *target && since_validation_ >= kRolloutsBetweenRequests;
  if (wants_validation_) since_validation_ = 0;
}

void Collector::collected(const StepMetrics& m) {
  const Clock::time_point now = Clock::now();
  times_.learning += std::chrono::duration<double>(now - handed_out_).count();
  handed_out_ = now;  // several may be under way
  if (device_) {
    if (position_ % args_.updates() == 0 && step_.pending() == 0) kl_.factor = double(device_->close());
    return;
  }
  kl_ = after_update(kl_, true, m.applied, m.scalars[kl_at_], args_);
}

std::string Collector::diagnosis() const {
  const Buffers& b = *buffers_;
  auto finite = [](const std::vector<float>& values) { return std::ranges::all_of(values, [](float v) { return std::isfinite(v); }); };
  std::vector<float> seen(instances_.spec().dtype == DType::f32 ? b.frames.size() / sizeof(float) : 0);
  std::memcpy(seen.data(), b.frames.data(), seen.size() * sizeof(float));
  const std::string& name = instances_.spec().name;
  const std::string clip = step_.options().clip > 0 ? "a lower clip" : "clip=1";
  if (device_) return fmt::format("set a lower lr, {}, or normalize_values=true", clip);  // the rollout is in the device's memory
  if (!finite(b.reward)) return fmt::format("rewards of {} are not finite: correct its step()", name);
  if (!finite(seen)) return fmt::format("observations of {} are not finite: correct its step() or observe()", name);
  if (!finite(b.value) || !finite(b.log_p))
    return fmt::format("the network's outputs are not finite, as its weights have become too large: set a lower lr, or {}", clip);
  return fmt::format("all that was played is finite: set a lower lr, {}, or normalize_values=true", clip);
}

void Collector::seek(int64_t position, const std::vector<int64_t>&) {
  if (position % args_.updates() != 0)
    fail(ErrorCode::internal, "[ppo] a run cannot continue at update {} of {} of a rollout", position % args_.updates(), args_.updates());
  position_ = position;
}

int64_t Collector::bytes() const {
  const Programs& p = *programs_;
  int64_t total = 0;
  for (const std::unique_ptr<ReadProgram>* r : {&p.start, &p.rollout, &p.value, &p.advantages, &p.play[1].start, &p.play[1].run})
    if (*r) total += (*r)->bytes();
  for (const std::unique_ptr<HostPlay>* h : {&p.host, &p.play[1].host})
    if (*h) total += (*h)->bytes();
  if (device_) return total + device_->bytes();
  // The host's copies of what the rollout program puts out, and a minibatch.
  for (const Type& t : p.outputs) total += t.bytes();
  for (const BatchSpec& s : ppo_batch(*policy_, args_)) total += Type{s.dtype, s.shape}.bytes();
  // Final values, advantages, values to learn, the order of each epoch, records.
  return total + args_.decisions() * ((3 + args_.epochs) * int64_t(sizeof(float)) + record_bytes());
}

// Of a rollout on the host, as its program would have them.
std::vector<Type> Collector::host_outputs() const {
  const int64_t E = args_.instances, T = args_.horizon;
  const EnvSpec& spec = instances_.spec();
  const Type frame{spec.dtype, with_front({T, E}, spec.observation)}, number{DType::f32, {T, E}}, flag{DType::boolean, {T, E}};
  std::vector<Type> all = programs_->carry;
  all.insert(all.end(), {{DType::f32, {E}}, frame, {DType::i64, {T, E, spec.actions.components()}}, number, number, number, flag, flag, number, number, frame});
  if (buffers_->stack > 1) all.push_back({DType::i64, {T, E}});
  if (args_.scale_rewards) all.push_back(number);
  for (const Type& t : programs_->carry) all.push_back({t.dtype, with_front({T}, t.shape)});
  return all;
}

int64_t Collector::record_bytes() const {
  const EnvSpec& spec = instances_.spec();
  const int64_t action = (spec.actions.kind == ActionSpace::Kind::continuous ? 4 : 8) * spec.actions.components();
  return int64_t(kFigures * sizeof(float)) + action + (instances_.options().stack > 1 ? 0 : Type{spec.dtype, spec.observation}.bytes());
}

}  // namespace ridge
