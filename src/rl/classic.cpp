// Classic control: the equations, limits and rewards of Gymnasium.
#include "rl/classic.h"

#include <numbers>

#include "rl/numbers.h"
#include "rl/pictures.h"

namespace ridge::rl {
namespace {

constexpr double kPi = std::numbers::pi;

Tensor between(const Tensor& x, double low, double high) { return minimum(maximum(x, num(low)), num(high)); }
Tensor wrapped(const Tensor& angle) { return angle - num(2 * kPi) * floor((angle + num(kPi)) / num(2 * kPi)); }  // to [-π, π)
Tensor only(const Tensor& action) { return reshape(action, {action.shape()[0]}); }
Tensor never(const Tensor& like) { return full(like.shape(), 0, DType::boolean); }

// A pole on a cart that is pushed left or right; explicit Euler steps. State: position, velocity, angle, angular velocity.
class CartPole final : public Environment {
 public:
  const EnvSpec& spec() const override { return spec_; }

  EnvState reset(const Tensor&, const Draws& draws) const override {
    EnvState s;
    for (const Tensor& u : draws) s.push_back(u * num(0.1) - num(0.05));
    return s;
  }

  Next step(const EnvState& s, const Tensor& action, const Draws&) const override {
    const double gravity = 9.8, cart = 1, pole = 0.1, half_length = 0.5, push = 10, dt = 0.02;
    const double mass = cart + pole, moment = pole * half_length;
    const Tensor &x = s[0], &speed = s[1], &angle = s[2], &spin = s[3];
    const Tensor force = where(equal(action, whole(1)), num(push), num(-push));
    const auto [sine, cosine] = sine_cosine(angle);
    const Tensor part = (force + num(moment) * (spin * spin) * sine) / num(mass);
    const Tensor turn = (num(gravity) * sine - cosine * part) / (num(half_length) * (num(4.0 / 3.0) - num(pole) * (cosine * cosine) / num(mass)));
    const Tensor pull = part - num(moment) * turn * cosine / num(mass);
    Next n;
    n.state = {x + num(dt) * speed, speed + num(dt) * pull, angle + num(dt) * spin, spin + num(dt) * turn};
    n.reward = full(x.shape(), 1);
    const double far = 2.4, tilted = 12 * 2 * kPi / 360;
    n.terminated = logical_or(abs(n.state[0]) > num(far), abs(n.state[2]) > num(tilted));
    return n;
  }

  Tensor observe(const EnvState& s) const override { return stack(s, 1); }

  Tensor render(const EnvState& s) const override {
    Picture picture({80, 160, 2.6, 1.3}, s[0].shape()[0], kSky);
    picture.fill(num(0), num(0.92), 2.6, 0.02, kDark);
    picture.fill(s[0], num(0.8), 0.25, 0.12, kDark);
    const auto [sine, cosine] = sine_cosine(s[2]);
    picture.line(s[0], full(s[0].shape(), 0.68), s[0] + sine, num(0.68) - cosine, 0.05, kBright);
    return picture.bytes();
  }

 private:
  const EnvSpec spec_ = {.name = "cartpole", .observation = {4}, .actions = {.choices = {2}}, .reset_draws = 4, .time_limit = 500, .highest_reward = 1};
};

// Two links that hang from a pivot; a torque at the joint between them swings the end up. State: two angles and their speeds.
class Acrobot final : public Environment {
 public:
  const EnvSpec& spec() const override { return spec_; }

  EnvState reset(const Tensor&, const Draws& draws) const override {
    EnvState s;
    for (const Tensor& u : draws) s.push_back(u * num(0.2) - num(0.1));
    return s;
  }

