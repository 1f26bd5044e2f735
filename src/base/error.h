// Throws formatted errors inside the library, so that each can include its numbers.
#pragma once
#include <utility>

#include <fmt/core.h>

#include "ridge/error.h"

namespace ridge {

// fail(ErrorCode::shape, "[matmul] inner sizes differ: {} and {}; transpose one operand", a, b)
template <class... Args>
[[noreturn]] void fail(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(code, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace ridge
