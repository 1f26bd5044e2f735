// Training options and results: optimizers, learning-rate schedules, and why a run ended.
#pragma once
#include <cstdint>

namespace ridge {

// Compiling a step rejects settings that cannot keep weights finite: lr and decay must be finite and >= 0, betas and momentum in [0, 1), eps > 0, scale finite
// and >= 0.
struct Optimizer {
  enum class Kind { adamw, adam, sgd, muon } kind = Kind::adamw;
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double decay = 0;  // weight decay, for parameters with NamedTensor::decay
  double momentum = 0;
  bool nesterov = false;
  double scale = 0.2;  // of Muon's updates
};

// What an update does to a parameter: any change, none below 0 (negative values are set to 0), or none, as for masks; a constant has no gradient.
enum class ParameterRule : uint8_t { trained, nonnegative, constant };

enum class RateKind { cosine, linear, constant };  // how the rate falls from its peak to its final value

enum class TrainingEnd : uint8_t { finished, target, time, interrupted, terminated, diverged, unsaved };  // unsaved: three checkpoints in a row failed

}  // namespace ridge
