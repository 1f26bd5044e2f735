// Errors that a user can act on: a code, what happened with its numbers, and what to do next.
#pragma once
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace ridge {

enum class ErrorCode { shape, dtype, axis, value, binding, memory, io, usage, unsupported, internal };

std::string_view name(ErrorCode code);

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, std::string message) : std::runtime_error(std::move(message)), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace ridge
