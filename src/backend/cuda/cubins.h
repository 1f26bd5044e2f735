// Machine code of kernel texts: compiled side by side on all cores, and kept in files, so that a text is compiled once on a machine.
#pragma once
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "backend/cuda/kernel.h"

namespace ridge::cuda {

class Nvrtc;

std::filesystem::path kernel_folder();  // in the user's cache folder; empty when none is known

struct CubinOptions {
  std::filesystem::path folder = kernel_folder();  // empty: nothing is kept
  int threads = 0;                                 // 0: as many as there are cores
  int64_t most_bytes = int64_t(256) << 20;         // of files; those not used for longest go
};

class Cubins {
 public:
  Cubins(const Nvrtc& nvrtc, std::string target, const CubinOptions& options = {});
  ~Cubins();  // what is being compiled is finished, the rest is dropped; so it is when the process ends before
  Cubins(const Cubins&) = delete;

  // By content, compiler and chip; what a file is named.
  std::string key(const KernelText& text) const;

  void ask(std::span<const KernelText> texts);                     // begins in the background and returns at once
  std::shared_ptr<const std::string> get(const KernelText& text);  // waits; an Error of the compiler comes out here

  std::shared_ptr<const std::string> get_anew(const KernelText& text);  // compiled now, whatever a file says

  struct Statistics {
    int64_t compiled = 0, found = 0;  // texts, by NVRTC and in files
    int64_t broken = 0;               // files that were not what they should be
  };
  Statistics statistics() const;

 private:
  struct State;
  struct Living;
  std::unique_ptr<State> state_;
};

}  // namespace ridge::cuda
