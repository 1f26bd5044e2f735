// The name that somebody probably meant.
#pragma once
#include <span>
#include <string>
#include <string_view>

namespace ridge {

// Letters to insert, delete, replace or swap with their neighbour on the way from a to b.
size_t edit_distance(std::string_view a, std::string_view b);

// The name with the least distance, the first of equals; empty when there are no names. Words beyond 64 letters are cut there.
std::string_view nearest(std::string_view word, std::span<const std::string_view> names);

// "did you mean 'batch'?" where a name is close to the word: at most a third of the letters differ. Else empty.
std::string close_hint(std::string_view word, std::span<const std::string_view> names);

// For the end of a message: the same, or where no name is close `otherwise`; without that the first names.
std::string nearest_hint(std::string_view word, std::span<const std::string_view> names, std::string_view otherwise = {});

}  // namespace ridge
