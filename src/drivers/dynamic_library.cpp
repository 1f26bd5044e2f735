#include "drivers/dynamic_library.h"

#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>

#include <fmt/core.h>

namespace ridge {

std::string DynamicLibrary::why_relative(const std::string& path) {
  if (path.starts_with('/')) return {};
  if (path.empty()) return "no library is named";
  if (path.find('/') != path.npos) return fmt::format("{} is a relative path; name the library by its absolute path", path);
  const char* list = std::getenv("LD_LIBRARY_PATH");
  if (!list || !*list) return {};
  // The loader's order: the first folder that has the library wins. An empty element is the working folder; ; separates folders as : does.
  for (std::string_view rest = list;;) {
    const size_t end = rest.find_first_of(":;");
    const std::filesystem::path folder = rest.substr(0, end);
    std::error_code error;
    const bool here = std::filesystem::exists((folder.empty() ? "." : folder) / path, error);
    const bool variants = std::filesystem::exists((folder.empty() ? "." : folder) / "glibc-hwcaps", error);  // searched first, for some CPUs
    if (folder.is_absolute() && here) return {};
    if (!folder.is_absolute() && (here || variants))
      return fmt::format("the loader would take {} from the relative folder '{}' of LD_LIBRARY_PATH; remove that element", path, folder.string());
    if (end == rest.npos) return {};
    rest.remove_prefix(end + 1);
  }
}

}  // namespace ridge
