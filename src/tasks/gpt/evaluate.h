// Measures how well a GPT predicts a text.
#pragma once
#include <cstdint>

#include "data/batch_source.h"
#include "data/tokenizer.h"
#include "tasks/gpt/parameters.h"

namespace ridge {

class Backend;

struct GptEvaluation {
  double nats = 0;                   // summed over all targets
  int64_t windows = 0, tokens = 0;   // targets
  double characters = 0, bytes = 0;  // of the text behind the targets; 0 without a tokenizer
  double seconds = 0;

  double loss() const { return nats / double(tokens); }  // nats per token
  double bits_per_byte() const;
};

// Windows to evaluate at a time: enough to fill the device, few enough to need little memory.
int64_t evaluation_batch(const GptConfig& config, const Backend& backend = default_backend());

// Evaluates all batches of tokens and targets, i64 [batch, block]. `backend`: where the parameters are stored. ErrorCode::io if a token
// is outside the vocabulary.
GptEvaluation evaluate_gpt(const GptParameters& parameters, const BatchSource& batches, const Tokenizer* tokenizer, Backend& backend = default_backend());

}  // namespace ridge
