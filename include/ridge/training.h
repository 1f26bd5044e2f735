// What a training is asked for and how it ends: optimizers, how their rate falls, and why a run ended.
#pragma once
#include <cstdint>

namespace ridge {

// A step is compiled only with settings that keep weights finite: lr and decay finite and not negative, betas and momentum from 0 to below 1, eps above 0.
struct Optimizer {
  enum class Kind { adamw, adam, sgd } kind = Kind::adamw;
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double decay = 0;  // of parameters that decay
  double momentum = 0;
  bool nesterov = false;
};

enum class RateKind { cosine, linear, constant };  // how the rate falls from its highest value to its last one

enum class TrainingEnd : uint8_t { finished, target, time, interrupted, terminated, diverged, unsaved };  // unsaved: three checkpoints in a row failed

}  // namespace ridge
