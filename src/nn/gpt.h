// GPT as a graph: its parameters in a fixed order, and the functions from tokens to hidden states and logits.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "graph/builder.h"
#include "nn/parameter.h"

namespace ridge {

struct GptConfig {
  enum class Norm : uint8_t { layer, rms };
  enum class Position : uint8_t { learned, rope };
  enum class Mlp : uint8_t { gelu, swiglu };
  int64_t vocab = 0, block = 0, layers = 0, heads = 0, width = 0;
  int64_t kv_heads = 0;      // 0: same as heads
  int64_t padded_vocab = 0;  // rows of the token embedding (and the head) in memory, for alignment; rows beyond vocab are never visible. 0: vocab
  int64_t hidden = 0;        // of the MLP; 0: 4 · width, for swiglu 8/3 · width rounded up to a multiple of 8
  bool bias = false;
  bool tied = true;  // the token embedding is also the output head
  double dropout = 0;
  double epsilon = 1e-5;      // for all norms
  double rope_theta = 10000;  // the base of RoPE's wavelengths
  Norm norm = Norm::layer;
  Position position = Position::learned;
  Mlp mlp = Mlp::gelu;
};

// Names follow nanoGPT; linear weights are [out, in]. Throws for sizes that do not fit together.
std::vector<Parameter> gpt_parameters(const GptConfig& config);
std::vector<Parameter> gpt_stored_parameters(GptConfig config);  // as stored in files: without padding

int64_t gpt_mlp_size(const GptConfig& config);  // width of the MLP's hidden layer

// Keys and values of earlier positions, so that only new positions are computed.
struct GptCache {
  NodeId position = kNone;           // i64 scalar: position of the first new token
  std::vector<NodeId> keys, values;  // per layer [B, kv_heads, room, dim]; updated to include the new rows
  // Also i64 scalars, if they are inputs and need not be computed: the position behind the new tokens, and 0.
  NodeId length = kNone, zero = kNone;
};

// tokens i64 [B, T], T at most `block` -> [B, T, width] after the final norm. `parameters` in the order of gpt_parameters. Dropout is
// applied when `random` is given; its base is the index of the first *sequence* in the global batch, and its stream is the first that this
// call uses. With a cache, the tokens start at its position; `room` must be large enough for all of them.
NodeId gpt_hidden(Builder& b, const GptConfig& config, std::span<const NodeId> parameters, NodeId tokens, const std::optional<RandomOperands>& random = {},
                  GptCache* cache = nullptr);

// [B, T, width] -> [B, T, vocab], without padding.
NodeId gpt_logits(Builder& b, const GptConfig& config, std::span<const NodeId> parameters, NodeId hidden);

NodeId gpt_forward(Builder& b, const GptConfig& config, std::span<const NodeId> parameters, NodeId tokens, const std::optional<RandomOperands>& random = {});

// Losses for targets i64 [B, T], each the token that follows its input token. Padding classes are included in the computation with zero
// probability, which saves a kernel that would cut them off.
Builder::SumCount gpt_losses(Builder& b, const GptConfig& config, std::span<const NodeId> parameters, NodeId tokens, NodeId targets,
                             const std::optional<RandomOperands>& random = {});

}  // namespace ridge