  Next step(const EnvState& s, const Tensor& action, const Draws&) const override {
    const double dt = 0.2;
    const Tensor torque = cast(action, DType::f32) - num(1);
    auto ahead = [&](const EnvState& slope, double time) {
      EnvState moved;
      for (size_t i = 0; i < 4; ++i) moved.push_back(s[i] + num(time) * slope[i]);
      return moved;
    };
    const EnvState k1 = slopes(s, torque), k2 = slopes(ahead(k1, dt / 2), torque), k3 = slopes(ahead(k2, dt / 2), torque), k4 = slopes(ahead(k3, dt), torque);
    Next n;
    for (size_t i = 0; i < 4; ++i) n.state.push_back(s[i] + num(dt / 6) * (k1[i] + num(2) * k2[i] + num(2) * k3[i] + k4[i]));
    n.state[0] = wrapped(n.state[0]), n.state[1] = wrapped(n.state[1]);
    n.state[2] = between(n.state[2], -4 * kPi, 4 * kPi), n.state[3] = between(n.state[3], -9 * kPi, 9 * kPi);
    n.terminated = -sine_cosine(n.state[0]).second - sine_cosine(n.state[1] + n.state[0]).second > num(1);
    n.reward = where(n.terminated, num(0), num(-1));
    return n;
  }

  Tensor observe(const EnvState& s) const override {
    const auto [s1, c1] = sine_cosine(s[0]);
    const auto [s2, c2] = sine_cosine(s[1]);
    return stack({c1, s1, c2, s2, s[2], s[3]}, 1);
  }

  Tensor render(const EnvState& s) const override {
    Picture picture({120, 120, 2.2, 2.2}, s[0].shape()[0], kSky);
    picture.fill(num(0), num(-1), 2.2, 0.015, kDark);
    const auto [s1, c1] = sine_cosine(s[0]);
    const auto [s2, c2] = sine_cosine(s[0] + s[1]);
    picture.line(full(s1.shape(), 0), full(s1.shape(), 0), s1, c1, 0.08, kBright);
    picture.line(s1, c1, s1 + s2, c1 + c2, 0.08, kDark);
    return picture.bytes();
  }

 private:
  // Masses, lengths and moments of inertia are 1, centres of mass in the middle of the links.
  static EnvState slopes(const EnvState& s, const Tensor& torque) {
    const double g = 9.8, half = 0.5;
    const auto [sine1, cosine1] = sine_cosine(s[0]);
    const auto [sine2, cosine2] = sine_cosine(s[1]);
    const Tensor sine_sum = sine1 * cosine2 + cosine1 * sine2;  // cos(a - π/2) = sin a
    const Tensor d1 = num(half * half + 1 + half * half + 2) + cosine2, d2 = num(half * half + 1) + num(half) * cosine2;
    const Tensor phi2 = num(half * g) * sine_sum;
    const Tensor phi1 = num(-half) * (s[3] * s[3]) * sine2 - s[3] * s[2] * sine2 + num((half + 1) * g) * sine1 + phi2;
    const Tensor a2 = (torque + d2 / d1 * phi1 - num(half) * (s[2] * s[2]) * sine2 - phi2) / (num(half * half + 1) - d2 * d2 / d1);
    return {s[2], s[3], -(d2 * a2 + phi1) / d1, a2};
  }

  const EnvSpec spec_ = {.name = "acrobot", .observation = {6}, .actions = {.choices = {3}}, .reset_draws = 4, .time_limit = 500, .highest_return = 0};
};

// A pendulum that a weak motor swings up and holds. State: angle (0 is upright), angular velocity.
class Pendulum final : public Environment {
 public:
  const EnvSpec& spec() const override { return spec_; }

  EnvState reset(const Tensor&, const Draws& draws) const override { return {draws[0] * num(2 * kPi) - num(kPi), draws[1] * num(2) - num(1)}; }

  Next step(const EnvState& s, const Tensor& action, const Draws&) const override {
    const double g = 10, dt = 0.05;
    const Tensor torque = between(only(action), -2, 2), angle = wrapped(s[0]);
    const Tensor spin = between(s[1] + (num(1.5 * g) * sine_cosine(s[0]).first + num(3) * torque) * num(dt), -8, 8);
    return {{s[0] + spin * num(dt), spin}, -(angle * angle + num(0.1) * (s[1] * s[1]) + num(0.001) * (torque * torque)), never(spin), {}};
  }

