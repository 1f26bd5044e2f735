#include "tasks/ppo/host_play.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <limits>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "measure/default_team.h"
#include "rl/host_game.h"
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

// Steps environments while the thread that trains does something else: up to two jobs, in order, on a team of its own.
class HostPlay::StepThread {
 public:
  using Job = std::function<void(ThreadTeam&)>;
  explicit StepThread(int threads) : team_({.threads = threads, .wait = Wait::passive}), thread_([this] { work(); }) {}
  ~StepThread() {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  StepThread(const StepThread&) = delete;

  void submit(Job job) {
    {
      const std::lock_guard lock(mutex_);
      jobs_[submitted_++ % jobs_.size()] = std::move(job);
    }
    changed_.notify_all();
  }
  void wait(uint64_t jobs) {  // until this many are done; throws what one of them threw
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_ >= jobs; });
    if (error_) std::rethrow_exception(error_);
  }
  void finish() {  // waits for all jobs; the next one is number 1 again
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_ == submitted_; });
    submitted_ = done_ = 0, error_ = nullptr;
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return ends_ || done_ < submitted_; });
      if (ends_) return;
      const Job& job = jobs_[done_ % jobs_.size()];
      const bool failed = error_ != nullptr;  // what follows a failure is left out
      lock.unlock();
      std::exception_ptr error;
      try {
        if (!failed) job(team_);
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      if (error) error_ = error;
      ++done_;
      changed_.notify_all();
    }
  }

  ThreadTeam team_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::array<Job, 2> jobs_;
  uint64_t submitted_ = 0, done_ = 0;
  bool ends_ = false;
  std::exception_ptr error_;
  std::thread thread_;
};

bool HostPlay::can_have_halves(const Instances& instances, int64_t rows) {
  const rl::HostGame* host = rl::host_game(instances.environment());
  return host && host->threads() != HostEnvironment::Threads::training && rows % 2 == 0;
}

HostPlay::HostPlay(TrainStep& step, std::shared_ptr<const Policy> policy, std::span<const Tensor> weights, const Instances& instances, bool normalized,
                   int64_t rows, bool sampled, bool halves)
    : policy_(std::move(policy)), instances_(instances, rows), rows_(rows), stack_(instances.options().stack) {
  const EnvSpec& spec = instances.spec();
  bounds_ = spec.actions.kind == ActionSpace::Kind::continuous;
  for (const Tensor& t : policy_->zero_state(rows)) memory_.emplace_back(size_t(t.size()));
  act_ = acting(step, weights, instances, normalized, rows, sampled);
  if (halves) {
    act_half_ = acting(step, weights, instances, normalized, rows / 2, sampled);
    step_thread_ = std::make_unique<StepThread>(instances_.environment().threads() == HostEnvironment::Threads::one ? 1 : default_team().size());
  }
  const auto n = size_t(rows);
  action_.resize(n * size_t(spec.actions.components()) * (bounds_ ? sizeof(float) : sizeof(int64_t)));
  if (bounds_) played_.resize(action_.size());
  if (stack_ > 1) stacked_.resize(n * size_t(stack_ * instances_.frame_bytes()));
  log_p_.resize(n), value_.resize(n), terminated_.resize(n), truncated_.resize(n);
}

std::unique_ptr<ReadProgram> HostPlay::acting(TrainStep& step, std::span<const Tensor> weights, const Instances& instances, bool normalized, int64_t rows,
                                              bool sampled) const {
  Shape observation = instances.observation_shape();
  observation.insert(0, rows);
  const EnvSpec& spec = instances.spec();
  const Type numbers{DType::i64, {rows}};
  std::vector<Type> inputs = {{spec.dtype, observation}, numbers, numbers};
  for (const Tensor& t : policy_->zero_state(rows)) inputs.push_back({t.dtype(), t.shape()});
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
  return std::make_unique<ReadProgram>(step, inputs, traced_function(act, weights));
}

HostPlay::~HostPlay() = default;

void HostPlay::start(uint64_t seed, int64_t first) {
  seed_ = seed;
  instances_.start(default_team(), seed, first);
  for (std::vector<float>& m : memory_) std::ranges::fill(m, 0.0f);
  stack_frames(0, rows_);
}

