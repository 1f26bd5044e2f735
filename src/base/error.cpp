#include "base/error.h"

namespace ridge {

std::string_view name(ErrorCode code) {
  switch (code) {
    case ErrorCode::shape: return "shape";
    case ErrorCode::dtype: return "dtype";
    case ErrorCode::axis: return "axis";
    case ErrorCode::value: return "value";
    case ErrorCode::binding: return "binding";
    case ErrorCode::memory: return "memory";
    case ErrorCode::io: return "io";
    case ErrorCode::usage: return "usage";
    case ErrorCode::unsupported: return "unsupported";
    case ErrorCode::internal: return "internal";
  }
  return "unknown";
}

}  // namespace ridge
