// Fast number formatting for files.
#pragma once
#include <string>

namespace ridge {

// JSON with nine significant digits, enough to distinguish any two floats. Ties round up. Values that are not finite become null.
void append_digits(std::string& out, double x);

}  // namespace ridge
