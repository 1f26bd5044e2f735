// GPT weights in files. Checkpoints hold Ridge's own form; models for other programs are written in Hugging Face's form of GPT-2 or Llama where
// one can express them. All are a folder with model.safetensors, config.json and, if there is a tokenizer, tokenizer.json and tokenizer_config.json.
#pragma once
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/tokenizer.h"
#include "io/safetensors.h"
#include "nn/gpt.h"
#include "tasks/gpt/config_file.h"

namespace ridge {

inline constexpr const char* kExportedFiles[] = {"model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json"};

// A model in its folder: mapped, checked against its configuration, not yet copied.
struct GptWeights {
  GptConfig config;
  std::shared_ptr<const Tokenizer> tokenizer;  // null: the folder has none
  std::filesystem::path folder;                // where the weights are
  std::vector<std::string> notices;            // what was passed over on the way

  std::vector<Parameter> parameters() const { return gpt_parameters(config); }
  // Writes the values of parameter `index` to the front of `values`, which may be longer where rows are added for speed.
  void copy(size_t index, std::span<float> values) const;

  void drop(size_t index) const;  // gives back the pages that were read for it

  // A tensor of the file: rows of a parameter from `first` on, or all of it transposed.
  struct Source {
    const SafetensorView* tensor;
    bool transposed;
    int64_t first;  // in values
  };
  SafetensorsFile file;
  std::vector<std::vector<Source>> sources;  // by parameter
};

// `path`: a run (its best checkpoint, or its newest), a checkpoint, or a folder in one of the three forms. Tensors may be f32, bf16 or f16, in GPT-2's
// form with or without the prefix "transformer."; buffers that older files hold are passed over. ErrorCode::io says what is missing, superfluous or of
// another shape, and what Ridge's GPT cannot do that the file asks for.
GptWeights load_gpt_weights(const std::filesystem::path& path);

// Writes the folder in a form that can express the model; no form: GPT-2's or Llama's where possible, else Ridge's own. `parameters` in the order of
// gpt_parameters; rows beyond the vocabulary are left out. No more than a piece is copied at a time. ErrorCode::usage names what the form lacks.
GptForm export_gpt(const std::filesystem::path& folder, const GptConfig& config, std::span<const std::span<const float>> parameters, const Tokenizer* tokenizer,
                   std::optional<GptForm> form = {});

}  // namespace ridge
