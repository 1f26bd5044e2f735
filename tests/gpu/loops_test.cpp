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
    std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return char(std::tolower(c)); });
    ++files;
    // As a part of a longer name too: a kernel must not be one cell's.
    for (const std::string_view cell : {"cfc", "ltc", "lstm", "gru", "ctrnn", "indrnn", "closed_form", "closedform", "liquid", "wired"})
      for (size_t at = text.find(cell); at != std::string::npos; at = text.find(cell, at + 1))
        EXPECT_EQ(text.compare(at, 6, "ltcall"), 0) << entry.path() << " names " << cell << ": " << text.substr(at - std::min<size_t>(at, 20), 40);
  }
  EXPECT_GT(files, 50);
}

}  // namespace
}  // namespace ridge::test
