// Finds data by name: in the working folder, in its folder data, or in the home folder.
#pragma once
#include <string>

namespace ridge {

// The path of a source (a file, a folder or a pattern; not builtin). ErrorCode::io names the folders searched and similar names.
std::string find_source(const std::string& source, const char* remedy = "check the name");

}  // namespace ridge
