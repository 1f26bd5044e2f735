// Tokenised texts: a training and a validation part, mapped from files, with their tokenizer.
#pragma once
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/batch_source.h"
#include "data/token_array.h"
#include "data/tokenizer.h"

namespace ridge {

// The current version of the rule that splits texts into pieces that are tokenised separately. Version 1 considered only ASCII and split other scripts inside
// words; runs started with it keep it, so that their tokens stay the same.
constexpr int kTextCut = 2;

struct Dataset {
  std::string name;         // "builtin", "my.txt": the name in runs and reports
  std::string fingerprint;  // of all tokens and the tokenizer, so that a resumed run detects different data
  TokenArray train, validation;
  std::shared_ptr<const Tokenizer> tokenizer;  // null: token files without a tokenizer
  int64_t vocab = 0;
  // Size of the text behind the tokens; 0: unknown. The characters per validation token are validation_characters / validation.size().
  double train_characters = 0, train_bytes = 0;
  double validation_characters = 0, validation_bytes = 0;
  // Where validation windows start; empty: at multiples of the block. The built-in corpus starts them at stories, and knows each window's target probabilities
  // (-log P in nats) and number of characters.
  std::vector<int64_t> window_starts;
  std::vector<double> window_nats, window_characters;
  // The lowest mean loss that any model can reach on all validation windows, in nats per character; known only for the built-in corpus.
  std::optional<double> possible;
  std::string learnt_from;         // how much text the vocabulary was learnt from, if memory allowed less than usual
  std::vector<std::string> notes;  // what was found and done, one per line: "4 files, 1.1 MB, 10 % for validation", "tokens cached"
  std::filesystem::path folder;    // where the tokens are stored; empty: in a temporary folder, already deleted
  bool cached = false;             // the tokens existed before
};

struct DatasetOptions {
  std::string tokenizer = "auto";               // auto, char, byte, bpe, or the path of a tokenizer.json
  int64_t vocab = 0;                            // of a newly trained bpe; 0: chosen by the size of the text
  int64_t block = 0;                            // windows need one token more; 0: any length is fine
  uint64_t seed = 1;                            // of the built-in corpus
  std::filesystem::path cache;                  // folder for tokens; empty: the user's cache folder
  std::shared_ptr<const Tokenizer> given = {};  // a run's own tokenizer, for evaluation and resume; overrides `tokenizer`
  std::string model = {};                       // the model that the tokens must match: no other tokenizer may be requested, and no vocabulary is learnt
  int64_t memory = 0;                           // limit for the whole process while tokens are made, in bytes; 0: none
  int cut = kTextCut;                           // version of the rule that splits texts; a resumed run keeps its own
  std::function<void(const std::string& what, double done)> progress = {};  // of long work, from 0 to 1
};

// A source that does not exist under its given path is looked for in ./data and in the home folder. `source`: builtin, a text file, a folder of text files, a
// folder made by prepare_dataset(), a folder with nanoGPT's train.bin and val.bin, llm.c's shards (a folder or a pattern such as data/tiny_*.bin).
// ErrorCode::io names the file, the position in it, and what to do.
Dataset open_dataset(const std::string& source, const DatasetOptions& options);

// The same, with the tokens in a folder chosen by the user, whose path open_dataset() accepts as a source. A folder that already has them is left unchanged.
Dataset prepare_dataset(const std::string& source, const std::filesystem::path& out, const DatasetOptions& options);

// The tokenizer of `options.model`: `options.given`, or if there is none the file named by `options.tokenizer`, or bytes.
std::shared_ptr<const Tokenizer> model_tokenizer(const DatasetOptions& options);

// Training windows: tokens and targets, i64 [batch, block]. Each epoch draws a phase in [0, block) and permutes the windows of that phase.
std::unique_ptr<BatchSource> training_windows(const Dataset& data, int64_t batch, int64_t block, uint64_t seed);

// The fixed validation windows, at most `most` of them, evenly spaced (0: all); the last batch may have fewer samples.
std::unique_ptr<BatchSource> validation_windows(const Dataset& data, int64_t batch, int64_t block, int64_t most = 0);

// As Dataset::possible, for the windows that validation_windows() takes with the same `most`.
std::optional<double> possible_loss(const Dataset& data, int64_t most);

// Amount of text behind the targets of those windows; 0: unknown. If windows are not counted individually, the ratio of the whole validation part is used.
double count_characters_per_token(const Dataset& data, int64_t block, int64_t most);

}  // namespace ridge
