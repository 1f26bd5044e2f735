// The inner loops that the ceilings are measured with, for one instruction tier.
#pragma once
#include <cstdint>

namespace ridge {

struct MoveShape {
  int64_t count;  // floats
  int64_t ahead;  // prefetch distance in floats; 0: none
};

struct CeilingKernels {
  float (*fma)(int64_t iterations);
  double fma_flops;  // of one iteration
  // By number of streams (1, 2, 4) and normal or streaming stores. Each stream is one part of the range.
  void (*copy[3][2])(float* to, const float* from, MoveShape shape);
  void (*triad[3][2])(float* to, const float* a, const float* b, MoveShape shape);
  float (*read[3])(const float* from, MoveShape shape);
};

const CeilingKernels& ceiling_kernels();  // of isa_tier()

}  // namespace ridge
