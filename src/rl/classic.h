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

// Balls, a paddle and a wall of bricks, in the style of Pong; pixels: 0 for numbers, or the size of a picture.
std::shared_ptr<const Environment> make_breakout(int64_t pixels);

}  // namespace ridge::rl
