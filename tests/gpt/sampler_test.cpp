// A sampler's logits match one forward pass over the whole context, however the tokens arrived; draws follow the distribution.
#include "tasks/gpt/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "backend/registry.h"
#include "base/error.h"
#include "base/rng.h"
#include "gpt/models.h"
#include "machine/features.h"
#include "threads/thread_team.h"

namespace ridge {
namespace {

using test::full_logits;
using test::largest_difference;
using test::Model;
using test::small_gpt;

std::vector<Token> random_tokens(int64_t count, int64_t vocab, uint32_t stream = 0) {
  std::vector<Token> out;
  for (int64_t i = 0; i < count; ++i) out.push_back(Token(random_word({9, 0, stream}, uint64_t(i)) % uint64_t(vocab)));
  return out;
}

std::span<const float> row(const std::vector<float>& logits, int64_t position, int64_t vocab) {
  return std::span(logits).subspan(size_t(position * vocab), size_t(vocab));
}

// These models' logits are of the order of 1.
constexpr double kRounding = 2e-5, kRoundingOfHalves = 8 * 0x1p-11;

// Keys and values in full precision.
GptSampler exact(const std::shared_ptr<const GptParameters>& parameters) { return GptSampler(parameters, default_backend(), DType::f32); }

TEST(GptSampler, MatchesFullContextLogitsAtEveryPosition) {
  for (const auto& [name, config] : test::gpt_forms()) {
    Model model(config);
    const auto parameters = model.in_place();
    const std::vector<Token> tokens = random_tokens(config.block, config.vocab);
    const std::vector<float> whole = full_logits(*parameters, tokens);
    for (int64_t prompt : {1, 2, 7, 23, 24}) {
      GptSampler sampler = exact(parameters);
      EXPECT_TRUE(sampler.logits().empty());
      sampler.feed(std::span(tokens).first(size_t(prompt)));
      for (int64_t i = prompt - 1;; sampler.feed(std::span(tokens).subspan(size_t(++i), 1))) {
        EXPECT_EQ(sampler.position(), i + 1);
        EXPECT_LT(largest_difference(sampler.logits(), row(whole, i, config.vocab)), kRounding) << name << ", prompt " << prompt << ", position " << i;
        if (i + 1 == config.block) break;
      }
    }
  }
}

TEST(GptSampler, AcceptsPromptsOfSeveralChunks) {
  GptConfig c = small_gpt();
  c.block = 200;
  Model model(c);
  const auto parameters = model.in_place();
  const std::vector<Token> tokens = random_tokens(c.block, c.vocab);
  const std::vector<float> whole = full_logits(*parameters, tokens);
  for (int64_t prompt : {63, 64, 65, 128, 131, 200}) {
    GptSampler sampler = exact(parameters);
    sampler.feed(std::span(tokens).first(size_t(prompt)));
    EXPECT_LT(largest_difference(sampler.logits(), row(whole, prompt - 1, c.vocab)), kRounding) << prompt;
    if (prompt == 200) continue;
    sampler.feed(std::span(tokens).subspan(size_t(prompt), 5));  // in the middle of a chunk
    EXPECT_LT(largest_difference(sampler.logits(), row(whole, prompt + 4, c.vocab)), kRounding) << prompt;
  }
}

TEST(GptSampler, ContinuesFromTheLastHalfOfAFullBlock) {
  const GptConfig c = small_gpt();
  Model model(c);
  const auto parameters = model.in_place();
  const std::vector<Token> tokens = random_tokens(60, c.vocab);
  GptSampler sampler = exact(parameters);
  sampler.feed(std::span(tokens).first(size_t(c.block)));
  sampler.feed(std::span(tokens).subspan(size_t(c.block), 1));
  EXPECT_EQ(sampler.position(), c.block / 2);
  const std::span<const Token> kept = std::span(tokens).subspan(size_t(c.block / 2) + 1, size_t(c.block / 2));
  EXPECT_LT(largest_difference(sampler.logits(), row(full_logits(*parameters, kept), c.block / 2 - 1, c.vocab)), kRounding);
  // A prompt longer than the block, and another one after it.
  GptSampler longer = exact(parameters);
  longer.feed(tokens);
  EXPECT_EQ(longer.position(), c.block / 2);
  EXPECT_LT(largest_difference(longer.logits(), row(full_logits(*parameters, std::span(tokens).last(size_t(c.block / 2))), c.block / 2 - 1, c.vocab)),
            kRounding);
  longer.forget();
  EXPECT_TRUE(longer.logits().empty());
  longer.feed(kept);
  EXPECT_EQ(largest_difference(longer.logits(), sampler.logits()), 0);
}

TEST(GptSampler, Rewinds) {
  const GptConfig c = small_gpt();
  Model model(c);
  const auto parameters = model.in_place();
  const std::vector<Token> tokens = random_tokens(20, c.vocab), other = random_tokens(9, c.vocab, 1);
  GptSampler sampler = exact(parameters);
  sampler.feed(tokens);
  sampler.rewind(11);
  EXPECT_EQ(sampler.position(), 11);
  EXPECT_TRUE(sampler.logits().empty());
  sampler.feed(other);
  std::vector<Token> whole(tokens.begin(), tokens.begin() + 11);
  whole.insert(whole.end(), other.begin(), other.end());
  EXPECT_LT(largest_difference(sampler.logits(), row(full_logits(*parameters, whole), 19, c.vocab)), kRounding);
  EXPECT_THROW(sampler.rewind(21), Error);
  EXPECT_THROW(sampler.rewind(-1), Error);
}

TEST(GptSampler, KeepsKeysAndValuesInTheGivenFormat) {
  for (const auto& [name, config] : test::gpt_forms()) {
    Model model(config);
    const auto parameters = model.in_place();
    const std::vector<Token> tokens = random_tokens(config.block, config.vocab);
    const std::vector<float> whole = full_logits(*parameters, tokens);
    GptSampler halves(parameters, default_backend(), DType::f16), brain(parameters, default_backend(), DType::bf16), all = exact(parameters);
    for (GptSampler* s : {&halves, &all, &brain}) s->feed(tokens);
    const std::span<const float> wanted = row(whole, config.block - 1, config.vocab);
    const double error = largest_difference(halves.logits(), wanted);
    EXPECT_GT(error, largest_difference(all.logits(), wanted)) << name;
    EXPECT_LT(error, kRoundingOfHalves) << name;
    EXPECT_LT(error, largest_difference(brain.logits(), wanted)) << name;
    EXPECT_EQ(halves.bytes_read(9) - halves.bytes_read(8), (all.bytes_read(9) - all.bytes_read(8)) / 2) << name;
    EXPECT_LT(halves.planned_bytes(), all.planned_bytes()) << name;
  }
  const bool widens = has_avx512(isa_tier()) || isa_tier() == IsaTier::avx2;
  EXPECT_EQ(kept_precision(DType::f32, default_backend()), widens ? Precision::fp16 : Precision::fp32);
  EXPECT_EQ(kept_precision(DType::bf16, default_backend()), Precision::bf16);
  EXPECT_EQ(kept_precision(DType::f16, default_backend()), Precision::fp16);
  EXPECT_EQ(kept_precision(DType::bf16, default_backend(), "fp32"), Precision::fp32);
}

TEST(GptSampler, ReadsTheCurrentWeights) {
  const GptConfig c = small_gpt();
  Model model(c);
  GptSampler sampler(model.in_place());
  const Token token = 3;
  sampler.feed({&token, 1});
  const std::vector<float> before(sampler.logits().begin(), sampler.logits().end());
  for (float& x : model.values.front()) x *= 2;
  sampler.forget();
  sampler.feed({&token, 1});
  EXPECT_GT(largest_difference(before, sampler.logits()), 1e-3);
}

TEST(GptSampler, WritesTheSameTextForAnyNumberOfThreads) {
  GptConfig c = small_gpt();
  c.width = 128, c.heads = 4;
  Model model(c);
  const auto parameters = model.in_place();
  std::vector<std::vector<Token>> texts;
  for (int threads : {1, 2, 3}) {
    ThreadTeam team({.threads = threads});
    const std::unique_ptr<Backend> backend = cpu_backend(team);
    GptSampler sampler(parameters, *backend);
    std::vector<Token>& text = texts.emplace_back();
    sampler.generate(random_tokens(5, c.vocab), 60, {.temperature = 1.2, .top_k = 20, .top_p = 0.9, .seed = 11},
                     [&](Token t) { return text.push_back(t), true; });
    EXPECT_EQ(text.size(), 60u);
  }
  EXPECT_EQ(texts[0], texts[1]);
  EXPECT_EQ(texts[0], texts[2]);
}

TEST(GptSampler, StopsWhenTheSinkDoes) {
  Model model(small_gpt());
  GptSampler sampler(model.in_place());
  int seen = 0;
  sampler.generate(random_tokens(2, 37), 50, {}, [&](Token) { return ++seen < 3; });
  EXPECT_EQ(seen, 3);
  EXPECT_THROW(sampler.generate({}, 5, {}, [](Token) { return true; }), Error);
  const Token outside[] = {36, 37};
  EXPECT_THROW(sampler.feed(outside), Error);
}

// Pins the kernels per token, so that an extra one is noticed: per layer two norms, four products, two cache rows and attention.
TEST(GptSampler, TakesFewKernels) {
  Model model(small_gpt());
  GptSampler sampler(model.in_place());
  EXPECT_LE(sampler.kernels(), 9 * 2 + 7);
}

// ---- draws

TEST(DrawToken, FollowsTheDistribution) {
  const std::vector<float> logits = {0, 1, 2, -1, 0.5f};
  for (double temperature : {0.5, 1.0, 2.0}) {
    std::vector<double> expected;
    double total = 0;
    for (float x : logits) total += expected.emplace_back(std::exp(x / temperature));
    std::map<Token, int> seen;
    constexpr int kDraws = 20000;
    for (int i = 0; i < kDraws; ++i) ++seen[draw_token(logits, {.temperature = temperature, .seed = 3}, uint64_t(i))];
    for (size_t t = 0; t < logits.size(); ++t) {
      const double p = expected[t] / total;
      EXPECT_NEAR(seen[Token(t)] / double(kDraws), p, 4.5 * std::sqrt(p * (1 - p) / kDraws)) << temperature << " " << t;
    }
  }
}

TEST(DrawToken, RespectsTopKAndTopP) {
  const std::vector<float> logits = {0, 3, 2, 3, -5};
  for (uint64_t i = 0; i < 300; ++i) {
    EXPECT_EQ(draw_token(logits, {.temperature = 0, .seed = i}, i), 1);  // the first of equals
    EXPECT_EQ(draw_token(logits, {.temperature = 1, .top_k = 1}, i), 1);
    const Token two = draw_token(logits, {.temperature = 5, .top_k = 2}, i);
    EXPECT_TRUE(two == 1 || two == 3);
    const Token heavy = draw_token(logits, {.temperature = 1, .top_p = 0.5}, i);  // 1 and 3 have 0.42 each
    EXPECT_TRUE(heavy == 1 || heavy == 3);
    EXPECT_EQ(draw_token(logits, {.temperature = 1, .top_p = 1e-9}, i), 1);
    EXPECT_EQ(draw_token(logits, {.temperature = 9, .tokens = 1}, i), 0);
  }
}

TEST(DrawToken, IsAFunctionOfSeedAndIndex) {
  const std::vector<float> logits(50, 0.f);
  std::map<Token, int> by_seed, by_index;
  for (uint64_t i = 0; i < 200; ++i) {
    EXPECT_EQ(draw_token(logits, {.seed = 7}, i), draw_token(logits, {.seed = 7}, i));
    ++by_seed[draw_token(logits, {.seed = i}, 0)], ++by_index[draw_token(logits, {.seed = 7}, i)];
  }
  EXPECT_GT(by_seed.size(), 40u);
  EXPECT_GT(by_index.size(), 40u);
}

TEST(DrawToken, RejectsInvalidOptions) {
  const std::vector<float> logits = {0, 1}, broken = {0, NAN};
  EXPECT_THROW(draw_token(logits, {.temperature = -1}, 0), Error);
  EXPECT_THROW(draw_token(logits, {.temperature = NAN}, 0), Error);
  EXPECT_THROW(draw_token(logits, {.top_k = -1}, 0), Error);
  EXPECT_THROW(draw_token(logits, {.top_p = 0}, 0), Error);
  EXPECT_THROW(draw_token(logits, {.top_p = 1.5}, 0), Error);
  EXPECT_THROW(draw_token(broken, {}, 0), Error);
  EXPECT_THROW(draw_token({}, {}, 0), Error);
}

}  // namespace
}  // namespace ridge
