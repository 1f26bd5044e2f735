#include "rl/host_instances.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/error.h"
#include "rl/host_game.h"
#include "rl/streams.h"
#include "threads/each_range.h"

namespace ridge {
namespace {

using namespace rl::streams;

HostMemory observation_memory(DType dtype, std::byte* to) {
  HostMemory memory;
  if (dtype == DType::u8)
    memory.bytes = reinterpret_cast<uint8_t*>(to);
  else
    memory.numbers = reinterpret_cast<float*>(to);
  return memory;
}

}  // namespace

HostInstances::HostInstances(const Instances& game, int64_t count, rl::HostWatch::Report report)
    : spec_(game.spec()), options_(game.options()), count_(count), components_(spec_.actions.components()) {
  const rl::HostGame* host = rl::host_game(game.environment());
  if (!host) fail(ErrorCode::internal, "[environment] {} is tensor code", spec_.name);
  environment_ = host->make(count);
  watch_ = std::make_unique<rl::HostWatch>(spec_.name, options_.timeout, std::move(report));
  real_ = spec_.actions.kind == ActionSpace::Kind::continuous;
  frame_bytes_ = spec_.observation.numel() * size_of(spec_.dtype);
  const auto n = size_t(count);
  for (std::vector<int64_t>* v : {&instance_, &counter_, &age_, &noops_, &which_, &ended_}) v->resize(n);
  for (std::vector<float>* v : {&total_, &discounted_, &reward_, &sum_}) v->resize(n);
  frames_.resize(n * size_t(frame_bytes_));
  for (std::vector<std::byte>* v : {&played_, &previous_}) v->resize(n * size_t(components_) * (real_ ? sizeof(float) : sizeof(int64_t)));
  seeds_.resize(n), reset_draws_.resize(n * size_t(spec_.reset_draws)), step_draws_.resize(n * size_t(spec_.step_draws));
  terminated_ = std::make_unique<bool[]>(n), truncated_ = std::make_unique<bool[]>(n);
}

void HostInstances::start(ThreadTeam& team, uint64_t seed, int64_t first) {
  seed_ = seed;
  for (int64_t i = 0; i < count_; ++i) instance_[size_t(i)] = first + i;
  std::ranges::fill(counter_, 0), std::ranges::fill(discounted_, 0.0f);
  each_range(team, 0, count_, [this](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) which_[size_t(i)] = i;
    const HostEnvironment::Which all(which_.data() + begin, size_t(end - begin));
    begin_episodes(all);
    look(all, frames_.data());
  });
}

// Names the environment and the instances in every error, whoever threw it.
template <class Call>
void HostInstances::call(const char* function, HostEnvironment::Which which, const Call& call) const {
  const auto describe = [&](const char* what) {
    const int64_t first = instance_[size_t(which.front())], last = instance_[size_t(which.back())];
    fail(ErrorCode::value,
         "[environment] {}: {}() of {} failed: {}. Weights and progress are those of the last checkpoint: correct the environment, then --resume", spec_.name,
         function, first == last ? fmt::format("instance {}", first) : fmt::format("instances {} to {}", first, last), what);
  };
  try {
    const rl::HostWatch::Call watched(*watch_, function, instance_[size_t(which.front())], instance_[size_t(which.back())]);
    call();
  } catch (const std::exception& e) {
    describe(e.what());
  } catch (...) {
    describe("it threw something that is not a std::exception");
  }
}

void HostInstances::each_range(ThreadTeam& team, int64_t begin, int64_t end, const std::function<void(int64_t begin, int64_t end)>& act) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  const HostEnvironment::Threads threads = environment_->threads();
  if (threads == HostEnvironment::Threads::training) {
    act(begin, end);
  } else {
    ridge::each_range(team, 0, threads == HostEnvironment::Threads::one ? 1 : end - begin, unit_ns_,
                      [&](int64_t from, int64_t to) { threads == HostEnvironment::Threads::one ? act(begin, end) : act(begin + from, begin + to); });
  }
  const double ns = std::chrono::duration<double, std::nano>(Clock::now() - start).count();
  // The threads' share of this is unknown; a team that shares work divides the time at best by its size.
  unit_ns_ = 0.9 * unit_ns_ + 0.1 * ns / double(end - begin);
}

void HostInstances::draw(std::vector<float>& to, HostEnvironment::Which which, uint32_t stream, int64_t per_decision, int64_t first, int64_t count) {
  for (const int64_t i : which)
    for (int64_t k = 0; k < count; ++k) {
      const int64_t lane = per_decision == 1 ? instance_[size_t(i)] : instance_[size_t(i)] * per_decision + first + k;
      to[size_t(i * count + k)] = uniform_at(seed_, counter_[size_t(i)], lane, stream);
    }
}

