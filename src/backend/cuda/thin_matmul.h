// Products of a single row: dot products that stream the weights once. Generating text is made of these. All blocks of a product fetch their weights while
// the kernel before it still runs, and may each repeat a short row kernel (a norm) whose result is the row.
#pragma once
#include <memory>

#include "backend/cuda/kernel.h"
#include "backend/cuda/matmul.h"
#include "compile/program.h"

namespace ridge::cuda {

// The kernel that makes the product's row. Its only result is contiguous and is read by nothing else.
struct ThinRow {
  const TileGroup* group = nullptr;
  int result = 0;  // the operand of the group that is the row
};

// Null if the product has several rows, or weights that are not contiguous along the depth. Operands: the row kernel's, if there is one, then those of
// make_matmul. `constant_weights`: no kernel of the program writes them.
std::unique_ptr<Kernel> make_thin_matmul(const MatmulDesc& desc, const ThinRow& row, bool constant_weights, const Chip& chip);

}  // namespace ridge::cuda
