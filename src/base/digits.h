// Numbers as text for files, many of them quickly.
#pragma once
#include <string>

namespace ridge {

// As JSON has it, with nine significant digits: any two floats are told apart, and what lies half-way is rounded up. What is not finite becomes null.
void append_digits(std::string& out, double x);

}  // namespace ridge
