// Facts that change only on purpose, stored line by line in tests/fixtures/pins/<name>.txt: machine code digests, kernel counts, planned bytes. With
// TEST_WRITE_PINS=1 the tests write the files instead of comparing.
#pragma once
#include <string>
#include <vector>

namespace ridge::test {

struct Pin {
  std::string line;
  std::string label = {};   // shown in failure messages, not stored
  std::string source = {};  // digest of what the line was computed from: stored with it, but not compared
};

std::vector<Pin> stored_pins(const std::string& name);

// Fails unless the lines match the stored ones, in any order.
void expect_pins(const std::string& name, std::vector<Pin> pins);

}  // namespace ridge::test
