// A GPT small enough to train in a test, and batches it can learn from.
#pragma once
#include <vector>

#include "base/rng.h"
#include "tasks/gpt/task.h"

namespace ridge {

inline GptConfig tiny_gpt(int64_t vocab = 19) {
  GptConfig c;
  c.vocab = vocab, c.block = 8, c.layers = 2, c.heads = 2, c.width = 16;
  return c;
}

// Each token follows from the previous one, except for one in eight.
struct TokenBatch {
  std::vector<int64_t> in, out;
  std::vector<const void*> data;
  TokenBatch(int64_t samples, int64_t block, int64_t vocab, uint64_t seed) {
    for (int64_t s = 0; s < samples; ++s) {
      int64_t token = int64_t(random_word({seed, 0, 1}, uint64_t(s)) % uint32_t(vocab));
      for (int64_t t = 0; t < block; ++t) {
        in.push_back(token);
        const uint32_t draw = random_word({seed, 0, 2}, uint64_t(s * block + t));
        token = draw % 8 == 0 ? int64_t(draw / 8 % uint32_t(vocab)) : (3 * token + 7) % vocab;
        out.push_back(token);
      }
    }
    data = {in.data(), out.data()};
  }
  TokenBatch(const TokenBatch&) = delete;
};

inline void start(TrainStep& step, const StepModel& model, uint64_t seed = 3) {
  for (size_t i = 0; i < model.parameters.size(); ++i)
    step.fill_parameter(i, [&](std::span<float> to) { initialize(model.parameters[i], seed, uint32_t(i), to); });
}

// Everything that a step changes: parameters and moments.
inline std::vector<std::vector<float>> contents(TrainStep& step, const StepModel& model) {
  std::vector<std::vector<float>> all;
  for (size_t i = 0; i < model.parameters.size(); ++i)
    for (int m = 0; m <= step.moments(i); ++m) step.read(TrainStep::Held(m), i, all.emplace_back(size_t(model.parameters[i].shape.numel())));
  return all;
}

inline void put_back(TrainStep& step, const StepModel& model, const std::vector<std::vector<float>>& all) {
  size_t at = 0;
  for (size_t i = 0; i < model.parameters.size(); ++i)
    for (int m = 0; m <= step.moments(i); ++m) step.write(TrainStep::Held(m), i, all[at++]);
}

}  // namespace ridge
