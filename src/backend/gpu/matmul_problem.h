// A contraction as the GPU kernels see it, with loops merged as far as strides allow, and its form as the library's strided matrices, if it has one.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/precision.h"
#include "compile/program.h"
#include "ridge/dtype.h"

namespace ridge::gpu {

using MatmulLoop = ContractionLoops::Loop;

// C[batch, m, n] = sum over k of A[batch, m, k] · B[batch, k, n], sums in f32. Loops are listed slowest first.
struct MatmulProblem {
  DType a = DType::f32, b = DType::f32;
  std::vector<MatmulLoop> batch, m, n, k;
  int64_t batches = 1, rows = 1, columns = 1, depth = 1;
  Precision f32_products = Precision::fp32;

  bool empty() const { return batches == 0 || rows == 0 || columns == 0; }
};

// Drops loops of size 1 and merges neighbours that form a single loop.
MatmulProblem make_problem(const ContractionLoops& loops, DType a, DType b);
std::vector<MatmulLoop> merged(std::vector<MatmulLoop> loops);

// An array over [batch, rows, columns] in memory. Strides are in elements; 0 along an axis over which it is constant.
struct MatmulArray {
  int operand = -1;  // index among the epilogue's operands; -1: absent
  DType type = DType::f32;
  int64_t offset = 0, batch = 0, row = 0, column = 1;
  explicit operator bool() const { return operand >= 0; }
  bool operator==(const MatmulArray&) const = default;
};

// The same sums, with the result laid out as in `place`.
MatmulProblem with_result(MatmulProblem problem, const MatmulArray& place);

// One column-major matrix (the library's order): element (i, j) of batch b is at i + j · stride + b · batch_stride.
struct LibraryMatrix {
  DType type = DType::f32;
  int64_t rows = 0, columns = 0, stride = 0, batch_stride = 0;
  bool operator==(const LibraryMatrix&) const = default;
};

// result = op(first) · op(second): everything a library call takes except addresses.
struct LibraryProduct {
  bool swapped = false;  // `first` is B: the result is row-major, so its transpose is computed
  bool transpose_first = false, transpose_second = false;
  LibraryMatrix first, second, result;
  int64_t batches = 1;              // in one call
  std::vector<MatmulLoop> outside;  // loops over calls
  int64_t calls() const;
  bool operator==(const LibraryProduct&) const = default;
};

// The problem with results of the given type; empty if the library does not support the strides or types.
std::optional<LibraryProduct> library_product(const MatmulProblem& problem, DType result);

}  // namespace ridge::gpu
