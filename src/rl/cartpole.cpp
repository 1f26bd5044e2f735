#include <numbers>

#include "rl/classic.h"
#include "rl/numbers.h"

namespace ridge::rl {
namespace {

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
    const double far = 2.4, tilted = 12 * 2 * std::numbers::pi / 360;
    n.terminated = logical_or(abs(n.state[0]) > num(far), abs(n.state[2]) > num(tilted));
    return n;
  }

  Tensor observe(const EnvState& s) const override { return stack(s, 1); }

 private:
  const EnvSpec spec_ = {
      .name = "cartpole", .observation = {4}, .actions = {.kind = ActionSpace::Kind::discrete, .choices = {2}}, .reset_draws = 4, .time_limit = 500};
};

}  // namespace

std::shared_ptr<const Environment> make_cartpole() { return std::make_shared<CartPole>(); }

}  // namespace ridge::rl
