// Generates text with a GPT, one token at a time: keys and values of earlier positions are cached, so that a token costs one pass over the weights.
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
  double top_p = 1;          // only the likeliest tokens with this total probability
  uint64_t seed = 0;
  int64_t tokens = 0;  // only the first this many, the tokenizer's vocabulary; 0: all
};

// Draws a token. The result depends only on the logits, the options and `index`. Of equally likely tokens the first ranks higher.
// ErrorCode::value if options are out of range or logits are not finite.
Token draw_token(std::span<const float> logits, const SampleOptions& options, uint64_t index);

// The storage format of cached keys and values. `requested`: fp32, bf16 or fp16; auto: the format of the weights, but fp16 with fp32 weights on a CPU that
// widens it in hardware. A token reads the whole cache, which is why tokens late in a text cost more; fp16's eleven bits change logits by only a
// thousandth or two. A GPU is limited by the number of kernels instead, and has no kernels for products of mixed formats.
Precision kept_precision(DType weights, const Backend& backend, std::string_view requested = "auto");

class GptSampler {
 public:
  // Compiles; memory is mapped at the first token. `backend`: where the parameters are stored. `kept`: format of keys and values; none: from kept_precision().
  explicit GptSampler(std::shared_ptr<const GptParameters> parameters, Backend& backend = default_backend(), std::optional<DType> kept = {});
  ~GptSampler();
  GptSampler(GptSampler&&) noexcept;

  // Appends these tokens to the context. When the block is full, its last half stays as context and is recomputed.
  // ErrorCode::value if a token is outside the vocabulary.
  void feed(std::span<const Token> tokens);
  std::span<const float> logits() const;  // for the next token; empty before the first token and after a rewind
  int64_t position() const;               // tokens in the context
  void rewind(int64_t position);          // drops all but the first `position` tokens of the context
  void forget() { rewind(0); }

  // Feeds the prompt, which must not be empty, then draws `count` tokens. Each is passed to `sink`, which may return false to stop.
  void generate(std::span<const Token> prompt, int64_t count, const SampleOptions& options, const std::function<bool(Token)>& sink);

  void compile_ahead();                        // in the background, if the device supports it
  void prepare();                              // does everything that the first token would wait for
  int64_t planned_bytes() const;               // cache, program memory and scratch, without the parameters
  int64_t bytes_read(int64_t position) const;  // for the token at this position: weights and cache
  int kernels() const;                         // launched per token

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ridge
