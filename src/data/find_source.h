// Where data is that is called by a name: in the working folder, in its folder data, or in the home folder.
#pragma once
#include <string>

namespace ridge {

std::string expand_home(const std::string& path);  // ~ and ~/… by $HOME; anything else as it is

// The path of a source (a file, a folder or a pattern; not builtin). ErrorCode::io names the folders that were looked in, and what is near.
std::string find_source(const std::string& source);

}  // namespace ridge
