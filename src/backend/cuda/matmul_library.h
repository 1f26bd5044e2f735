// A product by cuBLASLt: descriptors built once, and the algorithms that the library proposes for it.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "backend/cuda/kernel.h"
#include "backend/gpu/matmul_epilogue.h"
#include "drivers/cublas_lt.h"

namespace ridge::cuda {

// A product with an epilogue as one library call (or several, for batches that a single stride cannot describe).
struct LibraryCall {
  LibraryProduct product;
  MatmulEpilogue epilogue;
  Precision f32_products = Precision::fp32;
  bool convert_bias = false;  // the library requires the result's type, so the bias is first converted in workspace
  int64_t alignment_first = 64, alignment_second = 64, alignment_result = 64, alignment_addend = 64, alignment_bias = 64;  // of addresses, in bytes
  double flops() const;
  std::string key() const;  // everything its speed depends on
};

// Empty if the library does not support the epilogue, types or strides.
std::optional<LibraryCall> library_call(const MatmulProblem& problem, const MatmulEpilogue& epilogue);

// The layout of an epilogue's matrix, which differs from the result's only in its row stride; and the bytes a matrix spans, from its first element to its last.
LibraryMatrix like_result(const LibraryProduct& product, const MatmulArray& array);
int64_t bytes_of(const LibraryMatrix& matrix, int64_t batches);

// For timing: the call reduced to fewer rows of the result, so that first, second, result, addend and aux take at most this many bytes.
LibraryCall smaller(LibraryCall call, int64_t bytes);

struct LibraryAddresses {
  DevicePointer first = 0, second = 0, result = 0, bias = 0, addend = 0, aux = 0, workspace = 0;
};

// The library's description of an algorithm: how many parts it splits sums into (1: none, whatever the product's size) and how it adds them; and whether it is
// written for Hopper or later chips.
struct LtSums {
  int parts = 0, reduction = 0;
  bool operator==(const LtSums&) const = default;
};
LtSums sums_of(const CublasLt& lt, const LtAlgorithm& algorithm);
bool is_recent(const CublasLt& lt, const LtAlgorithm& algorithm);

class LibraryMatmul {
 public:
  LibraryMatmul(const CublasLt& lt, const LibraryCall& call);

  // Best first, by the library's own estimate; empty: it cannot compute this here. Only algorithms that always give the same bits.
  std::vector<LtHeuristic> proposals(int most, int64_t workspace_bytes) const;
  void enqueue(const LtAlgorithm& algorithm, const LibraryAddresses& at, int64_t workspace_bytes, StreamHandle stream) const;

 private:
  using Operation = Owned<LtOperation, LtCall<LtOperation>>;
  using Layout = Owned<LtLayout, LtCall<LtLayout>>;
  Layout layout(const LibraryMatrix& m) const;

  const CublasLt& lt_;
  LibraryCall call_;
  Operation operation_;
  Layout first_, second_, addend_, result_;
};

}  // namespace ridge::cuda
