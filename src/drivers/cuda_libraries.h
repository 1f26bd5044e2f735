// NVIDIA's libraries other than the driver, each opened at run time if present: by name, as the system finds it, and in the folders where Python packages and
// CUDA's toolkit install it. If one is missing, the message names it and says how to get it.
#pragma once
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "drivers/dynamic_library.h"

namespace ridge::cuda {

enum class Library { nvrtc, cublas_lt, cudnn };
std::string_view name(Library library);

// An environment variable; empty: not set.
using Variables = std::function<std::string(const char*)>;
std::string environment_variable(const char* name);

struct LibrarySearch {
  std::vector<std::filesystem::path> first;    // from the user, in RIDGE_CUDA_LIBRARIES
  std::vector<std::filesystem::path> folders;  // searched after the system
  bool system = true;                          // by bare name: LD_LIBRARY_PATH and the linker's cache
  int cuda = 0;                                // supported by the driver: 12040 is 12.4; 0: unknown
};
LibrarySearch library_search(int cuda, const std::filesystem::path& root = "/", const Variables& variable = environment_variable);

struct FoundLibrary {
  DynamicLibrary library = {};
  std::string path = {};                // or the name by which the system finds it
  std::vector<std::string> parts = {};  // other libraries that it loads itself; if one is missing, cuDNN aborts the process
  std::string missing = {};             // why it is missing, and what to do
};
FoundLibrary open_library(Library library, const LibrarySearch& search);

}  // namespace ridge::cuda
