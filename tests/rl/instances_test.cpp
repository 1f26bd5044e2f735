// The wrapper against a plain loop over one instance at a time.
#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"
#include "rl/matches.h"
#include "support/errors.h"

namespace ridge::test {
namespace {

constexpr uint64_t kSeed = 5;

float drawn(int64_t counter, int64_t lane, uint32_t stream) { return uniform_from(philox({kSeed, uint32_t(lane), 0x60000000 + stream}, uint64_t(counter))[0]); }

// Counts its steps, adds up its actions and draws; over after 3 to 7 steps. Cut off when the actions add up to 9, if it `cuts`.
class Steps : public Environment {
 public:
  explicit Steps(bool cuts) : cuts_(cuts) {
    spec_.name = "steps", spec_.observation = {3}, spec_.actions.choices = {3}, spec_.reset_draws = 2, spec_.step_draws = 1;
  }
  const EnvSpec& spec() const override { return spec_; }
  EnvState reset(const Tensor&, const Draws& d) const override {
    return {floor(d[0] * number(5)) + number(3), full(d[0].shape(), 0), full(d[0].shape(), 0), d[1]};
  }
  Next step(const EnvState& s, const Tensor& action, const Draws& d) const override {
    const Tensor a = cast(action, DType::f32), steps = s[1] + number(1), actions = s[2] + a;
    Next n{{s[0], steps, actions, s[3] + d[0]}, a + steps, steps >= s[0], {}};
    if (cuts_) n.truncated = actions >= number(9);
    return n;
  }
  Tensor observe(const EnvState& s) const override { return stack({s[1], s[2], s[3]}, 1); }

 private:
  bool cuts_;
  EnvSpec spec_;
};

struct Row {  // what one decision of one instance gives
  std::vector<float> observation, final_observation;
  float reward = 0, total = 0, length = 0, discounted = 0;
  bool terminated = false, truncated = false;
};

// The same game for one instance, as one would write it without tensors.
struct Plain {
  const EnvOptions& o;
  bool cuts;
  int64_t instance, counter = 0, age = 0, previous = 0, noops = 0;
  float need = 0, steps = 0, actions = 0, sum = 0, total = 0, discounted = 0;
  std::vector<std::vector<float>> frames;  // of this episode, oldest first

