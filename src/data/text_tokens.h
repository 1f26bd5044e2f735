// Texts to tokens: which tokenizer, which part is for validation, and the work itself, for corpora of any size.
#pragma once
#include "data/text_files.h"
#include "data/token_cache.h"

namespace ridge {

// A text file, or a folder of them. Its last tenth by characters is for validation.
TokenRecipe text_recipe(const std::string& source, const DatasetOptions& options);

// What names the tokenizer that the options ask for: a word, or the text of its tokenizer.json. ErrorCode::usage: neither a word nor a file.
std::string tokenizer_identity(const DatasetOptions& options);

// The one that was given, or that of the named file; null: a word asks for one that depends on the text.
std::shared_ptr<const Tokenizer> ready_tokenizer(const DatasetOptions& options);

// Learns a byte-level vocabulary from texts in memory; 0: of a size that suits the text's.
std::shared_ptr<const Tokenizer> learn_bpe(std::span<const std::string_view> texts, int64_t vocab, int64_t text_bytes);

}  // namespace ridge
