// The error message for a target that is not a valid class, shared by all backends.
#pragma once
#include <cstdint>
#include <string>

#include "base/error.h"

namespace ridge {

inline std::string class_error(int64_t target, int64_t position, int64_t classes) {
  return fmt::format("[cross_entropy] target {} at position {} is not one of the {} classes; targets are 0 to {}, or the ignore index", target, position,
                     classes, classes - 1);
}

}  // namespace ridge
