// GPT-2's rule of cutting text into words, over which no token reaches:
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// A blank belongs to the word behind it; of several, only the last. Bytes that are not UTF-8 count as signs.
#pragma once
#include <cstddef>
#include <string_view>
#include <vector>

#include "data/special_tokens.h"

namespace ridge {

// Where the word that begins at `begin` ends; begin < text.size().
size_t word_end(std::string_view text, size_t begin);

// Cuts text into parts of about `size` bytes such that the words and special tokens of the parts are those of the whole, in every script.
// The cuts depend on the text alone.
std::vector<std::string_view> cut_between_words(std::string_view text, size_t size, const SpecialTokens& special = SpecialTokens());

// Version 1 of the cut, for runs that began with it: the first blank at or after `from` that follows ASCII; text.size(): there is none.
size_t first_ascii_word_end(std::string_view text, size_t from);

}  // namespace ridge
