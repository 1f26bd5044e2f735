// How well a GPT predicts a text.
#pragma once
#include <cstdint>

#include "data/batch_source.h"
#include "data/tokenizer.h"
#include "train/gpt_parameters.h"

namespace ridge {

class ThreadTeam;

struct GptEvaluation {
  double nats = 0;                   // of all targets together
  int64_t windows = 0, tokens = 0;   // targets
  double characters = 0, bytes = 0;  // of text that the targets stand for; 0 without a tokenizer
  double seconds = 0;

  double loss() const { return nats / double(tokens); }  // nats per token
  double bits_per_byte() const;
};

// Batches to evaluate a model with at a time: enough to fill a machine, few enough for little memory.
int64_t evaluation_batch(const GptConfig& config);

// Over all batches of tokens and targets, i64 [batch, block]. ErrorCode::value: a token outside the vocabulary.
GptEvaluation evaluate_gpt(const GptParameters& parameters, const BatchSource& batches, const Tokenizer* tokenizer, ThreadTeam* team = nullptr);

}  // namespace ridge
