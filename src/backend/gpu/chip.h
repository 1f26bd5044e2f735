// The GPU properties that kernel plans depend on.
#pragma once
#include <cstdint>
#include <string>

#include "backend/gpu/dialect.h"

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
};

}  // namespace ridge::gpu
