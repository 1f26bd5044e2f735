// Which standard headers include others varies by library and version: GCC 13's <string> no longer includes <cstdint>.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <set>
#include <string_view>

#include "support/source_dir.h"
#include "support/temp_folder.h"

namespace ridge {
namespace {

namespace fs = std::filesystem;

TEST(Includes, FilesThatUseFixedWidthNumbersIncludeThem) {
  const fs::path root = source_dir();
  constexpr std::string_view kOwn = "#include \"",
                             kNames[] = {"int8_t", "int16_t", "int32_t", "int64_t", "intmax_t", "intptr_t", "INT32_M", "INT64_M", "SIZE_MAX"};
  struct File {
    std::vector<std::string> included;
    bool uses = false, has = false;
  };
  std::map<std::string, File> files;  // by include path
  for (const char* folder : {"include", "src"})
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root / folder)) {
      if (entry.path().extension() != ".h" && entry.path().extension() != ".cpp") continue;
      const std::string text = test::read_text(entry.path());
      File& file = files[entry.path().lexically_relative(root / folder).string()];
      for (size_t at = text.find(kOwn); at != text.npos; at = text.find(kOwn, at + 1))
        file.included.push_back(text.substr(at + kOwn.size(), text.find('"', at + kOwn.size()) - at - kOwn.size()));
      for (std::string_view used : kNames) file.uses |= text.find(used) != text.npos;
      file.has = text.find("#include <cstdint>") != text.npos || text.find("#include <stdint.h>") != text.npos;
    }
  EXPECT_GT(files.size(), 200u);
  for (const auto& [name, file] : files) {
    if (!file.uses) continue;
    bool has = false;
    std::set<std::string> seen;
    for (std::vector<std::string> open = {name}; !open.empty() && !has;) {
      const std::string next = open.back();
      open.pop_back();
      const auto found = files.find(next);
      if (found == files.end() || !seen.insert(next).second) continue;
      has = found->second.has;
      open.insert(open.end(), found->second.included.begin(), found->second.included.end());
    }
    EXPECT_TRUE(has) << name << " needs #include <cstdint>";
  }
}

}  // namespace
}  // namespace ridge
