// GPT-2's rule of cutting text into words, over which no token reaches:
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// A blank belongs to the word behind it; of several, only the last. Bytes that are not UTF-8 count as signs.
#pragma once
#include <cstddef>
#include <string_view>
#include <vector>

namespace ridge {

// Where the word that begins at `begin` ends; begin < text.size().
size_t word_end(std::string_view text, size_t begin);

// Cuts text into parts of about `size` bytes such that the words of the parts are those of the whole. The cuts depend on the text alone.
std::vector<std::string_view> cut_between_words(std::string_view text, size_t size);

}  // namespace ridge
