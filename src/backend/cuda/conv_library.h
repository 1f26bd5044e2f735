// Convolutions by cuDNN, where a rule says that it is faster than kernels of our own.
#pragma once
#include <memory>
#include <optional>

#include "backend/cuda/conv.h"
#include "drivers/cudnn.h"

namespace ridge::cuda {

// A convolution in the library's terms, and where its arrays are found.
struct LibraryConv {
  CudnnConv conv;
  int64_t w_offset = 0;  // in bytes, of its first weight: views that run backwards begin at their end
  bool w_apart = false;  // the library's w lies in workspace: a kernel brings it there in the library's order, or from there to its place

  int64_t w_bytes() const;          // in workspace
  int64_t workspace_bytes() const;  // that an algorithm may ask for
};

// Nothing where the library has no such arrays.
std::optional<LibraryConv> library_conv(const ConvDesc& desc, const Chip& chip);
// Whether it is faster than our own kernels: a rule and no measurement, as each adds in another order.
bool library_wins(const ConvDesc& desc, CudnnConv::Result result, bool channels_last, const Chip& chip);

// By the library; by `own` where it is missing or refuses.
std::unique_ptr<Kernel> make_library_conv(const ConvDesc& desc, const LibraryConv& call, std::unique_ptr<Kernel> own, const Chip& chip);

}  // namespace ridge::cuda