void HostInstances::begin_episodes(HostEnvironment::Which which) {
  if (which.empty()) return;
  draw(reset_draws_, which, kResetStream, spec_.reset_draws, 0, spec_.reset_draws);
  const size_t bytes = previous_.size() / size_t(count_);
  for (const int64_t i : which) {
    const auto at = size_t(i);
    seeds_[at] = seed_at(seed_, counter_[at], instance_[at]);
    age_[at] = 0, total_[at] = 0;
    std::memset(previous_.data() + at * bytes, 0, bytes);
    if (options_.noops > 0) noops_[at] = int64_t(std::floor(uniform_at(seed_, counter_[at], instance_[at], kNoopStream) * float(options_.noops + 1)));
  }
  HostMemory memory;
  memory.seeds = seeds_.data(), memory.draws = reset_draws_.data();
  call("reset", which, [&] { environment_->reset(which, memory); });
}

void HostInstances::look(HostEnvironment::Which which, std::byte* to) {
  if (which.empty()) return;
  call("observe", which, [&] { environment_->observe(which, observation_memory(spec_.dtype, to)); });
  if (spec_.dtype != DType::f32) return;
  const int64_t width = spec_.observation.numel();
  for (const int64_t i : which) {
    const auto* seen = reinterpret_cast<const float*>(to) + i * width;
    for (int64_t k = 0; k < width; ++k)
      if (!std::isfinite(seen[k]))
        fail(ErrorCode::value,
             "[environment] {}: number {} of the observation of instance {} is {} after {} decisions; an agent can only learn from finite numbers", spec_.name,
             k, instance_[size_t(i)], seen[k], age_[size_t(i)]);
  }
}

void HostInstances::decide(ThreadTeam& team, int64_t begin, int64_t end, const std::byte* action, const Results& results) {
  each_range(team, begin, end, [&](int64_t from, int64_t to) { decide_range(from, to, action, results); });
}

void HostInstances::decide_range(int64_t begin, int64_t end, const std::byte* action, const Results& out) {
  const ActionSpace& space = spec_.actions;
  const size_t bytes = played_.size() / size_t(count_);
  for (int64_t i = begin; i < end; ++i) {
    const auto at = size_t(i);
    std::byte* played = played_.data() + at * bytes;
    const bool repeat = options_.sticky > 0 && uniform_at(seed_, counter_[at], instance_[at], kStickyStream) < float(options_.sticky);
    std::memcpy(played, (repeat ? previous_.data() : action) + at * bytes, bytes);
    if (options_.noops > 0 && noops_[at] > 0) std::memset(played, 0, bytes);
    for (int64_t k = 0; k < components_; ++k) {
      const double value = real_ ? double(reinterpret_cast<const float*>(played)[k]) : double(reinterpret_cast<const int64_t*>(played)[k]);
      if (real_ ? !std::isfinite(value) : value < 0 || value >= double(space.choices[size_t(k)]))
        fail(ErrorCode::value, "[environment] {}: action {} of instance {} is not one of its actions: {}", spec_.name, value, instance_[at],
             real_ ? "it is not finite" : fmt::format("they are 0 to {}", space.choices[size_t(k)] - 1));
    }
    sum_[at] = 0, terminated_[at] = truncated_[at] = false;
  }

  HostMemory memory;
  memory.draws = step_draws_.data(), memory.reward = reward_.data(), memory.terminated = terminated_.get(), memory.truncated = truncated_.get();
  if (real_)
    memory.controls = reinterpret_cast<const float*>(played_.data());
  else
    memory.choices = reinterpret_cast<const int64_t*>(played_.data());
  int64_t* list = which_.data() + begin;
  for (int64_t k = 0; k < options_.frame_skip; ++k) {
    size_t going = 0;
    for (int64_t i = begin; i < end; ++i)
      if (!terminated_[size_t(i)] && !truncated_[size_t(i)]) list[going++] = i;
    if (going == 0) break;
    const HostEnvironment::Which which(list, going);
    draw(step_draws_, which, kStepStream, spec_.step_draws * (spec_.draws_once ? 1 : options_.frame_skip), spec_.draws_once ? 0 : k * spec_.step_draws,
         spec_.step_draws);
    call("step", which, [&] { environment_->step(which, memory); });
    for (const int64_t i : which) {
      const float reward = reward_[size_t(i)];
      if (!std::isfinite(reward))
        fail(ErrorCode::value, "[environment] {}: the reward of instance {} is {} after {} decisions; an agent can only learn from finite numbers", spec_.name,
             instance_[size_t(i)], reward, age_[size_t(i)]);
      sum_[size_t(i)] = k == 0 ? reward : sum_[size_t(i)] + reward;
    }
  }

  // Flags and figures, and which episodes begin anew.
  int64_t* ended = ended_.data() + begin;
  size_t ends = 0, goes_on = 0;
  for (int64_t i = begin; i < end; ++i) {
    const auto at = size_t(i);
    ++counter_[at], ++age_[at], total_[at] += sum_[at];
    const bool terminated = terminated_[at];
    const bool truncated = !terminated && (truncated_[at] || (options_.time_limit > 0 && age_[at] >= options_.time_limit)), done = terminated || truncated;
    const auto clip = float(options_.reward_clip);
    float reward = clip > 0 ? std::min(std::max(sum_[at], -clip), clip) : sum_[at];
    if (options_.reward_scale != 1) reward *= float(options_.reward_scale);
    if (options_.return_discount > 0) discounted_[at] = (done ? 0.0f : discounted_[at] * float(options_.return_discount)) + reward;
    if (out.reward) out.reward[i] = reward;
    if (out.terminated) out.terminated[i] = std::byte(terminated);
    if (out.truncated) out.truncated[i] = std::byte(truncated);
    if (out.episode_return) out.episode_return[i] = done ? total_[at] : 0;
    if (out.episode_length) out.episode_length[i] = done ? float(age_[at]) : 0;
    if (out.discounted) out.discounted[i] = discounted_[at];
    if (done) {
      ended[ends++] = i;
      continue;
    }
    list[goes_on++] = i;
    std::memcpy(previous_.data() + at * bytes, played_.data() + at * bytes, bytes);
    if (options_.noops > 0) --noops_[at];
  }
  look({list, goes_on}, frames_.data());
  if (out.final_frame) look({ended, ends}, out.final_frame);
  begin_episodes({ended, ends});
  look({ended, ends}, frames_.data());
}

