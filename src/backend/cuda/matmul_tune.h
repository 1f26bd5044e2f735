// Chooses the library's fastest algorithm for a product on this device: timed once per shape and kept for later processes.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/cuda/kernel.h"
#include "backend/cuda/matmul_library.h"

namespace ridge::cuda {

struct MatmulChoice {
  int way = 0;  // index into `ways`
  LtAlgorithm algorithm{};
  int64_t workspace = 0;
  int proposal = 0;     // its rank among the library's proposals
  double ms = 0;        // measured time of the call; 0: no memory to measure in
  double first_ms = 0;  // of the first proposal that works

  std::string text() const;  // for storage: everything except `way`
  static std::optional<MatmulChoice> parse(const std::string& text);
};

// Chooses for the first of the ways that the library can do well; empty if it can do none. Measures if nothing is known. Whatever is chosen, a product's bits
// stay the same: those of the library's first proposal.
std::optional<MatmulChoice> choose_matmul(Loader& loader, std::span<const LibraryCall* const> ways, int64_t workspace_bytes);

// Kernels that fill operands and compare results.
std::vector<KernelText> tuning_texts();

}  // namespace ridge::cuda