  Plain(const EnvOptions& options, bool cut, int64_t number) : o(options), cuts(cut), instance(number) { reset(); }
  void reset() {
    need = std::floor(drawn(counter, instance * 2, 1) * 5) + 3, sum = drawn(counter, instance * 2 + 1, 1), steps = actions = total = 0, age = previous = 0;
    noops = o.noops ? int64_t(std::floor(drawn(counter, instance, 4) * float(o.noops + 1))) : 0;
    frames = {{steps, actions, sum}};
  }
  std::vector<float> stack() const {
    std::vector<float> all;
    for (int64_t k = o.stack - 1; k >= 0; --k) {
      const auto& f = frames[size_t(std::max<int64_t>(0, int64_t(frames.size()) - 1 - k))];
      all.insert(all.end(), f.begin(), f.end());
    }
    return all;
  }
  Row step(int64_t action) {
    Row r;
    r.observation = stack();
    if (o.sticky > 0 && drawn(counter, instance, 3) < float(o.sticky)) action = previous;
    if (noops > 0) action = 0;
    float reward = 0;
    for (int64_t k = 0; k < o.frame_skip && !r.terminated && !r.truncated; ++k) {
      ++steps, actions += float(action), sum += drawn(counter, o.frame_skip == 1 ? instance : instance * o.frame_skip + k, 2);
      reward += float(action) + steps;
      r.terminated = steps >= need, r.truncated = cuts && actions >= 9;
    }
    ++counter, ++age, --noops, total += reward, previous = action;
    if (o.time_limit && age >= o.time_limit) r.truncated = true;
    if (r.terminated) r.truncated = false;
    frames.push_back({steps, actions, sum});
    r.final_observation = stack();
    r.reward = (o.reward_clip > 0 ? std::min(std::max(reward, -float(o.reward_clip)), float(o.reward_clip)) : reward) * float(o.reward_scale);
    if (r.terminated || r.truncated)
      r.total = total, r.length = float(age), reset(), discounted = 0;
    else
      discounted *= float(o.return_discount);
    r.discounted = discounted += r.reward;
    return r;
  }
};

void compare(EnvOptions options, bool cuts = false) {
  constexpr int64_t kRows = 37, kFirst = 1000, kDecisions = 40;
  const Instances game(std::make_shared<Steps>(cuts), options);
  options = game.options();
  seed(kSeed);
  std::vector<int64_t> actions;
  for (int64_t i = 0; i < kDecisions * kRows; ++i) actions.push_back(int64_t(random_word({1, 2, 3}, uint64_t(i)) % 3));
  const ScanStep step = [&](const std::vector<Tensor>& c, const std::vector<Tensor>& x) -> ScanOutput {
    const Instances::Decision d = game.step(c, x[0]);
    ScanOutput out{d.state, {game.observe(c), d.final_observation, d.reward, d.terminated, d.truncated, d.episode_return, d.episode_length, game.counter(c)}};
    if (options.return_discount > 0) out.outputs.push_back(game.discounted_return(d.state));
    return out;
  };
  const ScanOutput out = scan(step, game.start(numbers_from(kFirst, kRows)), {Tensor({kDecisions, kRows}, std::span<const int64_t>(actions))});
  detail::evaluate(out.outputs);
  std::vector<std::vector<float>> got;
  for (const Tensor& t : out.outputs) got.push_back(t.to_floats());
  int64_t ends = 0, cut_off = 0;
  for (int64_t i = 0; i < kRows; ++i) {
    Plain plain(options, cuts, kFirst + i);
    for (int64_t t = 0; t < kDecisions; ++t) {
      const size_t at = size_t(t * kRows + i);
      const Row r = plain.step(actions[at]);
      SCOPED_TRACE("decision " + std::to_string(t) + ", instance " + std::to_string(i));
      for (size_t k = 0; k < r.observation.size(); ++k) {
        ASSERT_EQ(got[0][at * r.observation.size() + k], r.observation[k]) << k;
        ASSERT_EQ(got[1][at * r.observation.size() + k], r.final_observation[k]) << k;
      }
      ASSERT_EQ(got[2][at], r.reward);
      ASSERT_EQ(got[3][at], r.terminated);
      ASSERT_EQ(got[4][at], r.truncated);
      ASSERT_EQ(got[5][at], r.total);
      ASSERT_EQ(got[6][at], r.length);
      ASSERT_EQ(got[7][at], float(t));
      if (options.return_discount > 0) {
        ASSERT_NEAR(got[8][at], r.discounted, 1e-4);
      }
      ends += r.terminated, cut_off += r.truncated;
    }
  }
  EXPECT_GT(ends + cut_off, kRows);
  EXPECT_TRUE(cut_off > 0 || (!cuts && options.time_limit == 0));
}

TEST(Instances, PlayOneEpisodeAfterAnother) { compare({}); }
TEST(Instances, TellTerminationFromTruncation) { compare({.time_limit = 4}), compare({}, true), compare({.time_limit = 5}, true); }
TEST(Instances, SkipFramesAndStopAtTheEnd) { compare({.frame_skip = 2}), compare({.frame_skip = 3}, true); }
TEST(Instances, StackFramesOfOneEpisodeOnly) { compare({.stack = 2}), compare({.time_limit = 6, .stack = 4}), compare({.frame_skip = 2, .stack = 3}, true); }
TEST(Instances, RepeatActionsAndReplaceTheFirst) { compare({.sticky = 0.5}), compare({.noops = 3}), compare({.sticky = 0.25, .noops = 5}); }
TEST(Instances, ClipAndScaleRewards) {
  compare({.reward_clip = 2}), compare({.reward_scale = 0.5}), compare({.reward_clip = 3, .reward_scale = 2, .return_discount = 0.9});
}
TEST(Instances, CombineAllOptions) {
  compare({.frame_skip = 2, .time_limit = 3, .stack = 3, .sticky = 0.3, .noops = 2, .reward_clip = 4, .reward_scale = 0.25, .return_discount = 0.5}, true);
}

TEST(Instances, RefuseImpossibleOptions) {
  const auto steps = std::make_shared<Steps>(false);
  EXPECT_TRUE(has(error_of([&] { Instances(steps, {.frame_skip = 0}); }), "steps: frame_skip 0 is out of range"));
  EXPECT_TRUE(has(error_of([&] { Instances(steps, {.sticky = 1}); }), "sticky 1 is out of range"));
  EXPECT_TRUE(has(error_of([&] { Instances(steps).start(full({3}, 0)); }), "must be i64 [instances]"));
  EXPECT_TRUE(has(error_of([&] { make_environment("pnog"); }), "did you mean 'pong'?"));
}

}  // namespace
}  // namespace ridge::test
