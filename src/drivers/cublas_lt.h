// cuBLASLt, opened at run time, and products of square matrices, used to measure a chip's matmul rate.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/precision.h"
#include "drivers/cuda_driver.h"
#include "drivers/cuda_libraries.h"

namespace ridge::cuda {

class CublasLt;
template <class... Args>
using LtCall = CheckedCall<CublasLt, Args...>;

// The subset of the library's types that is used.
using LtHandle = struct LtTag*;
using LtOperation = struct LtOperationTag*;
using LtLayout = struct LtLayoutTag*;
using LtPreference = struct LtPreferenceTag*;
struct LtAlgorithm {
  uint64_t data[8];
};
struct LtHeuristic {
  LtAlgorithm algorithm;
  size_t workspace;
  int state;
  float waves;
  int reserved[4];
};

class CublasLt {
 public:
  explicit CublasLt(const LibrarySearch& search);  // ErrorCode::unsupported if missing or too old

  const DynamicLibrary& library() const { return found_.library; }
  LtHandle handle() const { return handle_.get(); }
  size_t version() const;  // 130201 is 13.2.1
  [[noreturn]] void throw_missing(const char* symbol) const;
  [[noreturn]] void refuse(const char* symbol, int code) const;

 private:
  FoundLibrary found_;

 public:
  LtCall<LtHandle*> create{*this, "cublasLtCreate"};
  LtCall<LtHandle> destroy{*this, "cublasLtDestroy"};
  LtCall<LtOperation*, int, int> operation_create{*this, "cublasLtMatmulDescCreate"};
  LtCall<LtOperation> operation_destroy{*this, "cublasLtMatmulDescDestroy"};
  LtCall<LtOperation, int, const void*, size_t> operation_set{*this, "cublasLtMatmulDescSetAttribute"};
  LtCall<LtLayout*, int, uint64_t, uint64_t, int64_t> layout_create{*this, "cublasLtMatrixLayoutCreate"};
  LtCall<LtLayout> layout_destroy{*this, "cublasLtMatrixLayoutDestroy"};
  LtCall<LtLayout, int, const void*, size_t> layout_set{*this, "cublasLtMatrixLayoutSetAttribute"};
  LtCall<LtPreference*> preference_create{*this, "cublasLtMatmulPreferenceCreate"};
  LtCall<LtPreference> preference_destroy{*this, "cublasLtMatmulPreferenceDestroy"};
  LtCall<LtPreference, int, const void*, size_t> preference_set{*this, "cublasLtMatmulPreferenceSetAttribute"};
  LtCall<LtHandle, LtOperation, LtLayout, LtLayout, LtLayout, LtLayout, LtPreference, int, LtHeuristic*, int*> heuristics{*this,
                                                                                                                          "cublasLtMatmulAlgoGetHeuristic"};
  LtCall<const LtAlgorithm*, int, void*, size_t, size_t*> algorithm_get{*this, "cublasLtMatmulAlgoConfigGetAttribute"};
  LtCall<LtHandle, LtOperation, const void*, DevicePointer, LtLayout, DevicePointer, LtLayout, const void*, DevicePointer, LtLayout, DevicePointer, LtLayout,
         const LtAlgorithm*, DevicePointer, size_t, StreamHandle>
      matmul{*this, "cublasLtMatmul"};

 private:
  Owned<LtHandle, LtCall<LtHandle>> handle_;
};

// d = op(a) · b for n × n matrices: sums in f32, products in the given precision.
class SquareMatmul {
 public:
  SquareMatmul(const CublasLt& lt, Precision precision, int64_t n, bool transpose_a, int64_t workspace_bytes);

  // The library's proposals, its favourite first. None: it cannot multiply these here.
  std::vector<LtHeuristic> algorithms(int most) const;
  void run(const LtAlgorithm& algorithm, DevicePointer a, DevicePointer b, DevicePointer d, DevicePointer workspace, StreamHandle stream) const;

 private:
  const CublasLt& lt_;
  int64_t workspace_bytes_;
  Owned<LtOperation, LtCall<LtOperation>> operation_;
  Owned<LtLayout, LtCall<LtLayout>> layout_;  // all operands are square and of one type
};

int64_t element_bytes(Precision precision);  // of the operands

}  // namespace ridge::cuda
