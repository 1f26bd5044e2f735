// Convolutions of images with few channels, such as pictures in bytes.
#pragma once
#include <memory>

#include "backend/conv_desc.h"
#include "backend/cuda/kernel.h"

namespace ridge::cuda {

bool fits_band_conv(const ConvDesc& desc, const Chip& chip);                     // needs no steps
std::unique_ptr<Kernel> make_band_conv(const ConvDesc& desc, const Chip& chip);  // null: they do not fit

}  // namespace ridge::cuda
