// GPT weights in files. Checkpoints use Ridge's own form; models for other programs are written in Hugging Face's form of GPT-2 or Llama if
// one can express them. Each is a folder with model.safetensors, config.json and, if there is a tokenizer, tokenizer.json and tokenizer_config.json.
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

// A model in its folder: memory-mapped and checked against its configuration, but not yet copied.
struct GptWeights {
  GptConfig config;
  std::shared_ptr<const Tokenizer> tokenizer;  // null: the folder has none
  std::filesystem::path folder;                // contains the weights
  std::vector<std::string> notices;            // what was skipped

  std::vector<Parameter> parameters() const { return gpt_parameters(config); }
  // Writes parameter `index` to the front of `values`, which may be longer because of rows added for speed.
  void copy(size_t index, std::span<float> values) const;

  void drop(size_t index) const;  // releases the pages read for it

  // A tensor in the file: rows of a parameter starting at `first`, or the whole parameter transposed.
  struct Source {
    const SafetensorView* tensor;
    bool transposed;
    int64_t first;  // offset in values
  };
  SafetensorsFile file;
  std::vector<std::vector<Source>> sources;  // by parameter
};

// `path`: a run (its best checkpoint, or its newest), a checkpoint, or a folder in one of the three forms. Tensors may be f32, bf16 or f16, in GPT-2's
// form with or without the prefix "transformer."; buffers in older files are ignored. ErrorCode::io names tensors that are missing, superfluous or of the
// wrong shape, and features that Ridge's GPT lacks.
GptWeights load_gpt_weights(const std::filesystem::path& path);

// Writes the folder in the given form; no form: GPT-2's or Llama's if possible, else Ridge's own. `parameters` are in the order of
// gpt_parameters; rows beyond the vocabulary are left out. Copies one piece at a time to save memory. ErrorCode::usage names what the form lacks.
GptForm export_gpt(const std::filesystem::path& folder, const GptConfig& config, std::span<const std::span<const float>> parameters, const Tokenizer* tokenizer,
                   std::optional<GptForm> form = {});

}  // namespace ridge
