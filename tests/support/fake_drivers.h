// Libraries of the tests that stand in for drivers.
#pragma once
#include <string>

namespace ridge::test {

// The library's path: next to the test program where it was carried to another machine, else in the build folder.
std::string fake_driver(const std::string& name);

}  // namespace ridge::test
