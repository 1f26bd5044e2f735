// Texts as tokens: a training and a validation part, mapped from files, with the tokenizer that made them.
#pragma once
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/batch_source.h"
#include "data/tokenizer.h"

namespace ridge {

// Tokens in mapped files of 1, 2 or 4 bytes each, in one or several shards. Copies share the mapping.
class TokenArray {
 public:
  int64_t size() const;
  void copy(int64_t first, std::span<int64_t> out) const;  // any thread; ErrorCode::value past the end
  int64_t mapped_bytes() const;                            // of all its files

  struct Shards;
  TokenArray() = default;
  explicit TokenArray(std::shared_ptr<const Shards> shards) : shards_(std::move(shards)) {}

 private:
  std::shared_ptr<const Shards> shards_;
};

struct Dataset {
  std::string name;         // "builtin", "my.txt": what runs and reports call it
  std::string fingerprint;  // of all tokens and the tokenizer, so that a resumed run notices other data
  TokenArray train, validation;
  std::shared_ptr<const Tokenizer> tokenizer;  // null: token files that came without one
  int64_t vocab = 0;
  double validation_characters = 0, validation_bytes = 0;  // of text that the validation tokens stand for; 0: unknown
  // Where validation windows start; empty: at multiples of the block. The built-in corpus starts them at stories.
  std::vector<int64_t> window_starts;
  // The least mean loss that any model can reach on all validation windows, in nats per character; the built-in corpus alone knows it.
  std::optional<double> possible;
  std::vector<std::string> notes;  // what was found and done, a line each: "4 files, 1.1 MB, 10 % for validation", "tokens cached"
};

struct DatasetOptions {
  std::string tokenizer = "auto";   // auto, char, byte, bpe, or the path of a tokenizer.json
  int64_t block = 0;                // windows need one token more
  uint64_t seed = 0;                // of the built-in corpus
  std::filesystem::path cache;      // folder for tokens; empty: the user's cache folder
  std::shared_ptr<const Tokenizer> given = {};  // a run's own tokenizer, for evaluation and resume; stronger than `tokenizer`
  std::function<void(const std::string& what, double done)> progress = {};  // of long work, done from 0 to 1
};

// `source`: builtin, a text file, a folder of text files, a folder with nanoGPT's train.bin and val.bin, llm.c's shards (a folder or a
// pattern as data/tiny_*.bin). ErrorCode::io says which file, where in it, and what to do.
Dataset open_dataset(const std::string& source, const DatasetOptions& options);

// Training windows: tokens and targets, i64 [batch, block]. Each epoch draws a phase in [0, block) and permutes the windows of that phase.
std::unique_ptr<BatchSource> training_windows(const Dataset& data, int64_t batch, int64_t block, uint64_t seed);

// The fixed validation windows, at most `most` of them, spread evenly (0: all); the last batch may have fewer samples.
std::unique_ptr<BatchSource> validation_windows(const Dataset& data, int64_t batch, int64_t block, int64_t most = 0);

}  // namespace ridge
