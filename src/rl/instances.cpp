#include <fmt/format.h>

#include "base/error.h"
#include "ridge/rl.h"
#include "rl/host_game.h"
#include "rl/numbers.h"
#include "rl/streams.h"

namespace ridge {
namespace {

using namespace rl::streams;
using rl::num;
using rl::whole;

// The condition [instances] where a tensor is [instances, …].
Tensor rowwise(const Tensor& condition, const Tensor& like) {
  Shape s = condition.shape();
  while (s.rank() < like.shape().rank()) s.push_back(1);
  return reshape(condition, s);
}

Tensor choose(const Tensor& condition, const Tensor& a, const Tensor& b) { return where(rowwise(condition, a), a, b); }

Tensor either(const Tensor& a, const Tensor& b) { return !a.defined() ? b : !b.defined() ? a : logical_or(a, b); }

Shape with_rows(int64_t rows, const Shape& one) {
  Shape s = one;
  s.insert(0, rows);
  return s;
}

}  // namespace

int64_t ActionSpace::components() const { return kind == Kind::continuous ? int64_t(low.size()) : kind == Kind::discrete ? 1 : int64_t(choices.size()); }

Tensor Environment::render(const EnvState&) const { return {}; }

// Environment's own tensors, then those of the wrapper, then the frames before the newest one, of 1, 2, … decisions ago.
struct Instances::Layout {
  EnvState own;
  Tensor instance, counter, age, total;
  Tensor discounted, previous, noops;  // undefined unless the options need them
  std::vector<Tensor> older;

