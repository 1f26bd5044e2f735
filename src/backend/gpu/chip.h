// The GPU properties that kernel plans depend on.
#pragma once
#include <cstdint>
#include <string>

#include "backend/gpu/dialect.h"
#include "base/precision.h"

namespace ridge::gpu {

struct GpuChip {
  const KernelDialect* dialect = nullptr;  // the language of its kernel texts
  std::string name;
  int multiprocessors = 1;
  int threads_per_multiprocessor = 1024;
  int64_t shared_bytes = 0;  // the most a block may request
  int64_t shared_bytes_per_multiprocessor = 0;
  int64_t l2_bytes = 0;
  int64_t memory_bytes = 0;
  bool matrix_units = false;  // for products of a warp: the dialect has the words for them
  int blocks_of_cluster = 1;  // at most; 1: blocks do not reach each other's shared memory
  // How f32 numbers may be multiplied (matmul_precision): exactly, or with each factor's fraction cut to 10 bits (tf32) or 7 bits (bf16), which the matrix
  // units can multiply. A kernel without such a form uses the next more precise one.
  Precision f32_products = Precision::fp32;
};

}  // namespace ridge::gpu
