#include "drivers/cuda_libraries.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "support/fake_drivers.h"
#include "support/temp_folder.h"

namespace ridge::cuda {
namespace {

namespace fs = std::filesystem;

// A root folder with libraries in it: each is a link to the fake one.
struct Root {
  void put(const std::string& file) const {
    const fs::path path = folder / file;
    fs::create_directories(path.parent_path());
    fs::create_symlink(test::fake_driver("gpu"), path);
    // cuDNN is several libraries in one folder.
    for (const char* part : {"graph.so.9", "heuristic.so.9", "engines_precompiled.so.9", "ops_infer.so.8", "cnn_infer.so.8", "cnn_train.so.8"})
      if (path.filename().string() == std::string("libcudnn") + (part + std::strlen(part) - 5))
        fs::create_symlink(test::fake_driver("gpu"), path.parent_path() / (std::string("libcudnn_") + part));
  }
  LibrarySearch search(int cuda, std::map<std::string, std::string> variables = {}) const {
    LibrarySearch found = library_search(cuda, folder.path(), [&](const char* name) { return variables[name]; });
    found.system = false;
    return found;
  }
  std::string open(Library library, const LibrarySearch& search) const {
    const FoundLibrary found = open_library(library, search);
    EXPECT_EQ(bool(found.library), found.missing.empty());
    return found.library ? fs::path(found.path).lexically_relative(folder.path()).string() : found.missing;
  }

