// Texts as tokens: a training and a validation part, mapped from files, with the tokenizer that made them.
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

// The newest version of the rule by which texts are cut into pieces that are tokenised separately. 1 looked at ASCII alone and cut other scripts
// inside of words; runs that began with it keep it, so that their tokens stay the same.
constexpr int kTextCut = 2;

struct Dataset {
  std::string name;         // "builtin", "my.txt": what runs and reports call it
  std::string fingerprint;  // of all tokens and the tokenizer, so that a resumed run notices other data
  TokenArray train, validation;
  std::shared_ptr<const Tokenizer> tokenizer;  // null: token files that came without one
  int64_t vocab = 0;
  // Of text that the tokens stand for; 0: unknown. Characters a validation token are validation_characters / validation.size().
  double train_characters = 0, train_bytes = 0;
  double validation_characters = 0, validation_bytes = 0;
  // Where validation windows start; empty: at multiples of the block. The built-in corpus starts them at stories, and knows of each
  // window's targets how unlikely they are, in nats, and how many characters they stand for.
  std::vector<int64_t> window_starts;
  std::vector<double> window_nats, window_characters;
  // The least mean loss that any model can reach on all validation windows, in nats per character; the built-in corpus alone knows it.
  std::optional<double> possible;
  std::string learnt_from;         // how much text the vocabulary comes from, where memory allowed less than usual
  std::vector<std::string> notes;  // what was found and done, a line each: "4 files, 1.1 MB, 10 % for validation", "tokens cached"
  std::filesystem::path folder;    // where the tokens lie; empty: in a folder that is gone, as it was only for this process
  bool cached = false;             // they were there before
};

struct DatasetOptions {
  std::string tokenizer = "auto";               // auto, char, byte, bpe, or the path of a tokenizer.json
  int64_t vocab = 0;                            // of a bpe that is trained; 0: by the size of the text
  int64_t block = 0;                            // windows need one token more; 0: any length will do
  uint64_t seed = 1;                            // of the built-in corpus
  std::filesystem::path cache;                  // folder for tokens; empty: the user's cache folder
  std::shared_ptr<const Tokenizer> given = {};  // a run's own tokenizer, for evaluation and resume; stronger than `tokenizer`
  std::string model = {};                       // whose tokens these must be: no other tokenizer can be asked for, and no vocabulary is learnt
  int64_t memory = 0;                           // that the whole process may hold while tokens are made, in bytes; 0: any number
  int cut = kTextCut;                           // version of the cut of texts; a resumed run has its own
  std::function<void(const std::string& what, double done)> progress = {};  // of long work, done from 0 to 1
};

// A source that is not there as it is named is looked for in ./data and in the home folder. `source`: builtin, a text file, a folder of text files, a folder
// that prepare_dataset() made, a folder with nanoGPT's train.bin and val.bin, llm.c's shards (a folder or a pattern as data/tiny_*.bin). ErrorCode::io says
// which file, where in it, and what to do.
Dataset open_dataset(const std::string& source, const DatasetOptions& options);

// The same, with the tokens in a folder of the user's: open_dataset() takes its path as a source. A folder that holds them already stays as it is.
Dataset prepare_dataset(const std::string& source, const std::filesystem::path& out, const DatasetOptions& options);

// The tokenizer of `options.model`: `options.given`, or where it has none of its own the file that `options.tokenizer` names, or bytes.
std::shared_ptr<const Tokenizer> model_tokenizer(const DatasetOptions& options);

// Training windows: tokens and targets, i64 [batch, block]. Each epoch draws a phase in [0, block) and permutes the windows of that phase.
std::unique_ptr<BatchSource> training_windows(const Dataset& data, int64_t batch, int64_t block, uint64_t seed);

// The fixed validation windows, at most `most` of them, spread evenly (0: all); the last batch may have fewer samples.
std::unique_ptr<BatchSource> validation_windows(const Dataset& data, int64_t batch, int64_t block, int64_t most = 0);

// As Dataset::possible, on the windows that validation_windows() takes with the same `most`.
std::optional<double> possible_loss(const Dataset& data, int64_t most);

// Of text behind the targets of those windows; 0: unknown. Where windows are not counted one by one it is that of the whole validation part.
double characters_a_token(const Dataset& data, int64_t block, int64_t most);

}  // namespace ridge
