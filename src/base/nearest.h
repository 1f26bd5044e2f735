// Suggests the name that the user probably meant.
#pragma once
#include <span>
#include <string>
#include <string_view>

namespace ridge {

// Edit distance from a to b: insertions, deletions, replacements and swaps of neighbouring letters.
size_t edit_distance(std::string_view a, std::string_view b);

// The name at the smallest distance, the first on ties; empty if there are no names. Words are truncated to 64 letters.
std::string_view nearest(std::string_view word, std::span<const std::string_view> names);

// "did you mean 'batch'?" if a name is close to the word (at most a third of the letters differ), else empty.
std::string close_hint(std::string_view word, std::span<const std::string_view> names);

// For the end of a message: the same, or `otherwise` if no name is close; if that is empty too, the first few names.
std::string nearest_hint(std::string_view word, std::span<const std::string_view> names, std::string_view otherwise = {});

}  // namespace ridge
