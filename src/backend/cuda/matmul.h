// Products of strided operands and the work that follows them: by the library where possible, otherwise by our own kernel.
#pragma once
#include <memory>
#include <vector>

#include "backend/cuda/kernel.h"
#include "backend/gpu/matmul_problem.h"
#include "compile/tile_group.h"

namespace ridge::cuda {

struct MatmulDesc {
  ContractionLoops loops;
  DType a = DType::f32, b = DType::f32, result = DType::f32;  // result: used if there is no epilogue
  std::vector<int64_t> alignments = {};                       // of each operand's address, in bytes; 64 if not given
  std::vector<int> memory = {};                               // operands with equal numbers share memory; if not given, none do
  const TileGroup* epilogue = nullptr;
};

// Operands: A, B, C; with an epilogue A, B, then the epilogue's.
std::unique_ptr<Kernel> make_matmul(const MatmulDesc& desc, const Chip& chip);

}  // namespace ridge::cuda
