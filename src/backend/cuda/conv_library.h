// Convolutions by cuDNN, used where a fixed rule says that it is faster than our own kernels.
#pragma once
#include <memory>
#include <optional>

#include "backend/cuda/conv.h"
#include "drivers/cudnn.h"

namespace ridge::cuda {

// A convolution in the library's terms, and the location of its arrays.
struct LibraryConv {
  CudnnConv conv;
  int64_t w_offset = 0;         // byte offset of its first weight: reversed views start at their end
  bool w_in_workspace = false;  // the library's w is in workspace: a kernel copies it there in the library's order, or copies the result from there

  int64_t w_bytes() const;          // in workspace
  int64_t workspace_bytes() const;  // the most an algorithm may request
};

// Empty if the library does not support these arrays.
std::optional<LibraryConv> library_conv(const ConvDesc& desc, const Chip& chip);
// Whether the library is faster than our own kernels. This is a rule and not a measurement, because each of them adds in a different order.
bool library_wins(const ConvDesc& desc, CudnnConv::Result result, bool channels_last, const Chip& chip);

// Uses the library, or `own` if it is missing or refuses.
std::unique_ptr<Kernel> make_library_conv(const ConvDesc& desc, const LibraryConv& call, std::unique_ptr<Kernel> own, const Chip& chip);

}  // namespace ridge::cuda
