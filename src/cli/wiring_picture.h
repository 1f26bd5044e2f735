// A wiring as a picture.
#pragma once
#include <string>
#include <string_view>

#include "ridge/wiring.h"

namespace ridge::cli {

// The circuit in layers from inputs to outputs, and its synapses as a matrix. ErrorCode::value if there is too much to draw.
std::string wiring_svg(const Wiring& wiring, std::string_view title);

}  // namespace ridge::cli
