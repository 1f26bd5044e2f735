#include "drivers/dynamic_library.h"

#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>

#include <fmt/core.h>

namespace ridge {

namespace {

// A file that the loader could load from there, or a folder of CPU-specific variants; empty: none.
std::string library_in(const std::filesystem::path& folder) {
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::string name = it->path().filename().string();
    if (name == "glibc-hwcaps" || name.ends_with(".so") || name.find(".so.") != name.npos) return name;
  }
  return {};
}

}  // namespace

std::string DynamicLibrary::why_relative(const std::string& path) {
  if (path.empty()) return "no library name is given";
  if (!path.starts_with('/') && path.find('/') != path.npos) return fmt::format("{} is a relative path; name the library by its absolute path", path);
  const char* list = std::getenv("LD_LIBRARY_PATH");
  if (!list || !*list) return {};
  // Dependencies are searched there too, wherever the library itself is. An empty element means the working folder; both ; and : separate folders.
  for (std::string_view rest = list;;) {
    const size_t end = rest.find_first_of(":;");
    const std::filesystem::path folder = rest.substr(0, end);
    if (!folder.is_absolute())
      if (const std::string found = library_in(folder.empty() ? "." : folder); !found.empty())
        return fmt::format("the loader may load {} from the relative folder '{}' of LD_LIBRARY_PATH; remove that element", found, folder.string());
    if (end == rest.npos) return {};
    rest.remove_prefix(end + 1);
  }
}

}  // namespace ridge
