// GPT weights in files. Checkpoints hold Ridge's own form; models for other programs are written in Hugging Face's form of GPT-2, as far as
// that can express them. Both are a folder with model.safetensors, config.json and, if there is one, tokenizer.json.
#pragma once
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer.h"
#include "io/safetensors.h"
#include "nn/gpt.h"

namespace ridge {

// own: parameters under their own names, linear weights [out, in]. gpt2: linear weights [in, out] and a bias everywhere, zeros where the model
// has none, so that transformers' GPT2LMHeadModel gives the same logits.
enum class GptForm : uint8_t { own, gpt2 };

bool fits_gpt2(const GptConfig& config);  // layer norm, learned positions, gelu, as many kv heads as heads

// The text of config.json. `end_of_text` is what the tokenizer calls it, if it does.
std::string gpt_config_json(const GptConfig& config, GptForm form = GptForm::own, std::optional<Token> end_of_text = {});

// A model as it lies in a folder: mapped, checked against its configuration, not yet copied.
struct GptWeights {
  GptConfig config;
  std::shared_ptr<const Tokenizer> tokenizer;  // null: the folder has none
  std::filesystem::path folder;                // where the weights are
  std::vector<std::string> notices;            // what was passed over on the way

  std::vector<Parameter> parameters() const { return gpt_parameters(config); }
  // Writes the values of parameter `index` to the front of `values`, which may be longer where rows are added for speed.
  void copy(size_t index, std::span<float> values) const;

  struct Source {
    const SafetensorView* tensor;
    bool transposed;
  };
  SafetensorsFile file;
  std::vector<Source> sources;  // by parameter
};

// `path`: a run (its best checkpoint, or its newest), a checkpoint, or a folder in one of the two forms. Tensors may be f32, bf16 or f16, with or
// without the prefix "transformer."; buffers that older files hold are passed over. ErrorCode::io says what is missing, superfluous or of
// another shape; ErrorCode::unsupported what Ridge's GPT cannot do that the file asks for.
GptWeights load_gpt_weights(const std::filesystem::path& path);

// Writes the folder: in GPT-2's form where it fits, else in Ridge's own. `parameters` in the order of gpt_parameters; rows beyond the vocabulary are
// left out. No more than a piece is copied at a time.
GptForm export_gpt(const std::filesystem::path& folder, const GptConfig& config, std::span<const std::span<const float>> parameters,
                   const Tokenizer* tokenizer);

}  // namespace ridge
