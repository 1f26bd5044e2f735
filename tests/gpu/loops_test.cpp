// Backends know loops over time, but no particular cell.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include <gtest/gtest.h>

#include "support/source_dir.h"

namespace ridge::test {
namespace {

TEST(BackendLoops, NameNoCell) {
  const std::filesystem::path folder = source_dir() + "/src/backend";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "the sources are not here";
  int files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    std::ifstream in(entry.path());
    std::string text(std::istreambuf_iterator<char>(in), {});
    std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::isalnum(c) || c == '_' ? char(std::tolower(c)) : ' '; });
    ++files;
    for (const char* cell : {"cfc", "ltc", "eltc", "lstm", "gru", "mingru", "ctrnn", "ctgru", "indrnn", "closed_form", "liquid", "wired"})
      EXPECT_EQ((" " + text + " ").find(std::string(" ") + cell + " "), std::string::npos) << entry.path() << " names " << cell;
  }
  EXPECT_GT(files, 50);
}

}  // namespace
}  // namespace ridge::test
