// Paths of this build's programs.
#pragma once
#include <string>

namespace ridge::test {

std::string ridge_program();  // the command line

}  // namespace ridge::test
