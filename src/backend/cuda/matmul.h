// Products of strided operands with what follows them: by the library where it can, else by a kernel of our own.
#pragma once
#include <memory>
#include <vector>

#include "backend/cuda/kernel.h"
#include "backend/gpu/matmul_problem.h"
#include "compile/tile_group.h"

namespace ridge::cuda {

struct MatmulDesc {
  ContractionLoops loops;
  DType a = DType::f32, b = DType::f32, result = DType::f32;  // the result's type without an epilogue
  std::vector<int64_t> alignments = {};                       // of each operand's address, in bytes; 64 where it is not told
  std::vector<int> memory = {};                               // operands with equal numbers lie in one memory; all apart where it is not told
  const TileGroup* epilogue = nullptr;
};

// Operands: A, B, C; with an epilogue A, B, then the epilogue's.
std::unique_ptr<Kernel> make_matmul(const MatmulDesc& desc, const Chip& chip);

}  // namespace ridge::cuda
