#include "support/pins.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <tuple>

#include <gtest/gtest.h>

#include "support/source_dir.h"
#include "support/variable.h"

namespace ridge::test {

namespace {

constexpr std::string_view kSource = ", text ";

std::string path_of(const std::string& name) { return source_dir() + "/tests/fixtures/pins/" + name + ".txt"; }

}  // namespace

std::vector<Pin> stored_pins(const std::string& name) {
  std::vector<Pin> pins;
  std::ifstream file(path_of(name));
  for (std::string line; std::getline(file, line);) {
    const size_t at = std::min(line.find(kSource), line.size());
    pins.push_back({line.substr(0, at), {}, line.substr(std::min(at + kSource.size(), line.size()))});
  }
  return pins;
}

void expect_pins(const std::string& name, std::vector<Pin> pins) {
  std::sort(pins.begin(), pins.end(), [](const Pin& a, const Pin& b) { return std::tie(a.line, a.source) < std::tie(b.line, b.source); });
  if (is_set("TEST_WRITE_PINS")) {
    const std::string path = path_of(name);
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    std::ofstream file(path);
    for (const Pin& pin : pins) file << pin.line << (pin.source.empty() ? "" : kSource) << pin.source << '\n';
    EXPECT_TRUE(file.flush()) << path;
    return;
  }
  std::map<std::string, int> stored;  // line -> number of occurrences
  for (const Pin& pin : stored_pins(name)) ++stored[pin.line];
  std::string differences;
  for (const Pin& pin : pins)
    if (--stored[pin.line] < 0) differences += "\n  new:    " + pin.line + (pin.label.empty() ? "" : "  (" + pin.label + ")");
  for (const auto& [line, count] : stored)
    for (int i = 0; i < count; ++i) differences += "\n  stored: " + line;
  EXPECT_TRUE(differences.empty()) << "differs from tests/fixtures/pins/" << name << ".txt:" << differences
                                   << "\ndigests change only in commits that say why; to write the new ones, run this test by hand with TEST_WRITE_PINS=1";
}

}  // namespace ridge::test
