// Packed matrix multiplication over strided operands, with batches, general index maps and a fused epilogue.
#pragma once
#include <memory>
#include <vector>

#include "backend/cpu/variant.h"
#include "ridge/dtype.h"
#include "threads/task.h"

namespace ridge::cpu {

// One loop of the contraction with its strides in elements of A, B and C. An m loop has b == 0, an n loop a == 0,
// a k loop c == 0; a batch loop may have all three.
struct MatmulLoop {
  int64_t size = 1, a = 0, b = 0, c = 0;
};

// Called for finished blocks of C instead of the plain store: rows [row, row + rows) x cols [col, col + cols) of batch `batch` (flattened over the m, n and
// batch loops). The sums are in acc with leading dimension ld, and worker.scratch points at epilogue_scratch free bytes.
struct MatmulEpilogue {
  void (*run)(const void* context, Worker& worker, int64_t batch, int64_t row, int64_t rows, int64_t col, int64_t cols, const float* acc, int64_t ld) = nullptr;
  const void* context = nullptr;
  // Prefetches the memory that `run` will access for such a block, while its sums are computed; may be null.
  void (*fetch)(const void* context, const Worker& worker, int64_t batch, int64_t row, int64_t rows, int64_t col, int64_t cols) = nullptr;
};

// C[batch, m, n] (+)= sum over k of A[batch, m, k] * B[batch, k, n], summed in f32 whatever the storage types. Several loops of one kind are listed slowest
// first, so that convolution windows and split heads need no copy.
struct MatmulDesc {
  DType a_type = DType::f32, b_type = DType::f32, c_type = DType::f32;
  std::vector<MatmulLoop> batch, m, n, k;
  bool accumulate = false;        // add to C (f32 only)
  int64_t epilogue_scratch = -1;  // >= 0: finished blocks are passed to an epilogue that needs this much scratch per thread
  // The first row of each block, then the number of rows; empty: chosen by shape. The last task then has one unit per block, which reads only those rows of A;
  // the task before it packs B into the workspace, where it stays valid until B changes.
  std::vector<int64_t> row_blocks;
};

// Operands for bind: A, B, C (C is absent with an epilogue, which does its own stores).
class MatmulKernel : public Kernel {
 public:
  virtual void set_epilogue(MatmulEpilogue epilogue) = 0;  // before bind
};
std::unique_ptr<MatmulKernel> make_matmul(const MatmulDesc& desc, const KernelVariant& variant = {});

}  // namespace ridge::cpu
