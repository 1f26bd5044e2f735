// What kernels are written for. Read from a device, or made up where texts are only compiled.
#pragma once
#include <cstdint>
#include <string>

#include "backend/gpu/chip.h"
#include "base/precision.h"

namespace ridge::cuda {

class Driver;

const gpu::KernelDialect& dialect();  // CUDA C++

struct Chip : gpu::GpuChip {
  Chip();  // an H200

  int major = 9, minor = 0;
  // How f32 numbers may be multiplied (matmul_precision): as they are, or with 10 bits (tf32) or 7 bits (bf16) of each factor's fraction, which
  // matrix units take. A kernel that has no such form takes the next better one.
  Precision f32_products = Precision::fp32;
  bool cublas_lt = true, cudnn = false;  // the libraries that are there

  bool at_least(int a, int b) const { return major > a || (major == a && minor >= b); }
  bool wgmma() const { return major == 9 && minor == 0; }  // and TMA
  bool bf16() const { return at_least(8, 0); }             // in the matrix units; before that bf16 is only stored
  std::string target() const;                              // "sm_90a", "sm_86"
};

Chip chip_of(const Driver& driver, int device);
Chip chip_for(int major, int minor);  // plausible numbers for a chip that is not here

}  // namespace ridge::cuda
