// Where the repository's files are: where it was built, or where TEST_SOURCE_DIR says a test binary that travelled finds them.
#pragma once
#include <cstdlib>
#include <string>

namespace ridge {

inline std::string source_dir() {
  const char* moved = std::getenv("TEST_SOURCE_DIR");
  return moved ? moved : RIDGE_SOURCE_DIR;
}

}  // namespace ridge
