// Words and sizes for people.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace ridge {

std::string lower_case(std::string_view text);  // of ASCII letters
std::string size_text(int64_t bytes);           // "14.8 GiB", "1.5 MiB", "512 KiB": at most three digits

int display_width(std::string_view text);  // columns of UTF-8 text, one for each letter

// Broken at blanks to lines of at most `width` columns; the lines after the first begin with `indent` blanks.
std::string wrap(std::string_view text, int width, int indent);

}  // namespace ridge
