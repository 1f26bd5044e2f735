// Runs as ridge runs and ridge report read and show them.
#pragma once
#include <filesystem>
#include <vector>

#include "train/experiment.h"

namespace ridge::cli {

std::vector<RunGroup> read_groups(const std::vector<std::filesystem::path>& folders);  // what is damaged is told on stderr
void print_groups(const std::vector<RunGroup>& groups, bool json);

}  // namespace ridge::cli
