// A temporary folder for one test, removed with the object.
#pragma once
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>

namespace ridge::test {

class TempFolder {
 public:
  // In memory if possible: syncing to a busy disk takes seconds.
  TempFolder() : path_("/dev/shm/ridge_test_XXXXXX") {
    if (::mkdtemp(path_.data())) return;
    path_ = (std::filesystem::temp_directory_path() / "ridge_test_XXXXXX").string();
    if (!::mkdtemp(path_.data())) throw std::runtime_error("no temporary folder");
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  std::string operator/(std::string_view name) const { return path_ + "/" + std::string(name); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline std::string read_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void write_text(const std::string& path, std::string_view text) { std::ofstream(path, std::ios::binary) << text; }

}  // namespace ridge::test
