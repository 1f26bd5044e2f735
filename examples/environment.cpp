// A game of your own as tensor code: fruit falls, a basket catches it. A thousand instances of it play at once, inside one compiled loop.
#include <cstdio>
#include <memory>
#include <numeric>
#include <vector>

#include "ridge/ridge.h"

using namespace ridge;

// Nine columns, ten rows. Actions: 0 left, 1 stay, 2 right. Reward 1 for fruit that is caught, -1 for one that is not; then the episode is over.
class Catch : public Environment {
 public:
  Catch() {
    spec_.name = "catch";
    spec_.observation = {3};      // fruit's column and row, basket's column
    spec_.actions.choices = {3};  // one choice of three
    spec_.reset_draws = 1;        // random numbers per instance that reset() takes
  }
  const EnvSpec& spec() const override { return spec_; }

  // Every tensor of the state is [instances].
  EnvState reset(const Tensor& instance, const Draws& draws) const override {
    return {floor(draws[0] * 9), full(instance.shape(), 0), full(instance.shape(), 4)};
  }

  Next step(const EnvState& s, const Tensor& action, const Draws&) const override {
    const Tensor &column = s[0], row = s[1] + 1, basket = clamp(s[2] + cast(action, DType::f32) - 1, 0, 8);
    const Tensor down = row >= 9, caught = equal(column, basket);
    return {{column, row, basket}, where(down, where(caught, 1, -1), 0), down, {}};
  }

  Tensor observe(const EnvState& s) const override { return stack(s, 1) / 9; }

 private:
  EnvSpec spec_;
};

// Mean return of the episodes that 1,000 instances finish in 100 decisions.
double play(const Instances& game, Tensor (*policy)(const Instances&, const EnvState&)) {
  const int64_t instances = 1000, decisions = 100;
  std::vector<int64_t> numbers(instances);
  std::iota(numbers.begin(), numbers.end(), 0);
  std::vector<Tensor> carry = game.start(Tensor({instances}, numbers));
  carry.insert(carry.end(), {full({instances}, 0), full({instances}, 0)});  // sum of returns, number of episodes
  auto decide = [&](const std::vector<Tensor>& c, const std::vector<Tensor>&) -> ScanOutput {
    const EnvState state(c.begin(), c.end() - 2);
    const Instances::Decision d = game.step(state, policy(game, state));
    ScanOutput next{d.state, {}};
    next.carry.push_back(c[c.size() - 2] + d.episode_return);
    next.carry.push_back(c[c.size() - 1] + cast(d.terminated, DType::f32));
    return next;
  };
  carry = scan(decide, carry, {full({decisions}, 0)}).carry;
  return sum(carry[carry.size() - 2]).item() / sum(carry.back()).item();
}

Tensor at_random(const Instances& game, const EnvState& s) {
  return cast(floor(uniform_at(game.counter(s), game.instance(s), 16) * 3), DType::i64);  // a new number for each instance and decision
}

Tensor follow(const Instances& game, const EnvState& s) {
  const Tensor seen = game.observe(s), distance = slice(seen, 1, 0, 1) - slice(seen, 1, 2, 3);
  return cast(reshape(sign(distance), {seen.shape()[0]}) + 1, DType::i64);
}

int main() {
  seed(1);
  const Instances game(std::make_shared<Catch>());
  std::printf("%s\n", game.describe().c_str());
  std::printf("at random     %6.3f per episode\n", play(game, at_random));
  std::printf("follow it     %6.3f per episode\n", play(game, follow));
}
