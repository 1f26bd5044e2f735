// A product by cuBLASLt: descriptors built once, and the library's proposals for it.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "backend/cuda/kernel.h"
#include "backend/gpu/matmul_epilogue.h"
#include "drivers/cublas_lt.h"

namespace ridge::cuda {

// A product with an epilogue as one call of the library (or several, over batches that one stride does not reach).
struct LibraryCall {
  LibraryProduct product;
  MatmulEpilogue epilogue;
  Precision f32_products = Precision::fp32;
  bool convert_bias = false;  // the library wants it in the result's type: it is rounded to that in workspace first
  int64_t alignment_first = 64, alignment_second = 64, alignment_result = 64, alignment_addend = 64, alignment_bias = 64;  // of addresses, in bytes
  double flops() const;
  std::string key() const;  // all that its speed depends on
};

// Nothing where the library has no such epilogue, types or strides.
std::optional<LibraryCall> library_call(const MatmulProblem& problem, const MatmulEpilogue& epilogue);

// A matrix of an epilogue, which lies as the result does but for its rows; and what one takes, from its first element to its last.
LibraryMatrix like_result(const LibraryProduct& product, const MatmulArray& array);
int64_t bytes_of(const LibraryMatrix& matrix, int64_t batches);

// The call over at most so many bytes of first, second, result, addend and aux, for measurements: fewer rows of the result.
LibraryCall smaller(LibraryCall call, int64_t bytes);

struct LibraryAddresses {
  DevicePointer first = 0, second = 0, result = 0, bias = 0, addend = 0, aux = 0, workspace = 0;
};

// What the library tells of an algorithm: into how many parts it cuts sums (1: none, whatever the product's size), and how it adds those;
// and whether it is written for chips from Hopper on.
struct LtSums {
  int parts = 0, reduction = 0;
  bool operator==(const LtSums&) const = default;
};
LtSums sums_of(const CublasLt& lt, const LtAlgorithm& algorithm);
bool is_recent(const CublasLt& lt, const LtAlgorithm& algorithm);

class LibraryMatmul {
 public:
  LibraryMatmul(const CublasLt& lt, const LibraryCall& call);

  // Best first by the library's own guess; none: it cannot do this here. Only algorithms that give the same bits every time.
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
