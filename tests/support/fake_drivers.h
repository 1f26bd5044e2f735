// Test libraries that stand in for drivers.
#pragma once
#include <string>

namespace ridge::test {

// The library's path: next to the test program if it was copied to another machine, else in the build folder.
std::string fake_driver(const std::string& name);

}  // namespace ridge::test
