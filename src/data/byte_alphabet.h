// How byte-level vocabularies spell bytes in text files: GPT-2's alphabet of 256 printable characters, in which a space is Ġ.
#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace ridge {

std::string spell_bytes(std::string_view bytes);                        // as UTF-8
std::optional<std::string> read_spelling(std::string_view characters);  // empty: contains a character that represents no byte

}  // namespace ridge
