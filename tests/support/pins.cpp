#include "support/pins.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

#include <gtest/gtest.h>

#include "support/source_dir.h"

namespace ridge::test {

void expect_pins(const std::string& name, std::vector<Pin> pins) {
  const std::string path = source_dir() + "/tests/fixtures/pins/" + name + ".txt";
  std::sort(pins.begin(), pins.end(), [](const Pin& a, const Pin& b) { return a.line < b.line; });
  if (const char* write = std::getenv("TEST_WRITE_PINS"); write && std::string(write) == "1") {
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    std::ofstream file(path);
    for (const Pin& pin : pins) file << pin.line << '\n';
    EXPECT_TRUE(file.flush()) << path;
    return;
  }
  std::map<std::string, int> stored;  // how often each line
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) ++stored[line];
  std::string differences;
  for (const Pin& pin : pins)
    if (--stored[pin.line] < 0) differences += "\n  new:    " + pin.line + (pin.label.empty() ? "" : "  (" + pin.label + ")");
  for (const auto& [line, count] : stored)
    for (int i = 0; i < count; ++i) differences += "\n  stored: " + line;
  EXPECT_TRUE(differences.empty()) << "differs from tests/fixtures/pins/" << name << ".txt:" << differences
                                   << "\ndigests change only in commits that say why; to write the new ones, run this test by hand with TEST_WRITE_PINS=1";
}

}  // namespace ridge::test