  EnvState state() const {
    EnvState s = own;
    for (const Tensor& t : {instance, counter, age, total, discounted, previous, noops})
      if (t.defined()) s.push_back(t);
    s.insert(s.end(), older.begin(), older.end());
    return s;
  }
};

Instances::Instances(std::shared_ptr<const Environment> environment, const EnvOptions& options) : environment_(std::move(environment)), options_(options) {
  const EnvSpec& s = spec();
  auto take = [](int64_t& field, int64_t own) {
    if (field < 0) field = own;
  };
  take(options_.frame_skip, s.frame_skip), take(options_.time_limit, s.time_limit), take(options_.stack, s.stack);
  auto require = [&](bool ok, const char* what, double value) {
    if (!ok) fail(ErrorCode::value, "[instances] {}: {} {} is out of range", s.name, what, value);
  };
  require(options_.frame_skip >= 1, "frame_skip", double(options_.frame_skip));
  require(options_.stack >= 1, "stack", double(options_.stack));
  require(options_.sticky >= 0 && options_.sticky < 1, "sticky", options_.sticky);
  require(options_.noops >= 0, "noops", double(options_.noops));
  require(options_.timeout >= 0, "timeout", options_.timeout);
  require(options_.reward_clip >= 0, "reward_clip", options_.reward_clip);
  require(options_.return_discount >= 0 && options_.return_discount < 1, "return_discount", options_.return_discount);
}

bool Instances::on_host() const { return rl::host_game(*environment_) != nullptr; }

bool Instances::may_truncate() const {
  if (options_.time_limit > 0 || on_host()) return true;
  const EnvSpec& s = spec();  // one step is traced and thrown away
  const Environment::Draws reset(size_t(s.reset_draws), full({1}, 0)), step(size_t(s.step_draws), full({1}, 0));
  const bool real = s.actions.kind == ActionSpace::Kind::continuous, single = s.actions.kind == ActionSpace::Kind::discrete;
  const Tensor action = Tensor::zeros(single ? Shape{1} : Shape{1, s.actions.components()}, real ? DType::f32 : DType::i64);
  return environment_->step(environment_->reset(iota({1}), reset), action, step).truncated.defined();
}

Shape Instances::observation_shape() const { return options_.stack > 1 ? with_rows(options_.stack, spec().observation) : spec().observation; }

double Instances::highest_return() const {
  const EnvSpec& s = spec();
  if (options_.time_limit == 0 || s.highest_reward <= 0) return s.highest_return;
  return std::min(s.highest_return, s.highest_reward * double(options_.frame_skip) * double(options_.time_limit));
}

std::string Instances::describe() const {
  const EnvSpec& s = spec();
  std::string text = s.parameters.empty() ? s.name : s.parameters;
  text += fmt::format(", {}{}", s.dtype == DType::u8 ? "pixels " : "", to_string(observation_shape()));
  text += fmt::format(", frame skip {}, sticky {}", options_.frame_skip, options_.sticky);
  if (options_.noops) text += fmt::format(", up to {} no-ops", options_.noops);
  if (options_.time_limit) text += fmt::format(", at most {} decisions", options_.time_limit);
  if (options_.reward_clip) text += fmt::format(", rewards clipped at {}", options_.reward_clip);
  return text;
}

Instances::Layout Instances::layout(const EnvState& state) const {
  const size_t frames = size_t(options_.stack - 1);
  const size_t extra = 4 + (options_.return_discount > 0) + (options_.sticky > 0) + (options_.noops > 0) + frames;
  if (state.size() < extra) fail(ErrorCode::usage, "[instances] a state of {} tensors is not one of {}", state.size(), spec().name);
  size_t at = state.size() - extra;
  Layout l;
  l.own.assign(state.begin(), state.begin() + long(at));
  l.instance = state[at++], l.counter = state[at++], l.age = state[at++], l.total = state[at++];
  if (options_.return_discount > 0) l.discounted = state[at++];
  if (options_.sticky > 0) l.previous = state[at++];
  if (options_.noops > 0) l.noops = state[at++];
  l.older.assign(state.begin() + long(at), state.end());
  return l;
}

// Draws first … first + count - 1 of the `per_decision` that an instance takes from a stream in one decision.
Environment::Draws Instances::draws(const Tensor& instance, const Tensor& counter, uint32_t stream, int64_t per_decision, int64_t first, int64_t count) const {
  Environment::Draws d;
  for (int64_t i = first; i < first + count; ++i)
    d.push_back(uniform_at(counter, per_decision == 1 ? instance : instance * whole(per_decision) + whole(i), stream));
  return d;
}

EnvState Instances::start(const Tensor& instance) const {
  if (instance.dtype() != DType::i64 || instance.shape().rank() != 1)
    fail(ErrorCode::shape, "[instances] the numbers of the instances must be i64 [instances], got {} {}", name(instance.dtype()), to_string(instance.shape()));
  const int64_t rows = instance.shape()[0];
  const EnvSpec& s = spec();
  const Tensor zero = full({rows}, 0, DType::i64), nothing = full({rows}, 0);
  Layout l;
  l.own = environment_->reset(instance, draws(instance, zero, kResetStream, s.reset_draws, 0, s.reset_draws));
  l.instance = instance, l.counter = zero, l.age = zero, l.total = nothing;
  if (options_.return_discount > 0) l.discounted = nothing;
  if (options_.sticky > 0) {
    const bool real = s.actions.kind == ActionSpace::Kind::continuous;
    const Shape one = s.actions.kind == ActionSpace::Kind::discrete ? Shape{} : Shape{s.actions.components()};
    l.previous = full(with_rows(rows, one), 0, real ? DType::f32 : DType::i64);
  }
  if (options_.noops > 0) l.noops = drawn_noops(instance, zero);
  for (int64_t k = 1; k < options_.stack; ++k) l.older.push_back(full(with_rows(rows, s.observation), 0, s.dtype));
  return l.state();
}

Tensor Instances::drawn_noops(const Tensor& instance, const Tensor& counter) const {
  return cast(floor(uniform_at(counter, instance, kNoopStream) * num(double(options_.noops + 1))), DType::i64);
}

Instances::Decision Instances::step(const EnvState& state, const Tensor& action) const {
  const EnvSpec& s = spec();
  const Layout before = layout(state);
  Layout after = before;
  Decision d;

  Tensor played = action;
  if (options_.sticky > 0) played = choose(uniform_at(before.counter, before.instance, kStickyStream) < num(options_.sticky), before.previous, played);
  if (options_.noops > 0) played = choose(before.noops > whole(0), full(played.shape(), 0, played.dtype()), played);

  Tensor reward, terminated, truncated;
  for (int64_t k = 0; k < options_.frame_skip; ++k) {
    const int64_t parts = s.draws_once ? 1 : options_.frame_skip;
    const Environment::Draws drawn =
        draws(before.instance, before.counter, kStepStream, s.step_draws * parts, s.draws_once ? 0 : k * s.step_draws, s.step_draws);
    Environment::Next next = environment_->step(after.own, played, drawn);
    if (k == 0 || s.runs_on) {
      after.own = next.state;
      reward = k == 0 ? next.reward : reward + next.reward;
      terminated = next.terminated, truncated = next.truncated;
      continue;
    }
    const Tensor over = either(terminated, truncated);
    for (size_t i = 0; i < after.own.size(); ++i) after.own[i] = choose(over, after.own[i], next.state[i]);
    reward = reward + where(over, num(0), next.reward);
    terminated = logical_or(terminated, logical_and(logical_not(over), next.terminated));
    if (next.truncated.defined()) truncated = either(truncated, logical_and(logical_not(over), next.truncated));
  }

  after.counter = before.counter + whole(1), after.age = before.age + whole(1), after.total = before.total + reward;
  if (options_.time_limit > 0) truncated = either(truncated, after.age >= whole(options_.time_limit));
  truncated = truncated.defined() ? logical_and(truncated, logical_not(terminated)) : full(terminated.shape(), 0, DType::boolean);
  const Tensor done = logical_or(terminated, truncated);
  for (size_t k = after.older.size(); k-- > 0;) after.older[k] = k == 0 ? environment_->observe(before.own) : before.older[k - 1];

  d.terminated = terminated, d.truncated = truncated;
  d.final_observation = stacked(after);
  d.episode_return = where(done, after.total, num(0)), d.episode_length = where(done, cast(after.age, DType::f32), num(0));
  d.reward = options_.reward_clip > 0 ? minimum(maximum(reward, num(-options_.reward_clip)), num(options_.reward_clip)) : reward;
  if (options_.reward_scale != 1) d.reward = d.reward * num(options_.reward_scale);

  const EnvState fresh = environment_->reset(before.instance, draws(before.instance, after.counter, kResetStream, s.reset_draws, 0, s.reset_draws));
  for (size_t i = 0; i < after.own.size(); ++i) after.own[i] = choose(done, fresh[i], after.own[i]);
  after.age = where(done, whole(0), after.age), after.total = where(done, num(0), after.total);
  if (options_.return_discount > 0) after.discounted = where(done, num(0), before.discounted * num(options_.return_discount)) + d.reward;
  if (options_.sticky > 0) after.previous = choose(done, full(played.shape(), 0, played.dtype()), played);
  if (options_.noops > 0) after.noops = where(done, drawn_noops(before.instance, after.counter), before.noops - whole(1));
  d.state = after.state();
  return d;
}

// Frame k of the stack, counted from the newest, is that of k decisions ago, or the first of the episode if it is younger.
Tensor Instances::stacked(const Layout& l) const {
  std::vector<Tensor> frames = {environment_->observe(l.own)};
  for (size_t k = 0; k < l.older.size(); ++k) frames.insert(frames.begin(), choose(l.age > whole(int64_t(k)), l.older[k], frames[0]));
  return frames.size() == 1 ? frames[0] : stack(frames, 1);
}

Tensor Instances::observe(const EnvState& state) const { return stacked(layout(state)); }
Tensor Instances::frame(const EnvState& state) const { return environment_->observe(layout(state).own); }
Tensor Instances::age(const EnvState& state) const { return layout(state).age; }
Tensor Instances::counter(const EnvState& state) const { return layout(state).counter; }
Tensor Instances::instance(const EnvState& state) const { return layout(state).instance; }
EnvState Instances::environment_state(const EnvState& state) const { return layout(state).own; }

Tensor Instances::discounted_return(const EnvState& state) const {
  if (options_.return_discount == 0) fail(ErrorCode::usage, "[instances] there is no discounted return: set return_discount");
  return layout(state).discounted;
}

}  // namespace ridge
