// The keys and presets of agents.
#include "config/key.h"
#include "config/presets.h"
#include "tasks/ppo/task.h"

namespace ridge {
namespace config::ppo_keys {

using enum Type;

constexpr std::string_view kAgent = "Agent (ppo)", kGame = "Environment (ppo)", kLearning = "PPO (ppo)", kUse = "plan, train";

// clang-format off
constexpr Key kPpoKeys[] = {
  {.name = "preset", .group = kAgent, .type = choice, .initial = "pong-state", .help = "an environment with a recipe that learns it; individual keys override it",
   .words = "pong-state|pong|pong-classic|cartpole|acrobot|pendulum|mountain-car|breakout", .used_by = kUse},
  {.name = "spec", .group = kAgent, .type = text, .initial = "", .help = "a spec file of SLM-Lab and the name of a spec in it, as FILE:NAME; other settings override it", .used_by = kUse},
  {.name = "spec_variables", .group = kAgent, .type = list, .initial = "", .help = "values for ${name} in the spec file: name=value", .used_by = kUse},
  {.name = "network", .group = kAgent, .type = choice, .initial = "mlp", .help = "mlp for numbers; for pictures nature (three convolutions and 512 units) or small (two and 128)", .words = "mlp|nature|small", .used_by = kUse},
  {.name = "units", .group = kAgent, .type = integer, .initial = "64", .help = "units per layer of an mlp", .low = 1, .high = 1 << 16, .aliases = "hidden hidden_size", .used_by = kUse},
  {.name = "layers", .group = kAgent, .type = integer, .initial = "2", .help = "layers of an mlp", .low = 1, .high = 64, .used_by = kUse},
  {.name = "activation", .group = kAgent, .type = choice, .initial = "tanh", .help = "of an mlp", .words = "tanh|relu", .used_by = kUse},
  {.name = "separate", .group = kAgent, .type = boolean, .initial = "false", .help = "the value has layers of its own instead of sharing those of the actions", .used_by = kUse},
  {.name = "recurrent", .group = kAgent, .type = choice, .initial = "none", .help = "a recurrent layer before the outputs, as memory", .words = "none|cfc|ltc|lstm|gru|mingru", .used_by = kUse},
  {.name = "recurrent_units", .group = kAgent, .type = integer, .initial = "64", .help = "its size", .low = 1, .high = 1 << 14, .used_by = kUse},
  {.name = "init_from", .group = kAgent, .type = path, .initial = "", .help = "run or model folder whose weights to start from; empty: new weights", .used_by = kUse},

  {.name = "env", .group = kGame, .type = text, .initial = "pong", .help = "the environment's name: pong, pong-pixels, pong-pixels-42, breakout, cartpole, acrobot, pendulum, mountain-car, mountain-car-continuous", .aliases = "environment", .used_by = kUse},
  {.name = "frame_skip", .group = kGame, .type = integer, .initial = "auto", .help = "steps of the environment per decision; auto: its own", .words = "auto", .low = 1, .high = 16, .used_by = kUse},
  {.name = "time_limit", .group = kGame, .type = integer, .initial = "auto", .help = "decisions after which an episode is cut off; 0: never; auto: the environment's own", .words = "auto", .high = 1e9, .used_by = kUse},
  {.name = "frame_stack", .group = kGame, .type = integer, .initial = "auto", .help = "frames per observation; auto: the environment's own", .words = "auto", .low = 1, .high = 64, .aliases = "stack", .used_by = kUse},
  {.name = "sticky", .group = kGame, .type = real, .initial = "0", .help = "probability that a decision repeats the last action", .high = 1, .below_high = true, .used_by = kUse},
  {.name = "noops", .group = kGame, .type = integer, .initial = "0", .help = "up to this many decisions at the start of an episode are replaced by action 0", .high = 1e6, .used_by = kUse},
  {.name = "reward_clip", .group = kGame, .type = real, .initial = "0", .help = "rewards are clamped to this size; 0: not", .high = 1e9, .used_by = kUse},
  {.name = "env_halves", .group = kGame, .type = choice, .initial = "auto", .help = "a host environment steps for one half of the instances while the network acts for the other; auto: if that measures faster", .words = "auto|true|false", .used_by = kUse},
  {.name = "env_timeout", .group = kGame, .type = real, .initial = "60", .help = "seconds that a host environment may take for one call before the run ends; 0: any number", .high = 1e9, .used_by = kUse},

  {.name = "decisions", .group = kLearning, .type = integer, .initial = "auto", .help = "decisions of all instances together; auto: from the preset", .words = "auto", .low = 1, .high = 1e15, .aliases = "total_timesteps max_frame", .used_by = kUse},
  {.name = "instances", .group = kLearning, .type = integer, .initial = "64", .help = "environments played at the same time; auto: the fewest that play at the full speed of this machine, measured once and kept by the run", .words = "auto", .low = 1, .high = 1 << 24, .aliases = "num_envs", .used_by = kUse},
  {.name = "horizon", .group = kLearning, .type = integer, .initial = "64", .help = "decisions of each instance between updates", .low = 1, .high = 1 << 20, .aliases = "num_steps", .used_by = kUse},
  {.name = "minibatch", .group = kLearning, .type = integer, .initial = "1024", .help = "decisions per update", .low = 1, .high = 1 << 28, .aliases = "minibatch_size", .used_by = kUse},
  {.name = "update_epochs", .group = kLearning, .type = integer, .initial = "4", .help = "passes over what was collected", .low = 1, .high = 1000, .used_by = kUse},
  {.name = "segment", .group = kLearning, .type = integer, .initial = "auto", .help = "successive decisions in a minibatch that share a recurrent state; auto: the horizon, and 1 without a recurrent layer", .words = "auto", .low = 1, .high = 1 << 20, .used_by = kUse},
  {.name = "gamma", .group = kLearning, .type = real, .initial = "0.99", .help = "discount of later rewards per decision", .high = 1, .used_by = kUse},
  {.name = "lambda", .group = kLearning, .type = real, .initial = "0.95", .help = "decay of advantages per decision", .high = 1, .aliases = "gae_lambda lam", .used_by = kUse},
  {.name = "clip_range", .group = kLearning, .type = real, .initial = "0.2", .help = "largest change of an action's probability ratio that counts", .high = 10, .above_low = true, .aliases = "clip_coef clip_eps", .used_by = kUse},
  {.name = "value_clip", .group = kLearning, .type = real, .initial = "0", .help = "largest change of a value that counts; 0: any", .high = 1e9, .used_by = kUse},
  {.name = "value_weight", .group = kLearning, .type = real, .initial = "0.5", .help = "weight of the value's loss", .high = 1e6, .aliases = "vf_coef val_loss_coef", .used_by = kUse},
  {.name = "entropy", .group = kLearning, .type = real, .initial = "0.01", .help = "weight of the entropy bonus", .high = 1e6, .aliases = "ent_coef entropy_coef", .used_by = kUse},
  {.name = "final_entropy", .group = kLearning, .type = real, .initial = "none", .help = "this weight at the end, reached linearly; below 0, policies that have decided are favoured; none: constant", .words = "none", .low = -1, .high = 1e6, .used_by = kUse},
  {.name = "target_kl", .group = kLearning, .type = real, .initial = "none", .help = "the rest of a rollout's epochs is left out when the KL divergence of one exceeds this", .words = "none", .high = 1e6, .above_low = true, .used_by = kUse},
  {.name = "adaptive_kl", .group = kLearning, .type = real, .initial = "none", .help = "the learning rate follows the KL divergence per epoch to stay near this; none: only the schedule", .words = "none", .high = 1e6, .above_low = true, .used_by = kUse},
  {.name = "normalize_observations", .group = kLearning, .type = boolean, .initial = "false", .help = "observations are scaled by their running mean and deviation", .used_by = kUse},
  {.name = "normalize_values", .group = kLearning, .type = boolean, .initial = "false", .help = "values are learnt relative to the running mean and deviation of returns", .used_by = kUse},
  {.name = "scale_rewards", .group = kLearning, .type = boolean, .initial = "false", .help = "rewards are divided by the running deviation of discounted returns", .used_by = kUse},
  {.name = "adam_epsilon", .group = kLearning, .type = real, .initial = "1e-5", .help = "added to the root of Adam's second moment", .high = 1, .above_low = true, .used_by = kUse},
  {.name = "target_score", .group = kLearning, .type = real, .initial = "none", .help = "stop when 100 episodes score this or at most 0.5 less, after the training's own score reached it", .words = "none", .low = -1e9, .high = 1e9, .used_by = "train"},
  {.name = "episodes", .group = kLearning, .type = integer, .initial = "100", .help = "episodes of an evaluation; ridge watch plays 1 unless this is set", .low = 1, .high = 1e6, .used_by = "eval, watch"},
};
// clang-format on

constexpr Preset kPpoPresets[] = {
    {"pong-state",
     "env=pong network=mlp units=64 layers=3 activation=relu instances=128 horizon=1024 minibatch=8192 update_epochs=4 gamma=0.98 lambda=0.98 clip_range=0.3 "
     "entropy=0 lr=1e-2 min_lr=0 schedule=linear normalize_values=true decisions=9000000 target_score=20 weight_decay=0 clip=1 beta2=0.999"},
    {"pong",
     "env=pong-pixels-42 network=small instances=128 horizon=256 minibatch=8192 update_epochs=4 gamma=0.98 lambda=0.85 clip_range=0.3 entropy=0.001 "
     "final_entropy=0 lr=7e-3 min_lr=0 schedule=linear normalize_values=true decisions=12000000 target_score=18 weight_decay=0 clip=1 beta2=0.999"},
    {"pong-classic",
     "env=pong-pixels network=nature instances=8 horizon=128 minibatch=256 update_epochs=4 gamma=0.99 lambda=0.95 clip_range=0.1 value_clip=0.1 entropy=0.01 "
     "lr=2.5e-4 min_lr=0 schedule=linear decisions=10000000 target_score=18 weight_decay=0 clip=0.5 beta2=0.999"},
    {"cartpole",
     "env=cartpole network=mlp units=64 layers=2 instances=32 horizon=32 minibatch=256 update_epochs=4 gamma=0.98 lambda=0.9 entropy=0.0 lr=2e-3 min_lr=0 "
     "schedule=linear decisions=500000 target_score=475 weight_decay=0 clip=0.5 beta2=0.999"},
    {"acrobot",
     "env=acrobot network=mlp units=64 layers=2 instances=64 horizon=64 minibatch=1024 update_epochs=4 gamma=0.99 lambda=0.95 entropy=0.0 lr=1e-3 min_lr=0 "
     "schedule=linear normalize_observations=true normalize_values=true decisions=2000000 target_score=-100 weight_decay=0 clip=0.5 beta2=0.999"},
    {"pendulum",
     "env=pendulum network=mlp units=64 layers=2 instances=64 horizon=64 minibatch=1024 update_epochs=8 gamma=0.9 lambda=0.95 entropy=0.0 lr=1e-3 min_lr=0 "
     "schedule=linear normalize_observations=true normalize_values=true decisions=3000000 target_score=-250 weight_decay=0 clip=0.5 beta2=0.999"},
    {"mountain-car",
     "env=mountain-car-continuous network=mlp units=64 layers=2 instances=64 horizon=128 minibatch=1024 update_epochs=8 gamma=0.999 lambda=0.95 entropy=0.01 "
     "lr=1e-3 min_lr=0 schedule=linear normalize_observations=true normalize_values=true decisions=5000000 target_score=90 weight_decay=0 clip=0.5 "
     "beta2=0.999"},
    {"breakout",
     "env=breakout network=mlp units=64 layers=3 instances=1024 horizon=64 minibatch=16384 update_epochs=4 gamma=0.99 lambda=0.95 entropy=0.001 lr=3e-3 "
     "schedule=constant adaptive_kl=0.01 normalize_values=true decisions=50000000 target_score=350 weight_decay=0 clip=1 beta2=0.999"},
};

}  // namespace config::ppo_keys

void register_ppo_keys() {
  using namespace config;
  using namespace config::ppo_keys;
  register_keys(task_bit(kPpoName), "", kPpoKeys);
  register_presets("preset", kPpoPresets);
}

}  // namespace ridge
