// Text from a GPT, a token at a time: keys and values of earlier positions are kept, so that a token costs one pass over the weights.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "data/tokenizer.h"
#include "tasks/gpt/parameters.h"

namespace ridge {

class Backend;

struct SampleOptions {
  double temperature = 0.8;  // 0: always the likeliest token
  int64_t top_k = 0;         // only the k likeliest; 0: all
  double top_p = 1;          // only the likeliest that have this probability together
  uint64_t seed = 0;
  int64_t tokens = 0;  // only the first so many, as many as the tokenizer has; 0: all
};

// A draw from logits, a function of the logits, the options and `index` alone. Of equally likely tokens the first counts as likelier.
// ErrorCode::value: options out of range, or logits that are not finite.
Token draw_token(std::span<const float> logits, const SampleOptions& options, uint64_t index);

// How keys and values of earlier tokens are kept. `wish`: fp32, bf16 or fp16; auto: as the weights are, but fp16 beside fp32 ones on a CPU that widens
// it by itself. A token reads all of them, so they are what it costs more late in a text; that they have eleven bits moves logits by a thousandth or
// two. A GPU is bound by the number of kernels instead, and has none for products of both formats.
Precision kept_precision(DType weights, const Backend& backend, std::string_view wish = "auto");

class GptSampler {
 public:
  // Compiles; memory is mapped when the first token comes. `backend`: where the parameters lie. `kept`: keys and values; none: by kept_precision().
  explicit GptSampler(std::shared_ptr<const GptParameters> parameters, Backend& backend = default_backend(), std::optional<DType> kept = {});
  ~GptSampler();
  GptSampler(GptSampler&&) noexcept;

  // Goes on with these tokens. When the block is full, the last half of it stays as context and is computed anew.
  // ErrorCode::value: a token outside the vocabulary.
  void feed(std::span<const Token> tokens);
  std::span<const float> logits() const;  // of the token after the last one; empty before the first and after a rewind
  int64_t position() const;               // tokens in the context
  void rewind(int64_t position);          // forgets what comes after the first so many tokens of the context
  void forget() { rewind(0); }

  // Feeds the prompt, which must not be empty, then draws `count` tokens; each goes to `sink`, which may say false to end.
  void generate(std::span<const Token> prompt, int64_t count, const SampleOptions& options, const std::function<bool(Token)>& sink);

  void compile_ahead();                        // in the background, where the device allows it
  void prepare();                              // all that the first token would wait for
  int64_t planned_bytes() const;               // cache, program memory and scratch, without the parameters
  int64_t bytes_read(int64_t position) const;  // by the token at this position: weights and cache
  int kernels() const;                         // that one token takes

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ridge