  test::TempFolder folder;
};

TEST(CudaLibraries, AreFoundInPackageFolders) {
  const std::pair<const char*, Library> places[] = {
      {"usr/lib/python3/dist-packages/nvidia/cublas/lib/libcublasLt.so.12", Library::cublas_lt},
      {"usr/local/lib/python3.12/site-packages/nvidia/cu13/lib/libcublasLt.so.13", Library::cublas_lt},
      {"usr/local/lib/python3.12/dist-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12", Library::nvrtc},
      {"usr/local/cuda-12.4/lib64/libnvrtc.so.12", Library::nvrtc},
      {"usr/local/cuda/targets/x86_64-linux/lib/libcublasLt.so.13", Library::cublas_lt},
      {"opt/cuda/lib64/libcudnn.so.9", Library::cudnn},
      {"venv/lib/python3.11/site-packages/nvidia/cudnn/lib/libcudnn.so.9", Library::cudnn},
      {"conda/lib/libcublasLt.so.12", Library::cublas_lt},
      {"tools/lib/python3.10/site-packages/nvidia/cublas/lib/libcublasLt.so.12", Library::cublas_lt},
      {"home/.local/lib/python3.9/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.13", Library::nvrtc},
      {"packages/nvidia/cublas/lib/libcublasLt.so.12", Library::cublas_lt},
      {"mine/libcudnn.so.8", Library::cudnn},
  };
  for (const auto& [file, library] : places) {
    const Root root;
    root.put(file);
    root.put("tools/bin/python3");
    const LibrarySearch search = root.search(13000, {{"VIRTUAL_ENV", root.folder / "venv"},
                                                     {"CONDA_PREFIX", root.folder / "conda"},
                                                     {"HOME", root.folder / "home"},
                                                     {"PATH", "/nowhere:" + (root.folder / "tools/bin") + "::"},
                                                     {"PYTHONPATH", root.folder / "packages"},
                                                     {"RIDGE_CUDA_LIBRARIES", ":" + (root.folder / "mine")}});
    EXPECT_EQ(root.open(library, search), file);
  }
}

// The interpreter on the path may be a wrapper that starts another.
TEST(CudaLibraries, AreFoundThroughPyenv) {
  const Root root;
  root.put("pyenv/shims/python3");
  root.put("pyenv/versions/3.11.7/lib/python3.11/site-packages/nvidia/cu13/lib/libnvrtc.so.13");
  EXPECT_EQ(root.open(Library::nvrtc, root.search(13000, {{"PATH", root.folder / "pyenv/shims"}})),
            "pyenv/versions/3.11.7/lib/python3.11/site-packages/nvidia/cu13/lib/libnvrtc.so.13");
}

TEST(CudaLibraries, TheNewestSupportedByTheDriverWins) {
  const Root root;
  root.put("usr/local/cuda-12/lib64/libcublasLt.so.12");
  root.put("usr/local/cuda-13/lib64/libcublasLt.so.13");
  EXPECT_EQ(root.open(Library::cublas_lt, root.search(13010)), "usr/local/cuda-13/lib64/libcublasLt.so.13");
  EXPECT_EQ(root.open(Library::cublas_lt, root.search(12040)), "usr/local/cuda-12/lib64/libcublasLt.so.12");
  // Paths that the user names take precedence.
  root.put("mine/libcublasLt.so.12");
  EXPECT_EQ(root.open(Library::cublas_lt, root.search(13010, {{"RIDGE_CUDA_LIBRARIES", root.folder / "mine"}})), "mine/libcublasLt.so.12");
}

TEST(CudaLibraries, MissingOnesAreNamedWithARemedy) {
  const Root root;
  const std::string none = root.open(Library::cublas_lt, root.search(12040));
  EXPECT_EQ(
      none,
      "cuBLASLt was not found (libcublasLt.so.13, libcublasLt.so.12); pip install nvidia-cublas-cu12, or name its absolute folder in RIDGE_CUDA_LIBRARIES");
  EXPECT_NE(root.open(Library::nvrtc, root.search(13000)).find("pip install nvidia-cuda-nvrtc,"), std::string::npos);

  root.put("usr/local/cuda-13/lib64/libcublasLt.so.13");
  const std::string too_new = root.open(Library::cublas_lt, root.search(12040));
  EXPECT_NE(too_new.find("libcublasLt.so.13 needs a newer driver than this one for CUDA 12.4"), std::string::npos) << too_new;

  test::write_text(root.folder / "libcudnn.so.9", "not a library");
  const std::string broken = root.open(Library::cudnn, root.search(12040, {{"RIDGE_CUDA_LIBRARIES", root.folder.path()}}));
  EXPECT_NE(broken.find("cuDNN cannot be loaded"), std::string::npos) << broken;
}

// The opened library aborts the process if it cannot load the others.
TEST(CudaLibraries, AnIncompleteCudnnIsNotUsed) {
  const Root root;
  root.put("mine/libcudnn.so.9");
  const LibrarySearch search = root.search(13000, {{"RIDGE_CUDA_LIBRARIES", root.folder / "mine"}});
  const FoundLibrary found = open_library(Library::cudnn, search);
  EXPECT_EQ(found.path, root.folder / "mine/libcudnn.so.9");
  EXPECT_EQ(found.parts.size(), 3u);
  for (const std::string& part : found.parts) {
    fs::rename(part, part + ".gone");
    const std::string missing = root.open(Library::cudnn, search);
    EXPECT_EQ(missing.find("cuDNN lacks " + part + "; pip install nvidia-cudnn-cu13"), 0u) << missing;
    fs::rename(part + ".gone", part);
  }
}

// Anyone who can write to the working folder could put code there.
TEST(CudaLibraries, AreNotLoadedFromRelativeFolders) {
  const Root root;
  for (const char* place :
       {"mine", "lib", "lib64", "nvidia/cublas/lib", "lib/python3.12/site-packages/nvidia/cublas/lib", ".local/lib/python3.12/site-packages/nvidia/cublas/lib"})
    root.put(std::string(place) + "/libcublasLt.so.12");
  root.put("bin/python3");
  const fs::path before = fs::current_path();
  fs::current_path(root.folder.path());
  const LibrarySearch search = root.search(13000, {{"RIDGE_CUDA_LIBRARIES", "mine:./mine::../mine"},
                                                   {"PYTHONPATH", ".::"},
                                                   {"VIRTUAL_ENV", "."},
                                                   {"CONDA_PREFIX", "."},
                                                   {"PATH", "bin"},
                                                   {"HOME", "."},
                                                   {"CUDA_HOME", "."},
                                                   {"CUDA_PATH", "."}});
  EXPECT_TRUE(search.first.empty());
  EXPECT_TRUE(search.folders.empty()) << search.folders.front();
  EXPECT_FALSE(open_library(Library::cublas_lt, search).library);
  fs::current_path(before);
}

TEST(CudaLibraries, OddFoldersAreIgnored) {
  const Root root;
  root.put("usr/local/lib/python3.12/site-packages/nvidia");  // a file where a folder should be
  const LibrarySearch search = root.search(0, {{"PATH", ":::/no/such"}, {"PYTHONPATH", ":"}, {"HOME", "/no/such"}, {"RIDGE_CUDA_LIBRARIES", "/no/such"}});
  EXPECT_TRUE(search.folders.empty());
  EXPECT_FALSE(open_library(Library::nvrtc, search).library);
}

}  // namespace
}  // namespace ridge::cuda
