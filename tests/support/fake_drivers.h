// Libraries of the tests that stand in for drivers: beside the test program where it was carried to another machine, else in the build's folder.
#pragma once
#include <filesystem>
#include <string>

namespace ridge::test {

inline std::string fake_driver(const std::string& name) {
  std::error_code error;
  const std::filesystem::path beside = std::filesystem::read_symlink("/proc/self/exe", error).parent_path() / "fake_driver" / (name + ".so");
  if (!error && std::filesystem::exists(beside, error)) return beside.string();
  return std::string(RIDGE_FAKE_DRIVERS) + "/" + name + ".so";
}

}  // namespace ridge::test
