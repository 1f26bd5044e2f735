// A text's loss is that of its windows, each counted once, whatever the batches; printed text is always whole characters.
#include "tasks/gpt/evaluate.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "data/byte_tokenizer.h"
#include "data/char_tokenizer.h"
#include "data/token_text.h"
#include "gpt/models.h"

namespace ridge {
namespace {

using test::Model;
using test::small_gpt;

// Windows of made-up tokens; the last batch is not full.
class Windows final : public BatchSource {
 public:
  Windows(int64_t count, int64_t batch, int64_t block, int64_t vocab) : count_(count), batch_(batch), block_(block), vocab_(vocab) {
    types_.assign(2, {DType::i64, {batch, block}});
  }
  const std::vector<Type>& types() const override { return types_; }
  int64_t batches() const override { return (count_ + batch_ - 1) / batch_; }
  int64_t samples(int64_t number) const override { return std::min(batch_, count_ - number * batch_); }
  int64_t token(int64_t window, int64_t i) const { return (window * 13 + i * 7 + i * i) % vocab_; }
  void fill(int64_t number, std::span<std::byte* const> tensors) const override {
    for (int64_t s = 0; s < samples(number); ++s)
      for (int64_t i = 0; i < block_; ++i)
        for (int64_t k = 0; k < 2; ++k) reinterpret_cast<int64_t*>(tensors[size_t(k)])[s * block_ + i] = token(number * batch_ + s, i + k);
  }

 private:
  int64_t count_, batch_, block_, vocab_;
  std::vector<Type> types_;
};

TEST(GptEvaluate, IsTheMeanOverAllWindows) {
  const GptConfig c = small_gpt();
  Model model(c);
  const auto parameters = model.in_place();
  constexpr int64_t kCount = 7;
  double want = 0;
  const Windows all(kCount, 1, c.block, c.vocab);
  for (int64_t w = 0; w < kCount; ++w) {
    std::vector<Token> tokens;
    for (int64_t i = 0; i < c.block; ++i) tokens.push_back(Token(all.token(w, i)));
    const std::vector<float> logits = test::full_logits(*parameters, tokens);
    for (int64_t i = 0; i < c.block; ++i) {
      double sum = 0;
      for (int64_t v = 0; v < c.vocab; ++v) sum += std::exp(double(logits[size_t(i * c.vocab + v)]));
      want += std::log(sum) - logits[size_t(i * c.vocab + all.token(w, i + 1))];
    }
  }
  for (int64_t batch : {1, 2, 3, 7, 10}) {
    const GptEvaluation e = evaluate_gpt(*parameters, Windows(kCount, batch, c.block, c.vocab), nullptr);
    EXPECT_EQ(e.windows, kCount);
    EXPECT_EQ(e.tokens, kCount * c.block);
    EXPECT_NEAR(e.nats, want, 1e-5 * want) << batch;
    EXPECT_EQ(e.bytes, 0);
  }
}

TEST(GptEvaluate, CountsCharactersOfTargets) {
  GptConfig c = small_gpt();
  c.vocab = 3;
  Model model(c);
  const CharTokenizer tokenizer({"a", "é", "漢"});  // 1, 2 and 3 bytes
  const Windows windows(4, 3, c.block, c.vocab);
  const GptEvaluation e = evaluate_gpt(*model.in_place(), windows, &tokenizer);
  double bytes = 0;
  for (int64_t w = 0; w < 4; ++w)
    for (int64_t i = 0; i < c.block; ++i) bytes += double(windows.token(w, i + 1) + 1);
  EXPECT_EQ(e.bytes, bytes);
  EXPECT_EQ(e.characters, double(e.tokens));
  EXPECT_NEAR(e.bits_per_byte(), e.nats / bytes / std::log(2.0), 1e-12);
}

TEST(GptEvaluate, RejectsUnknownTokens) {
  GptConfig c = small_gpt();
  Model model(c);
  EXPECT_THROW(evaluate_gpt(*model.in_place(), Windows(4, 2, c.block, 2 * c.vocab), nullptr), Error);
}

TEST(GptEvaluate, KeepsBatchesSmall) {
  GptConfig c = small_gpt();
  c.vocab = 50257, c.block = 1024;
  EXPECT_EQ(evaluation_batch(c), 1);
  c.vocab = 65, c.block = 64;
  EXPECT_EQ(evaluation_batch(c), 64);
}

TEST(TokenText, HoldsBackIncompleteCharacters) {
  const auto bytes = std::make_shared<ByteTokenizer>();
  const std::string text = "aé漢🙂z";
  TokenText stream(bytes);
  std::string shown;
  for (Token t : bytes->encode(text)) {
    const std::string piece = stream.add(t);
    EXPECT_TRUE(piece.empty() || piece == "a" || piece == "é" || piece == "漢" || piece == "🙂" || piece == "z") << piece;
    shown += piece;
  }
  EXPECT_EQ(shown, text);
  EXPECT_EQ(stream.rest(), "");
  // Bytes that are not valid text are not lost, and a truncated character is printed at the end.
  shown.clear();
  const std::string broken = "\xff\x80\xc3(\xe6\xbc";
  for (Token t : bytes->encode(broken)) shown += stream.add(t);
  EXPECT_EQ(shown + stream.rest(), broken);
}

}  // namespace
}  // namespace ridge
