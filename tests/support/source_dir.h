// Path of the repository's files.
#pragma once
#include <string>

namespace ridge {

// The source folder of the build, or TEST_SOURCE_DIR if the test program was copied to another machine.
std::string source_dir();

}  // namespace ridge
