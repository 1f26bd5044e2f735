// Which of a product's candidates is fastest on this device: measured once per shape, kept for later processes.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/cuda/kernel.h"
#include "backend/cuda/matmul_library.h"

namespace ridge::cuda {

struct MatmulChoice {
  int way = 0;  // index among the candidates' ways
  LtAlgorithm algorithm{};
  int64_t workspace = 0;
  int proposal = 0;     // the library's place for it
  double ms = 0;        // of the call, as measured
  double first_ms = 0;  // of the library's first proposal

  std::string text() const;  // for keeping
  static std::optional<MatmulChoice> parse(const std::string& text);
};

// One way to do a product by the library, and the bytes that go through memory afterwards in a kernel of ours.
struct MatmulWay {
  const LibraryCall* call = nullptr;
  int64_t bytes_after = 0;
};

// Empty where the library can do none of them. Measures where nothing is known.
std::optional<MatmulChoice> choose_matmul(Loader& loader, std::span<const MatmulWay> ways, int64_t workspace_bytes);

}  // namespace ridge::cuda
