// Facts that change only on purpose, stored line by line in tests/fixtures/pins/<name>.txt: digests of machine code, kernel counts, planned
// bytes. With TEST_WRITE_PINS=1 the tests write the files instead of comparing.
#pragma once
#include <string>
#include <vector>

namespace ridge::test {

struct Pin {
  std::string line;
  std::string label = {};   // named in the failure's message, not stored
  std::string source = {};  // a digest of what the line was made from: stored with it, and not compared
};

std::vector<Pin> stored_pins(const std::string& name);

// Fails unless the lines are the stored ones, in any order.
void expect_pins(const std::string& name, std::vector<Pin> pins);

}  // namespace ridge::test