  Tensor observe(const EnvState& s) const override {
    const auto [sine, cosine] = sine_cosine(s[0]);
    return stack({cosine, sine, s[1]}, 1);
  }

  Tensor render(const EnvState& s) const override {
    Picture picture({100, 100, 1.3, 1.3}, s[0].shape()[0], kSky);
    const auto [sine, cosine] = sine_cosine(s[0]);
    picture.line(full(sine.shape(), 0), full(sine.shape(), 0), -sine, -cosine, 0.08, kBright);
    picture.fill(num(0), num(0), 0.05, 0.05, kDark);
    return picture.bytes();
  }

 private:
  const EnvSpec spec_ = {.name = "pendulum",
                         .observation = {3},
                         .actions = {.kind = ActionSpace::Kind::continuous, .low = {-2}, .high = {2}},
                         .reset_draws = 2,
                         .time_limit = 200,
                         .highest_return = 0};
};

// A car in a valley that must swing back and forth to get up the hill. State: position, velocity.
class MountainCar final : public Environment {
 public:
  explicit MountainCar(bool continuous) : continuous_(continuous) {
    spec_.name = continuous ? "mountain-car-continuous" : "mountain-car";
    spec_.observation = {2}, spec_.reset_draws = 1, spec_.time_limit = continuous ? 999 : 200, spec_.highest_return = continuous ? 100 : 0;
    spec_.actions = continuous ? ActionSpace{.kind = ActionSpace::Kind::continuous, .low = {-1}, .high = {1}} : ActionSpace{.choices = {3}};
  }
  const EnvSpec& spec() const override { return spec_; }

  EnvState reset(const Tensor&, const Draws& draws) const override { return {draws[0] * num(0.2) - num(0.6), full(draws[0].shape(), 0)}; }

  Next step(const EnvState& s, const Tensor& action, const Draws&) const override {
    const Tensor asked = continuous_ ? only(action) : cast(action, DType::f32) - num(1);
    const Tensor force = continuous_ ? between(asked, -1, 1) * num(0.0015) : asked * num(0.001);
    const Tensor fast = between(s[1] + (force - num(0.0025) * sine_cosine(num(3) * s[0]).second), -0.07, 0.07);
    const Tensor position = between(s[0] + fast, kLeft, 0.6);
    const Tensor velocity = where(logical_and(position <= num(kLeft), fast < num(0)), num(0), fast);
    const Tensor there = logical_and(position >= num(continuous_ ? 0.45 : 0.5), velocity >= num(0));
    const Tensor reward = continuous_ ? where(there, num(100), num(0)) - asked * asked * num(0.1) : full(position.shape(), -1);
    return {{position, velocity}, reward, there, {}};
  }

  Tensor observe(const EnvState& s) const override { return stack(s, 1); }

  Tensor render(const EnvState& s) const override {
    Picture picture({80, 120, 0.9, 0.6}, s[0].shape()[0], kSky);
    auto height = [](const Tensor& x) { return num(0.5) - num(0.45) * (sine_cosine(num(3) * x).first + num(1)); };
    picture.curve([&](const Tensor& x) { return height(x - num(0.3)) + num(0.06); }, 0.02, kDark);
    picture.fill(num((continuous_ ? 0.45 : 0.5) + 0.3), num(-0.45), 0.01, 0.08, kBright);
    picture.fill(s[0] + num(0.3), height(s[0]), 0.06, 0.035, kBright);
    return picture.bytes();
  }

 private:
  static constexpr double kLeft = -1.2;
  bool continuous_;
  EnvSpec spec_;
};

}  // namespace

std::shared_ptr<const Environment> make_cartpole() { return std::make_shared<CartPole>(); }
std::shared_ptr<const Environment> make_acrobot() { return std::make_shared<Acrobot>(); }
std::shared_ptr<const Environment> make_pendulum() { return std::make_shared<Pendulum>(); }
std::shared_ptr<const Environment> make_mountain_car(bool continuous) { return std::make_shared<MountainCar>(continuous); }

}  // namespace ridge::rl
