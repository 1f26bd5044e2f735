// config.json of a GPT: Ridge's own, and those of Hugging Face's GPT-2 and Llama, which other programs read.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/tokenizer.h"
#include "nn/gpt.h"

namespace ridge {

// own: parameters under their own names, linear weights [out, in]. gpt2: linear weights [in, out] and a bias everywhere, zeros where the model
// has none. llama: linear weights [out, in], with queries, keys and values, and the two halves of a gated MLP, as tensors of their own. In both,
// transformers (GPT2LMHeadModel, LlamaForCausalLM) gives the same logits.
enum class GptForm : uint8_t { own, gpt2, llama };

// The settings that a form cannot express, as "norm=rms"; empty: it can express the model.
std::vector<std::string> not_in_form(const GptConfig& config, GptForm form);
GptForm form_for(const GptConfig& config);  // GPT-2's or Llama's where it can express the model, else Ridge's own

// The text of config.json. `end_of_text` is what the tokenizer calls it, if it does.
std::string gpt_config_json(const GptConfig& config, GptForm form = GptForm::own, std::optional<Token> end_of_text = {});

struct StoredGptConfig {
  GptConfig config;
  GptForm form = GptForm::own;
};

// `name` of the file, for messages. ErrorCode::io: damaged, sizes that make no model, or what Ridge's GPT does not do.
StoredGptConfig parse_gpt_config(const std::string& text, const std::string& name);

}  // namespace ridge
