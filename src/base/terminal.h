// What a program may assume about where its output goes.
#pragma once
#include <string>
#include <string_view>

#include "base/text.h"

namespace ridge {

int terminal_width();  // of stdout in columns; COLUMNS, else 100 when it is no terminal
bool on_terminal();    // stdout is a terminal on which the cursor can be moved
bool use_colour();     // it is one, and NO_COLOR is not set

std::string bold(std::string_view text);  // plain text without use_colour()
std::string dim(std::string_view text);

}  // namespace ridge
