#include "optim/update.h"

#include "base/error.h"

namespace ridge {

void check_state(const Builder& b, const char* op, std::span<const NodeId> parameters, std::span<const NodeId> state) {
  if (state.size() != parameters.size())
    fail(ErrorCode::value, "[{}] {} moments or gradients for {} parameters; give one each", op, state.size(), parameters.size());
  for (size_t i = 0; i < state.size(); ++i)
    if (!(b.shape(state[i]) == b.shape(parameters[i])))
      fail(ErrorCode::shape, "[{}] parameter {} is {}, its gradient or moment {}; they must match", op, i, to_string(b.shape(parameters[i])),
           to_string(b.shape(state[i])));
}

void check_update(const Builder& b, const char* op, std::span<const NodeId> parameters, std::span<const NodeId> gradients, std::span<const double> decay) {
  check_state(b, op, parameters, gradients);
  if (decay.size() > 1 && decay.size() != parameters.size())
    fail(ErrorCode::value, "[{}] {} decay values for {} parameters; give none, one, or one each", op, decay.size(), parameters.size());
}

}  // namespace ridge