// Moves the frames of these instances on by one, and fills the stack of an episode that has just begun. `only_new`: does nothing but that.
void HostPlay::stack_frames(int64_t begin, int64_t end, bool only_new) {
  if (stack_ == 1) return;
  const auto frame = size_t(instances_.frame_bytes()), stack = size_t(stack_);
  for (auto i = size_t(begin); i < size_t(end); ++i) {
    std::byte* to = stacked_.data() + i * stack * frame;
    const std::byte* newest = instances_.frames() + i * frame;
    if (only_new && instances_.age()[i] > 0) continue;
    std::memmove(to, to + frame, (stack - 1) * frame);
    for (size_t k = instances_.age()[i] == 0 ? 0 : stack - 1; k < stack; ++k) std::memcpy(to + k * frame, newest, frame);
  }
}

// Copies the part of instances [begin, end) of something that all have, if it is wanted.
template <class T>
void copy_part(T* to, const T* from, int64_t each, int64_t begin, int64_t end) {
  if (to) std::copy(from + begin * each, from + end * each, to + begin * each);
}

void HostPlay::act(int64_t begin, int64_t end, std::span<const void* const> scales, const Record& r) {
  const int64_t frame = instances_.frame_bytes(), bytes = int64_t(action_.size()) / rows_;
  copy_part(r.frame, instances_.frames(), frame, begin, end), copy_part(r.age, instances_.age().data(), 1, begin, end);
  std::vector<const void*> in = {(stack_ > 1 ? stacked_.data() : instances_.frames()) + begin * stack_ * frame, instances_.counter().data() + begin,
                                 instances_.instance().data() + begin};
  std::vector<void*> out = {action_.data() + begin * bytes, (r.log_p ? r.log_p : log_p_.data()) + begin, (r.value ? r.value : value_.data()) + begin};
  auto width = [&](size_t m) { return int64_t(memory_[m].size()) / rows_; };
  for (size_t m = 0; m < memory_.size(); ++m) in.push_back(memory_[m].data() + begin * width(m));
  in.insert(in.end(), scales.begin(), scales.end());
  if (bounds_) out.push_back(played_.data() + begin * bytes);
  for (size_t m = 0; m < memory_.size(); ++m) out.push_back(memory_[m].data() + begin * width(m));
  (end - begin == rows_ ? act_ : act_half_)->run(in, out, seed_);
  copy_part(r.action, action_.data(), bytes, begin, end), copy_part(r.played, (bounds_ ? played_ : action_).data(), bytes, begin, end);
  for (size_t m = 0; m < r.states.size(); ++m) copy_part(r.states[m], memory_[m].data(), width(m), begin, end);
}

void HostPlay::step(ThreadTeam& team, int64_t begin, int64_t end, const HostInstances::Results& results) {
  instances_.decide(team, begin, end, (bounds_ ? played_ : action_).data(), results);
}

void HostPlay::follow_up(int64_t begin, int64_t end, const HostInstances::Results& results) {
  for (std::vector<float>& m : memory_) {
    const size_t width = m.size() / size_t(rows_);
    for (auto i = size_t(begin); i < size_t(end); ++i)
      if (results.terminated[i] != std::byte(0) || results.truncated[i] != std::byte(0)) std::fill_n(m.begin() + long(i * width), width, 0.0f);
  }
  stack_frames(begin, end);
}

// The environment steps for a part of the instances while the network acts for the next. A part waits for its own environment only.
void HostPlay::play(int64_t decisions, bool halves, std::span<const void* const> scales, const std::function<Record(int64_t decision)>& record) {
  const int64_t parts = halves ? 2 : 1, rows = rows_ / parts;
  struct Finish {  // also after an error, or the environment would go on writing to memory that the caller gives up
    void operator()(StepThread* thread) const { thread->finish(); }
  };
  const std::unique_ptr<StepThread, Finish> thread(halves ? step_thread_.get() : nullptr);
  auto timed = [this](const auto& environment) {
    const HostClock::time_point start = HostClock::now();
    environment();
    environment_seconds_ += std::chrono::duration<double>(HostClock::now() - start).count();
  };
  HostInstances::Results results[2];
  for (int64_t n = 0; n < (decisions + 1) * parts; ++n) {
    const int64_t part = n % parts, begin = part * rows, end = begin + rows;
    if (n >= parts) {
      if (thread) timed([&] { thread->wait(uint64_t(n - parts + 1)); });
      follow_up(begin, end, results[part]);
    }
    if (n >= decisions * parts) continue;
    const Record r = record(n / parts);
    results[part] = r;
    if (!r.terminated) results[part].terminated = terminated_.data();
    if (!r.truncated) results[part].truncated = truncated_.data();
    act(begin, end, scales, r);
    if (thread)
      thread->submit([this, begin, end, results = results[part]](ThreadTeam& team) { step(team, begin, end, results); });
    else
      timed([&] { step(default_team(), begin, end, results[part]); });
  }
}

