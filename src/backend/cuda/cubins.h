// Machine code of kernel texts: compiled in parallel on all cores and cached in files, so that a machine compiles each text once.
#pragma once
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "backend/cuda/kernel.h"

namespace ridge::cuda {

class Nvrtc;

std::filesystem::path kernel_folder();  // in the user's cache folder; empty if that is unknown

struct CubinOptions {
  std::filesystem::path folder = kernel_folder();  // empty: nothing is cached
  int threads = 0;                                 // 0: one per core
  int64_t max_bytes = int64_t(256) << 20;          // limit on the cache; the least recently used files are deleted
};

class Cubins {
 public:
  Cubins(const Nvrtc& nvrtc, std::string target, const CubinOptions& options = {});
  ~Cubins();  // finishes what is being compiled and drops the rest; process exit does the same
  Cubins(const Cubins&) = delete;

  // Identifies the content, compiler and chip; used as the file name.
  std::string key(const KernelText& text) const;

  void ask(std::span<const KernelText> texts);                     // starts compiling in the background and returns immediately
  std::shared_ptr<const std::string> get(const KernelText& text);  // waits; throws the compiler's Error

  std::shared_ptr<const std::string> recompile(const KernelText& text);  // compiles now, ignoring any cached file

  struct Statistics {
    int64_t compiled = 0, found = 0;  // number of texts: compiled by NVRTC, found in files
    int64_t broken = 0;               // corrupt files
  };
  Statistics statistics() const;

 private:
  struct State;
  struct LiveStates;
  std::unique_ptr<State> state_;
};

}  // namespace ridge::cuda
