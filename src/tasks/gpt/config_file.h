// config.json of a GPT: Ridge's own form, and Hugging Face's forms for GPT-2 and Llama, which other programs read.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/tokenizer.h"
#include "nn/gpt.h"

namespace ridge {

// own: parameters under Ridge's names, linear weights [out, in]. gpt2: linear weights [in, out] and a bias everywhere, zeros where the model
// has none. llama: linear weights [out, in], with separate tensors for queries, keys and values, and for the two halves of a gated MLP. For both,
// transformers (GPT2LMHeadModel, LlamaForCausalLM) computes the same logits.
enum class GptForm : uint8_t { own, gpt2, llama };

// The settings that a form cannot express, such as "norm=rms"; empty: it can express the model.
std::vector<std::string> not_in_form(const GptConfig& config, GptForm form);
GptForm form_for(const GptConfig& config);  // GPT-2's or Llama's if it can express the model, else Ridge's own

// The text of config.json. `end_of_text`: the tokenizer's end-of-text token, if it has one.
std::string gpt_config_json(const GptConfig& config, GptForm form = GptForm::own, std::optional<Token> end_of_text = {});

struct StoredGptConfig {
  GptConfig config;
  GptForm form = GptForm::own;
};

// `name`: the file name for messages. ErrorCode::io if damaged, if the sizes are invalid, or if Ridge's GPT lacks a feature.
StoredGptConfig parse_gpt_config(const std::string& text, const std::string& name);

}  // namespace ridge
