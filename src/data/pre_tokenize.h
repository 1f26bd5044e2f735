// GPT-2's rule for splitting text into words; no token crosses a word boundary:
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// A space belongs to the word after it; of several, only the last. Bytes that are not UTF-8 count as symbols.
#pragma once
#include <cstddef>
#include <string_view>
#include <vector>

#include "data/special_tokens.h"

namespace ridge {

// The end of the word that begins at `begin`; begin < text.size().
size_t word_end(std::string_view text, size_t begin);

// Splits text into parts of about `size` bytes such that the words and special tokens of the parts are those of the whole, in every script. The boundaries
// depend only on the text.
std::vector<std::string_view> cut_between_words(std::string_view text, size_t size, const SpecialTokens& special = SpecialTokens());

// Version 1 of the rule, for runs started with it: the first space at or after `from` that follows ASCII; text.size() if there is none.
size_t first_ascii_word_end(std::string_view text, size_t from);

}  // namespace ridge
