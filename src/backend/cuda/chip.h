// The chip that kernels are written for: read from a device, or assumed where texts are only compiled.
#pragma once
#include <cstdint>
#include <string>

#include "backend/gpu/chip.h"

namespace ridge::cuda {

class Driver;

const gpu::KernelDialect& dialect();  // CUDA C++

struct Chip : gpu::GpuChip {
  Chip();  // defaults to an H200

  int major = 9, minor = 0;
  bool cublas_lt = true, cudnn = false;  // which libraries are available
  // What shortens chains of short kernels; each can be switched off, to compare.
  bool thin = true;     // products of one row have kernels of their own
  bool joined = true;   // kernels do the work of short ones before them
  bool overlap = true;  // a kernel of a recording may start while the one before it ends, where the chip can

  bool at_least(int a, int b) const { return major > a || (major == a && minor >= b); }
  bool wgmma() const { return major == 9 && minor == 0; }  // and TMA
  bool overlaps() const { return overlap && at_least(9, 0); }
  bool bf16() const { return at_least(8, 0); }  // in the matrix units; older chips only store bf16
  std::string target() const;                   // "sm_90a", "sm_86"
};

Chip chip_of(const Driver& driver, int device);
Chip chip_for(int major, int minor);  // plausible numbers for a chip that is not present

}  // namespace ridge::cuda
