// Where the repository's files are.
#pragma once
#include <string>

namespace ridge {

// Where it was built, or where TEST_SOURCE_DIR says that a test program carried to another machine finds them.
std::string source_dir();

}  // namespace ridge
