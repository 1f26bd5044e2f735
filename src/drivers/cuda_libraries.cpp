#include "drivers/cuda_libraries.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <system_error>

#include <fmt/core.h>

namespace ridge::cuda {
namespace {

namespace fs = std::filesystem;

struct Soname {
  const char* file;
  int cuda;  // the driver must support this version; 0: any
};

struct Facts {
  std::string_view name;
  std::vector<Soname> sonames;        // newest first
  const char *package12, *package13;  // on PyPI, for CUDA 12 and 13
};

const Facts& library_facts(Library library) {
  static const Facts facts[] = {
      {"NVRTC", {{"libnvrtc.so.13", 13000}, {"libnvrtc.so.12", 12000}}, "nvidia-cuda-nvrtc-cu12", "nvidia-cuda-nvrtc"},
      {"cuBLASLt", {{"libcublasLt.so.13", 13000}, {"libcublasLt.so.12", 12000}}, "nvidia-cublas-cu12", "nvidia-cublas"},
      {"cuDNN", {{"libcudnn.so.9", 0}, {"libcudnn.so.8", 0}}, "nvidia-cudnn-cu12", "nvidia-cudnn-cu13"},
  };
  return facts[size_t(library)];
}

// Libraries that cuDNN needs for convolutions, in the same folder.
std::vector<std::string> cudnn_parts(const std::string& path) {
  std::vector<std::string> parts;
  const bool old = path.ends_with(".8");
  for (const char* part : old ? std::array{"ops_infer", "cnn_infer", "cnn_train"} : std::array{"graph", "heuristic", "engines_precompiled"})
    parts.push_back((fs::path(path).parent_path() / fmt::format("libcudnn_{}.so.{}", part, old ? 8 : 9)).string());
  return parts;
}

// The absolute folders in a list. Code must not be loaded from relative ones, which depend on the working folder.
std::vector<std::string> absolute_parts(const std::string& list) {
  std::vector<std::string> parts;
  for (size_t at = 0; at < list.size();) {
    const size_t end = std::min(list.find(':', at), list.size());
    if (list[at] == '/') parts.push_back(list.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

// Folders, and links to folders, whose names begin with the prefix, in descending order so that newer versions come first.
std::vector<fs::path> folders_in(const fs::path& folder, std::string_view prefix = "") {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    if (std::error_code no; at->path().filename().string().starts_with(prefix) && at->is_directory(no)) found.push_back(at->path());
  std::sort(found.rbegin(), found.rend());
  return found;
}

class Folders {
 public:
  void add(const fs::path& folder) {
    std::error_code error;
    if (fs::is_directory(folder, error) && std::find(list.begin(), list.end(), folder) == list.end()) list.push_back(folder);
  }
  // A folder of packages: each NVIDIA package has its own folder inside.
  void add_packages(const fs::path& packages) {
    for (const fs::path& package : folders_in(packages / "nvidia")) add(package / "lib");
  }
  // A Python installation or virtual environment.
  void add_python(const fs::path& prefix) {
    for (const char* lib : {"lib", "lib64"})
      for (const fs::path& python : folders_in(prefix / lib, "python3"))
        for (const char* packages : {"site-packages", "dist-packages"}) add_packages(python / packages);
  }
  void add_toolkit(const fs::path& folder) {
    add(folder / "lib64");
    for (const fs::path& target : folders_in(folder / "targets")) add(target / "lib");
  }

  std::vector<fs::path> list;
};

}  // namespace

std::string_view name(Library library) { return library_facts(library).name; }

std::string environment_variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

LibrarySearch library_search(int cuda, const fs::path& root, const Variables& variable) {
  LibrarySearch search{.first = {}, .folders = {}, .cuda = cuda};
  for (const std::string& folder : absolute_parts(variable("RIDGE_CUDA_LIBRARIES"))) search.first.emplace_back(folder);

  Folders folders;
  for (const std::string& path : absolute_parts(variable("PYTHONPATH"))) folders.add_packages(path);
  for (const char* prefix : {"VIRTUAL_ENV", "CONDA_PREFIX"})
    if (const std::string path = variable(prefix); path.starts_with('/')) {
      folders.add_python(path);
      folders.add(fs::path(path) / "lib");
    }
  // The Python that would be started. The interpreter of a virtual environment is a link, so the link's own location counts, not its target's.
  for (const std::string& path : absolute_parts(variable("PATH"))) {
    std::error_code error;
    if (!fs::exists(fs::path(path) / "python3", error)) continue;
    const fs::path prefix = fs::path(path).parent_path();
    folders.add_python(prefix);
    // pyenv's shim starts one of several versions.
    if (fs::path(path).filename() == "shims")
      for (const fs::path& version : folders_in(prefix / "versions")) folders.add_python(version);
    break;
  }
  if (const std::string home = variable("HOME"); home.starts_with('/')) folders.add_python(fs::path(home) / ".local");
  for (const char* prefix : {"usr/local", "usr"}) folders.add_python(root / prefix);
  for (const char* name : {"CUDA_HOME", "CUDA_PATH"})
    if (const std::string path = variable(name); path.starts_with('/')) folders.add_toolkit(path);
  for (const fs::path& toolkit : folders_in(root / "usr/local", "cuda")) folders.add_toolkit(toolkit);
  folders.add_toolkit(root / "opt/cuda");
  search.folders = std::move(folders.list);
  return search;
}

FoundLibrary open_library(Library which, const LibrarySearch& search) {
  const Facts& facts = library_facts(which);
  FoundLibrary found;
  std::string broken, too_new, incomplete;
  auto try_open = [&](const std::string& path) {
    DynamicLibrary library(path);
    if (!library) {
      if (broken.empty()) broken = library.error();
      return false;
    }
    if (which == Library::cudnn) {
      found.parts = cudnn_parts(path);
      for (const std::string& part : found.parts)
        if (std::error_code error; !fs::exists(part, error)) return incomplete = part, false;
    }
    found.library = std::move(library), found.path = path;
    return true;
  };
  auto try_folder = [&](const fs::path& folder, const Soname& soname) {
    std::error_code error;
    const fs::path path = folder / soname.file;
    if (!fs::exists(path, error)) return false;
    if (search.cuda && soname.cuda > search.cuda) {
      if (too_new.empty()) too_new = path.string();
      return false;
    }
    return try_open(path.string());
  };

  for (const fs::path& folder : search.first)
    for (const Soname& soname : facts.sonames)
      if (try_folder(folder, soname)) return found;
  for (const Soname& soname : facts.sonames) {
    if (search.system && !(search.cuda && soname.cuda > search.cuda)) {
      // If the system has none by this name, there is nothing to report.
      if (DynamicLibrary library(soname.file); library) {
        found.library = std::move(library), found.path = soname.file;
        if (which == Library::cudnn) found.parts = cudnn_parts(found.path);
        return found;
      } else if (broken.empty()) {
        broken = DynamicLibrary::why_relative(soname.file);  // it exists, but must not be loaded
      }
    }
    for (const fs::path& folder : search.folders)
      if (try_folder(folder, soname)) return found;
  }

  if (!broken.empty()) {
    found.missing = fmt::format("{} cannot be loaded ({})", facts.name, broken);
  } else if (!incomplete.empty()) {
    found.missing = fmt::format("{} lacks {}", facts.name, incomplete);
  } else if (!too_new.empty()) {
    found.missing = fmt::format("{} needs a newer driver than this one for CUDA {}.{}", too_new, search.cuda / 1000, search.cuda % 1000 / 10);
  } else {
    std::vector<std::string_view> names;
    for (const Soname& soname : facts.sonames) names.push_back(soname.file);
    std::string tried;
    for (const auto& name : names) tried += (tried.empty() ? "" : ", ") + std::string(name);
    found.missing = fmt::format("{} was not found ({})", facts.name, tried);
  }
  found.missing +=
      fmt::format("; pip install {}, or name its absolute folder in RIDGE_CUDA_LIBRARIES", search.cuda >= 13000 ? facts.package13 : facts.package12);
  return found;
}

}  // namespace ridge::cuda
