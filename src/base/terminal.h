// Properties of the terminal that stdout goes to.
#pragma once
#include <string>
#include <string_view>

#include "base/text.h"

namespace ridge {

int terminal_width();  // of stdout in columns; if it is not a terminal, COLUMNS, else 100
bool on_terminal();    // stdout is a terminal with cursor movement
bool use_colour();     // stdout is a terminal and NO_COLOR is not set

std::string bold(std::string_view text);  // unchanged without use_colour()
std::string dim(std::string_view text);

}  // namespace ridge
