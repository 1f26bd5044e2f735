// Reads and prints runs for `ridge runs` and `ridge report`.
#pragma once
#include <filesystem>
#include <vector>

#include "train/experiment.h"

namespace ridge::cli {

std::vector<RunGroup> read_groups(const std::vector<std::filesystem::path>& folders);  // reports damaged runs on stderr
void print_groups(const std::vector<RunGroup>& groups, bool json);

}  // namespace ridge::cli
