// The commands of `ridge` inside a program of your own, with the environments that it registers. Link with ridge::commands.
#pragma once
#include <string>
#include <vector>

namespace ridge {

// Runs what a command line says, as `ridge` would, and returns the exit code. Errors are printed. Call it once.
int run_program(int argc, char** argv);
int run_program(std::vector<std::string> words);  // without the program's name: {"train", "ppo", "env=maze"}

}  // namespace ridge
