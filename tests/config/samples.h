// Sample values for each key, and a folder for files.
#pragma once
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include <fmt/core.h>

#include "base/error.h"
#include "config/config.h"
#include "config/words.h"
#include "support/temp_folder.h"

namespace ridge::config {

// Two values of a key that differ from each other and from its default.
inline std::pair<std::string, std::string> samples(const Key& key) {
  auto whole = [](double x) { return fmt::format("{}", int64_t(x)); };
  switch (key.type) {
    case Type::integer: return {whole(std::max(key.low, 3.0)), whole(std::max(key.low, 5.0))};
    case Type::real: return {"0.25", "0.5"};
    case Type::boolean: return {key.initial == "true" ? "false" : "true", std::string(key.initial)};
    case Type::text: return {"some text", "other text"};
    case Type::bytes: return {"512MiB", "2GB"};
    case Type::path: return {"some/folder", "other"};
    case Type::list: return {"a.txt, b.txt", "c.txt"};
    case Type::choice: break;
  }
  std::vector<std::string_view> words = split(key.words, '|');
  std::erase(words, key.initial);
  return {std::string(words.back()) == "cuda:N" ? "cuda:1" : std::string(words.back()), std::string(words.size() > 1 ? words[0] : key.initial)};
}

// A separate folder for each test, removed after it.
class InFolder : public testing::Test {
 protected:
  std::filesystem::path write(const std::filesystem::path& name, std::string_view text) const {
    const std::filesystem::path path = folder_ / name;
    std::filesystem::create_directories(path.parent_path());
    test::write_text(path, text);
    return path;
  }

  // The error message from resolving; empty if it succeeds.
  static std::string error_of(const Sources& sources) {
    try {
      resolve(sources);
      return {};
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::usage);
      return error.what();
    }
  }

  test::TempFolder temporary_;
  std::filesystem::path folder_ = temporary_.path();
};

}  // namespace ridge::config
