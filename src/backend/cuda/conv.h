// Convolution kernels that make no copies of windows, padding or spread inputs in memory.
#pragma once
#include <memory>

#include "backend/conv_desc.h"
#include "backend/cuda/kernel.h"

namespace ridge::cuda {

// Operands: x, w, result.
std::unique_ptr<Kernel> make_conv(const ConvDesc& desc, const Chip& chip);

}  // namespace ridge::cuda
