// What a command may assume about where its output goes.
#pragma once
#include <string>
#include <string_view>

namespace ridge::cli {

int terminal_width();  // of stdout in columns; COLUMNS, else 100 when it is no terminal
bool use_colour();     // stdout is a terminal and NO_COLOR is not set

std::string bold(std::string_view text);  // plain text without use_colour()
std::string dim(std::string_view text);

int display_width(std::string_view text);  // columns of UTF-8 text, one for each letter

// Broken at blanks to lines of at most `width` columns; the lines after the first begin with `indent` blanks.
std::string wrap(std::string_view text, int width, int indent);

}  // namespace ridge::cli
