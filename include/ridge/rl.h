// Environments for reinforcement learning as tensor code: many instances at once, compiled into the same program as the policy that plays them.
// docs/environments.md shows how to write one.
#pragma once
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "ridge/ops.h"

namespace ridge {

// Random numbers for programs that count for themselves: uniform in [0, 1), f32, a function of (the current seed, stream, counter, lane) and nothing else, so
// the number of instances, the length of a loop and where it is cut do not matter. `counter` and `lane` are i64 and broadcast against each other; the counter
// is what a row carries from step to step, and the lane (0 … 2³² - 1) tells rows apart. `stream` (below 2²⁴) separates purposes: Instances use 1 to 15. Inside
// a scan, the counter or the lane must differ from step to step; anything else is an error.
Tensor uniform_at(const Tensor& counter, const Tensor& lane, uint32_t stream);

using EnvState = std::vector<Tensor>;  // the state of all instances: each tensor is [instances, …]

// The actions that an environment accepts.
struct ActionSpace {
  enum class Kind {
    discrete,        // i64 [instances]: 0 … choices[0] - 1
    multi_discrete,  // i64 [instances, choices.size()]: component i is 0 … choices[i] - 1
    continuous,      // f32 [instances, low.size()]: component i is in [low[i], high[i]], and the environment clamps it
  };
  Kind kind = Kind::discrete;
  std::vector<int64_t> choices = {};
  std::vector<double> low = {}, high = {};

  int64_t components() const;  // numbers per action
};

// What a program needs to know about an environment before it runs.
struct EnvSpec {
  std::string name;
  Shape observation;  // of one instance: {8}, or {84, 84} for a picture
  DType dtype = DType::f32;
  ActionSpace actions;
  int64_t reset_draws = 0, step_draws = 0;  // random numbers that reset and one step take, per instance
  bool draws_once = false;                  // all steps of one decision (frame skip) take the same numbers
  bool runs_on = false;                     // steps after the end of an episode, in the same decision, change neither flags nor rewards: no need to mask them
  // What the environment is usually played with: the defaults of EnvOptions.
  int64_t frame_skip = 1;
  int64_t time_limit = 0;
  int64_t stack = 1;
  // Upper bounds of the reward of a step and of the return of an episode, if they are known: targets beyond them are refused.
  double highest_reward = std::numeric_limits<double>::infinity(), highest_return = std::numeric_limits<double>::infinity();
  std::string parameters = {};  // identifies its rules, for results: "pong 3f2a…"; empty: the name says it all
};

// A game, written as functions of tensors whose first axis is the instances. They are traced, so they must not read values; what one instance does must not
// depend on another. `draws` holds one f32 tensor [instances] per random number, uniform in [0, 1).
class Environment {
 public:
  using Draws = std::vector<Tensor>;
  struct Next {
    EnvState state;
    Tensor reward;      // f32 [instances]
    Tensor terminated;  // bool [instances]: the episode is over
    Tensor truncated;   // bool [instances]: it was cut off, though it could have gone on; undefined: never
  };

  virtual ~Environment() = default;
  virtual const EnvSpec& spec() const = 0;
  virtual EnvState reset(const Tensor& instance, const Draws& draws) const = 0;  // instance i64 [instances]: for the number of rows
  virtual Next step(const EnvState& state, const Tensor& action, const Draws& draws) const = 0;
  virtual Tensor observe(const EnvState& state) const = 0;  // [instances, observation…]
  virtual Tensor render(const EnvState& state) const;       // u8 [instances, height, width, 3]; undefined: it has no picture
};

// How instances are played. A field without a value (-1) takes the environment's own.
struct EnvOptions {
  int64_t frame_skip = -1;     // steps of the environment per decision, all with the same action; rewards are added
  int64_t time_limit = -1;     // decisions after which an episode is truncated; 0: never
  int64_t stack = -1;          // the observation holds this many frames, oldest first; the first frame of an episode is repeated
  double sticky = 0;           // the probability that a decision repeats the previous action
  int64_t noops = 0;           // the first 0 … noops decisions of an episode (drawn) are replaced by action 0
  double reward_clip = 0;      // rewards of a decision are clamped to ± this; 0: not. Episode returns are of unclipped rewards
  double reward_scale = 1;     // and then multiplied by this
  double timeout = 60;         // seconds that a host environment may take for one call before the run ends; 0: any number
  double return_discount = 0;  // keeps a running discounted return per instance, to scale rewards by its spread; 0: not
};

// Plays an environment for ever: an episode that ends starts again in the same decision. All that an instance is, its random numbers included, is in its state,
// so the state is its checkpoint. Draws are functions of (seed, instance, the instance's own decision number).
class Instances {
 public:
  Instances(std::shared_ptr<const Environment> environment, const EnvOptions& options = {});

