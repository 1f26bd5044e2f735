// What plans of kernels need to know about a GPU.
#pragma once
#include <cstdint>
#include <string>

#include "backend/gpu/dialect.h"

namespace ridge::gpu {

struct GpuChip {
  const KernelDialect* dialect = nullptr;  // of its kernels' texts
  std::string name;
  int multiprocessors = 1;
  int threads_per_multiprocessor = 1024;
  int64_t shared_bytes = 0;  // that a block may ask for
  int64_t shared_bytes_per_multiprocessor = 0;
  int64_t l2_bytes = 0;
  int64_t memory_bytes = 0;
};

}  // namespace ridge::gpu