void HostPlay::decide(std::span<const void* const> scales, const Record& record) {
  play(1, step_thread_ != nullptr, scales, [&](int64_t) { return record; });
}

void HostPlay::roll_out(std::span<const void* const> inputs, std::span<void* const> outputs, int64_t horizon, const Outputs& has) {
  for (size_t m = 0; m < memory_.size(); ++m) std::memcpy(memory_[m].data(), inputs[m], memory_[m].size() * sizeof(float));
  const std::span<const void* const> scales = inputs.subspan(memory_.size());
  play(horizon, step_thread_ != nullptr, scales, [&](int64_t t) {
    size_t at = memory_.size() + 1;
    auto next = [&]<class T>(T*, int64_t elements) { return static_cast<T*>(outputs[at++]) + t * elements; };
    auto bytes = [&](int64_t each) { return next(static_cast<std::byte*>(nullptr), rows_ * each); };
    auto numbers = [&] { return next(static_cast<float*>(nullptr), rows_); };
    Record r;
    r.frame = bytes(instances_.frame_bytes()), r.action = bytes(int64_t(action_.size()) / rows_);
    r.log_p = numbers(), r.value = numbers(), r.reward = numbers();
    r.terminated = bytes(1), r.truncated = bytes(1), r.episode_return = numbers(), r.episode_length = numbers();
    if (has.stacked) r.age = next(static_cast<int64_t*>(nullptr), rows_);
    if (has.bounded) r.final_frame = bytes(instances_.frame_bytes());
    if (has.discounted) r.discounted = numbers();
    for (const std::vector<float>& m : memory_) r.states.push_back(next(static_cast<float*>(nullptr), int64_t(m.size())));
    return r;
  });
  for (size_t m = 0; m < memory_.size(); ++m) std::memcpy(outputs[m], memory_[m].data(), memory_[m].size() * sizeof(float));
  // What the policy expects from now on.
  const std::vector<std::vector<float>> memory = memory_;
  Record record;
  record.value = static_cast<float*>(outputs[memory_.size()]);
  act(0, rows_, scales, record);
  memory_ = memory;
}

namespace {

// Scales that change nothing.
struct PlainScales {
  std::vector<float> zeros, ones;
  const float values[2] = {0, 1};
  std::vector<const void*> inputs;
  PlainScales(int64_t observation, bool normalized) : zeros(size_t(observation), 0.0f), ones(size_t(observation), 1.0f) {
    if (normalized) inputs = {zeros.data(), ones.data()};
    inputs.push_back(values);
  }
};

}  // namespace

bool HostPlay::halves_keep_bits(bool normalized) {
  constexpr int64_t kCompared = 8;
  const PlainScales scales(policy_->args().observation.numel(), normalized);
  auto played = [&](bool halves) {
    std::vector<float> log_p(size_t(kCompared * rows_)), value(log_p.size());
    start(0, 0);
    play(kCompared, halves, scales.inputs, [&](int64_t t) {
      Record r;
      r.log_p = log_p.data() + t * rows_, r.value = value.data() + t * rows_;
      return r;
    });
    return std::pair(std::move(log_p), std::move(value));
  };
  return played(false) == played(true);
}

double HostPlay::decision_seconds(bool halves, bool normalized, int64_t decisions) {
  const PlainScales scales(policy_->args().observation.numel(), normalized);
  const HostClock::time_point start = HostClock::now();
  play(decisions, halves, scales.inputs, [](int64_t) { return Record(); });
  return std::chrono::duration<double>(HostClock::now() - start).count() / double(decisions);
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

bool HostPlay::restore(const SafetensorsFile& file, uint64_t seed) {
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
  const bool exact = instances_.restore(default_team(), seed, saved);
  if (stack_ > 1) {
    read("host.seen", stacked_, int64_t(stacked_.size()));
    stack_frames(0, rows_, true);
  }
  return exact;
}

int64_t HostPlay::bytes() const {
  return act_->bytes() + (act_half_ ? act_half_->bytes() : 0) + int64_t(stacked_.size()) + 2 * rows_ * instances_.frame_bytes();
}

}  // namespace ridge
