// What a command may assume about where its output goes.
#pragma once
#include <string>
#include <string_view>

#include "base/text.h"

namespace ridge::cli {

int terminal_width();  // of stdout in columns; COLUMNS, else 100 when it is no terminal
bool use_colour();     // stdout is a terminal and NO_COLOR is not set

std::string bold(std::string_view text);  // plain text without use_colour()
std::string dim(std::string_view text);

}  // namespace ridge::cli
