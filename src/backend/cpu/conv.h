// Convolution as an implicit product: tiles of the packed product read their windows from an image in cache, so windows, padding and gaps never exist in
// memory.
#pragma once
#include <memory>

#include "backend/conv_desc.h"
#include "backend/cpu/matmul.h"
#include "machine/features.h"

namespace ridge::cpu {

// Operands for bind: x, w, result (absent with an epilogue). An epilogue's blocks are outputs x positions of an image: its batch is the image, its rows are the
// outputs of all groups. `epilogue_scratch`: as in MatmulDesc.
std::unique_ptr<MatmulKernel> make_conv(const ConvDesc& desc, int64_t epilogue_scratch = -1);
// The same with the kernels of a given tier, which this CPU must support.
std::unique_ptr<MatmulKernel> make_conv_for(const ConvDesc& desc, int64_t epilogue_scratch, IsaTier tier);

// Whether a convolution is one for these kernels. Groups of few outputs would leave most of a vector unused, and run as products of windows.
bool has_conv_kernel(const Graph& graph, NodeId conv);
// Whether it sums over more taps than it has positions, as gradients with respect to the weights do. Their sums are stored in any order of axes.
bool sums_over_taps(const ConvDesc& desc);

}  // namespace ridge::cpu
