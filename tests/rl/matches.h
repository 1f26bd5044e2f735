// Plays whole episodes with scripted agents: one match per instance, so that short matches do not count more often.
#pragma once
#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>
#include <span>

#include "eager/tensor_state.h"
#include "ridge/rl.h"

namespace ridge::test {

inline Tensor number(double v) { return full({}, v); }
inline Tensor integer(int64_t v) { return full({}, double(v), DType::i64); }

inline Tensor numbers_from(int64_t first, int64_t count) {
  std::vector<int64_t> v(static_cast<size_t>(count));
  std::iota(v.begin(), v.end(), first);
  return Tensor({count}, std::span<const int64_t>(v));
}

// (instances, their state) -> action
using Agent = std::function<Tensor(const Instances&, const EnvState&)>;

// Runs a loop of `steps` decisions and returns the next carry and the outputs, computed in one program.
inline ScanOutput run_loop(const ScanStep& step, const std::vector<Tensor>& carry, int64_t steps) {
  ScanOutput out = scan(step, carry, {full({steps}, 0)});
  std::vector<Tensor> all = out.carry;
  all.insert(all.end(), out.outputs.begin(), out.outputs.end());
  detail::evaluate(all);
  return out;
}

struct Matches {
  std::vector<float> score, length;  // of the first match of every instance
  double mean_score() const { return std::accumulate(score.begin(), score.end(), 0.0) / double(score.size()); }
  double mean_length() const { return std::accumulate(length.begin(), length.end(), 0.0) / double(length.size()); }
};

inline Matches play(const Instances& game, const Agent& agent, int64_t instances, int64_t chunk = 500) {
  const EnvState first = game.start(numbers_from(0, instances));
  std::vector<Tensor> carry = first;
  carry.insert(carry.end(), {full({instances}, 0), full({instances}, 0)});  // score and length of the first match
  const ScanStep step = [&](const std::vector<Tensor>& c, const std::vector<Tensor>&) -> ScanOutput {
    const EnvState state(c.begin(), c.end() - 2);
    const Instances::Decision d = game.step(state, agent(game, state));
    const Tensor &score = c[c.size() - 2], &length = c[c.size() - 1], playing = equal(length, number(0));
    ScanOutput out;
    out.carry = d.state;
    out.carry.push_back(where(playing, d.episode_return, score));
    out.carry.push_back(where(playing, d.episode_length, length));
    return out;
  };
  Matches m;
  for (int64_t done = 0; done <= game.options().time_limit; done += chunk) {
    carry = run_loop(step, carry, chunk).carry;
    m.length = carry.back().to_floats(), m.score = carry[carry.size() - 2].to_floats();
    if (std::count(m.length.begin(), m.length.end(), 0.f) == 0) return m;
  }
  throw std::runtime_error("a match went beyond the time limit");
}

}  // namespace ridge::test