  const Environment& environment() const { return *environment_; }
  const std::shared_ptr<const Environment>& environment_pointer() const { return environment_; }
  bool may_truncate() const;  // by the time limit, or by the environment itself
  bool on_host() const;       // the environment is a C++ object (ridge/host_environment.h): start(), step() and observe() fail
  const EnvSpec& spec() const { return environment_->spec(); }
  const EnvOptions& options() const { return options_; }  // complete: every field has a value
  Shape observation_shape() const;                        // of one instance: {stack, …} where frames are stacked
  double highest_return() const;                          // that an episode can have; infinite if unknown
  std::string describe() const;                           // one line for results: parameters, frame skip, stickiness, stack, time limit

  // The first state. instance: i64 [instances], numbers that are unique in the whole run.
  EnvState start(const Tensor& instance) const;

  struct Decision {
    EnvState state;                // after the decision; where an episode ended, the first of the next one
    Tensor reward;                 // f32 [instances]: clipped and scaled as the options say
    Tensor terminated, truncated;  // bool [instances]; never both
    Tensor final_observation;      // what the last state of an episode looked like: to bootstrap from where `truncated`. Costs nothing if it is not used
    Tensor episode_return;         // f32 [instances]: of the episode that ended here, before clipping and scaling; 0 where none ended
    Tensor episode_length;         // f32 [instances]: its decisions; 0 where none ended
  };
  Decision step(const EnvState& state, const Tensor& action) const;

  Tensor observe(const EnvState& state) const;  // [instances, observation_shape()…]
  Tensor frame(const EnvState& state) const;    // [instances, …]: the newest frame only, what a rollout stores
  // Rows of the state, each i64 [instances].
  Tensor age(const EnvState& state) const;       // decisions since the episode began: frame k of a stack (0 the newest) is that of min(k, age) decisions ago
  Tensor counter(const EnvState& state) const;   // decisions that the instance ever made: the counter of its draws
  Tensor instance(const EnvState& state) const;  // its number
  Tensor discounted_return(const EnvState& state) const;    // f32 [instances]; only with return_discount
  EnvState environment_state(const EnvState& state) const;  // the environment's own part, for render()

 private:
  struct Layout;  // which tensor of a state is what
  Layout layout(const EnvState& state) const;
  Tensor stacked(const Layout& layout) const;
  Tensor drawn_noops(const Tensor& instance, const Tensor& counter) const;
  Environment::Draws draws(const Tensor& instance, const Tensor& counter, uint32_t stream, int64_t per_decision, int64_t first, int64_t count) const;

  std::shared_ptr<const Environment> environment_;
  EnvOptions options_;
};

// A built-in or registered environment by name; environment_names() lists them. Throws ErrorCode::usage for an unknown name and says which is nearest.
std::shared_ptr<const Environment> make_environment(const std::string& name);
std::vector<std::string> environment_names();

// Pong, to 21 points. The agent has the right paddle; actions: 0 stay, 1 up, 2 down. Reward ±1 per point. "pong", "pong-pixels" and "pong-pixels-42" by name.
struct PongOptions {
  int64_t pixels = 0;        // 0: observations are 8 numbers; 84 or 42: pictures of that size, u8, the maximum of two successive frames
  bool two_players = false;  // actions are i64 [instances, 2]: the agent's and the opponent's; else the opponent plays by itself
};
std::shared_ptr<const Environment> make_pong(const PongOptions& options = {});
std::string pong_hash();  // of Pong's rules and parameters: results are comparable if it is equal

}  // namespace ridge
