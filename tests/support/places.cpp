// The only file that knows the source and build folders, so that compiled tests are identical in every checkout.
#include <cstdlib>
#include <filesystem>

#include "support/fake_drivers.h"
#include "support/places.h"
#include "support/source_dir.h"

namespace ridge {

std::string source_dir() {
  const char* moved = std::getenv("TEST_SOURCE_DIR");
  return moved ? moved : RIDGE_SOURCE_DIR;
}

namespace test {

std::string fake_driver(const std::string& name) {
  std::error_code error;
  const std::filesystem::path beside = std::filesystem::read_symlink("/proc/self/exe", error).parent_path() / "fake_driver" / (name + ".so");
  if (!error && std::filesystem::exists(beside, error)) return beside.string();
  return std::string(RIDGE_FAKE_DRIVERS) + "/" + name + ".so";
}

std::string ridge_program() { return RIDGE_PROGRAM; }

}  // namespace test
}  // namespace ridge
