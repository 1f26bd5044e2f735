// The runs that one command asks for: each data set with each seed.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "config/config.h"

namespace ridge {

struct Part {
  std::string data;
  uint64_t seed = 0;
  std::filesystem::path folder;
  bool begun = false, finished = false;  // as look_back() found it
};

std::string word_for(const std::string& data);  // that a folder can be called by
std::vector<Part> parts_of(const config::Resolved& settings, const std::filesystem::path& out);

// What a resumed command finds of them: those that are finished are left out of it. ErrorCode::usage: all of several
// are, one was trained and has no checkpoint, or only others than these have begun.
void look_back(std::vector<Part>& parts, const config::Resolved& settings, const std::filesystem::path& out);

// The settings of one of several.
config::Resolved settings_of(const Part& part, config::Sources sources);

}  // namespace ridge
