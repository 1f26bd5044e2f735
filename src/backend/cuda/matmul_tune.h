// Which of the library's algorithms for a product is fastest on this device: measured once per shape, kept for later processes.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/cuda/kernel.h"
#include "backend/cuda/matmul_library.h"

namespace ridge::cuda {

struct MatmulChoice {
  int way = 0;  // index among the ways
  LtAlgorithm algorithm{};
  int64_t workspace = 0;
  int proposal = 0;     // the library's place for it
  double ms = 0;        // of the call, as measured; 0: there was no memory to measure in
  double first_ms = 0;  // of the first proposal that does the work

  std::string text() const;  // for keeping: all but the way
  static std::optional<MatmulChoice> parse(const std::string& text);
};

// For the first of the ways that the library can do well; empty where it can do none. Measures where nothing is known, and whatever comes of
// that, a product's bits are the same: those of the library's first proposal.
std::optional<MatmulChoice> choose_matmul(Loader& loader, std::span<const LibraryCall* const> ways, int64_t workspace_bytes);

// That fill operands, and that tell results from each other.
std::vector<KernelText> tuning_texts();

}  // namespace ridge::cuda
