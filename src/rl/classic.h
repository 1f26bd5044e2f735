// Built-in environments; make_environment() finds them by name.
#pragma once
#include <memory>

#include "ridge/rl.h"

namespace ridge::rl {

// Classic control, with the equations and limits of Gymnasium.
std::shared_ptr<const Environment> make_cartpole();
std::shared_ptr<const Environment> make_acrobot();
std::shared_ptr<const Environment> make_pendulum();
std::shared_ptr<const Environment> make_mountain_car(bool continuous);

}  // namespace ridge::rl
