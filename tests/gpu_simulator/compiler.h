// Compiles a kernel's text to a shared library with the host's compiler. Libraries are cached by content in a folder (SIMULATED_GPU_CACHE, else one in the
// temporary folder), so that repeated tests do not wait for the compiler.
#pragma once
#include <string>
#include <vector>

namespace simulator {

struct Compiled {
  std::string library;  // its bytes; empty: compilation failed
  std::string log;
};
Compiled compile(const std::string& source, const std::vector<std::string>& defines);

}  // namespace simulator
