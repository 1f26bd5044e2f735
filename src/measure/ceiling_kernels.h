// The inner loops used to measure the ceilings, for one instruction tier.
#pragma once
#include <cstdint>
#include <vector>

#include "ridge/dtype.h"

namespace ridge {

struct MoveShape {
  int64_t count;  // floats, a multiple of kMoveGrain
  int64_t ahead;  // prefetch distance in floats; 0: none
};
constexpr int64_t kMoveGrain = 1024;

// How a range is traversed: as 1, 2 or 4 streams, each over one part of it, or tile by tile (all reads of a tile, then all its writes).
enum class Walk { one, two, four, tiles };
constexpr int kWalks = 4;

struct FmaKernel {
  DType dtype;      // of the factors; sums are f32, or f64 for f64
  const char* way;  // "registers", "matrix units", "dot product", "widened to f32"
  float (*run)(int64_t iterations);
  double flops;  // of one iteration
};

struct CeilingKernels {
  std::vector<FmaKernel> fma;
  // Indexed by walk, and by normal or streaming stores.
  void (*copy[kWalks][2])(float* to, const float* from, MoveShape shape);
  void (*triad[kWalks][2])(float* to, const float* a, const float* b, MoveShape shape);
  // Repeats over the same range, since adding up the sums at the end would cost as much as a small range.
  float (*read[kWalks - 1])(const float* from, MoveShape shape, int64_t passes);
};

const CeilingKernels& ceiling_kernels();  // of isa_tier()

}  // namespace ridge
