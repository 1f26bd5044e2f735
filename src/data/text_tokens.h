// Tokenises texts of any size: chooses the tokenizer and the validation part, and does the work.
#pragma once
#include "data/text_files.h"
#include "data/token_cache.h"

namespace ridge {

// A text file, or a folder of them. The last tenth of the characters is for validation.
TokenRecipe text_recipe(const std::string& source, const DatasetOptions& options);

// Identifies the tokenizer that the options ask for: a word, or the text of its tokenizer.json. ErrorCode::usage: neither a word nor a file.
std::string tokenizer_identity(const DatasetOptions& options);

// The given tokenizer, or that of the named file; null: a word asks for one that depends on the text.
std::shared_ptr<const Tokenizer> ready_tokenizer(const DatasetOptions& options);

// Learns a byte-level vocabulary from texts in memory; 0: a size that suits the text.
std::shared_ptr<const Tokenizer> learn_bpe(std::span<const std::string_view> texts, int64_t vocab, int64_t text_bytes);

}  // namespace ridge
