// A small GPT set up for a training step, and tokens for it; some targets are marked as ignored.
#pragma once
#include <optional>
#include <vector>

#include "base/rng.h"
#include "nn/gpt.h"
#include "step/train_step.h"

namespace ridge::test {

inline constexpr int64_t kIgnoredTarget = -1;

inline StepModel gpt_step_model(const GptConfig& c, int64_t batch) {
  StepModel m;
  m.parameters = gpt_parameters(c);
  m.batch = {{DType::i64, {batch, c.block}}, {DType::i64, {batch, c.block}}};
  m.loss = [c](Builder& b, std::span<const NodeId> p, std::span<const NodeId> in, const RandomOperands& random) {
    std::optional<RandomOperands> r;
    if (c.dropout > 0) r = random;
    return b.cross_entropy(gpt_forward(b, c, p, in[0], r), in[1], kIgnoredTarget);
  };
  return m;
}

struct GptTokens {
  std::vector<int64_t> in, out;
  GptTokens(const GptConfig& c, int64_t batch) {
    for (uint64_t i = 0; i < uint64_t(batch * c.block); ++i) {
      in.push_back(random_word({1, 0, 1}, i) % c.vocab);
      out.push_back(random_word({1, 0, 2}, i) % 5 == 0 ? kIgnoredTarget : int64_t(random_word({1, 0, 3}, i) % c.vocab));
    }
  }
};

}  // namespace ridge::test
