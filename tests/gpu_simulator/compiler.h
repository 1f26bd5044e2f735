// The host's compiler makes a shared library of a kernel's text. Libraries are kept by content in a folder (SIMULATED_GPU_CACHE, else one in the
// folder for temporary files), so that tests that run again need not wait for the compiler.
#pragma once
#include <string>
#include <vector>

namespace simulator {

struct Compiled {
  std::string library;  // its bytes; empty: it could not be made
  std::string log;
};
Compiled compile(const std::string& source, const std::vector<std::string>& defines);

}  // namespace simulator
