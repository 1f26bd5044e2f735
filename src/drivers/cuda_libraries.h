// NVIDIA's libraries beside the driver, each opened at run time if it is there: by its name, as the system finds it, and in the folders
// where Python packages and CUDA's toolkit put it. What is missing is named, with the way to get it.
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

// A variable of the environment; empty: not set.
using Variables = std::function<std::string(const char*)>;
std::string environment_variable(const char* name);

struct LibrarySearch {
  std::vector<std::filesystem::path> first;    // named by the user, in RIDGE_CUDA_LIBRARIES
  std::vector<std::filesystem::path> folders;  // asked after the system
  bool system = true;                          // by name alone: LD_LIBRARY_PATH and the linker's cache
  int cuda = 0;                                // that the driver speaks: 12040 is 12.4; 0: unknown
};
LibrarySearch library_search(int cuda, const std::filesystem::path& root = "/", const Variables& variable = environment_variable);

struct FoundLibrary {
  DynamicLibrary library = {};
  std::string path = {};                // or the name under which the system has it
  std::vector<std::string> parts = {};  // other libraries that it loads by itself; where one is missing cuDNN ends the process
  std::string missing = {};             // why there is none, and what to do
};
FoundLibrary open_library(Library library, const LibrarySearch& search);

}  // namespace ridge::cuda