HostInstances::Saved HostInstances::save() const {
  Saved saved;
  const size_t words = previous_.size() / size_t(count_);
  for (int64_t i = 0; i < count_; ++i) {
    const auto at = size_t(i);
    saved.wrapper.insert(saved.wrapper.end(),
                         {counter_[at], age_[at], noops_[at], int64_t(std::bit_cast<uint32_t>(total_[at])), int64_t(std::bit_cast<uint32_t>(discounted_[at]))});
    const std::vector<std::byte> state = environment_->can_save() ? environment_->save(i) : std::vector<std::byte>();
    saved.sizes.push_back(int64_t(state.size() + words));
    saved.states.insert(saved.states.end(), previous_.begin() + long(at * words), previous_.begin() + long((at + 1) * words));
    saved.states.insert(saved.states.end(), state.begin(), state.end());
  }
  return saved;
}

bool HostInstances::restore(ThreadTeam& team, uint64_t seed, const Saved& saved) {
  const size_t words = previous_.size() / size_t(count_);
  start(team, seed, instance_[0]);  // every instance must have begun before it can be loaded
  size_t at = 0;
  if (std::ranges::any_of(saved.sizes, [&](int64_t n) { return n < int64_t(words); }) ||
      std::accumulate(saved.sizes.begin(), saved.sizes.end(), int64_t(0)) != int64_t(saved.states.size()))
    fail(ErrorCode::io, "[resume] the checkpoint's states of {} are damaged", spec_.name);
  const bool exact = environment_->can_save();
  for (size_t i = 0; i < size_t(count_); ++i) {
    const int64_t* w = saved.wrapper.data() + i * kWrapper;
    counter_[i] = w[0];
    const std::span<const std::byte> all(saved.states.data() + at, size_t(saved.sizes[i]));
    at += all.size();
    if (!exact) continue;
    age_[i] = w[1], noops_[i] = w[2], total_[i] = std::bit_cast<float>(uint32_t(w[3])), discounted_[i] = std::bit_cast<float>(uint32_t(w[4]));
    std::memcpy(previous_.data() + i * words, all.data(), words);
    environment_->load(int64_t(i), all.subspan(words));
  }
  each_range(team, 0, count_, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) which_[size_t(i)] = i;
    const HostEnvironment::Which which(which_.data() + begin, size_t(end - begin));
    if (!exact) begin_episodes(which);
    look(which, frames_.data());
  });
  return exact;
}

}  // namespace ridge
