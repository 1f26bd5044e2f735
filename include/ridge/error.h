// The exception that Ridge throws. Its message says what happened, with the numbers, and what to do about it.
#pragma once
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace ridge {

// The kind of an error, for programs that handle some kinds themselves.
enum class ErrorCode {
  shape,        // shapes do not match
  dtype,        // an operation does not support the element type
  axis,         // no such axis
  value,        // an argument or an index is out of range
  binding,      // inputs do not match what a step was compiled for
  memory,       // does not fit into memory or the budget
  io,           // a file cannot be read or written, or is damaged
  usage,        // a wrong setting or option
  unsupported,  // the device, build or operation does not support this
  internal,     // a bug in Ridge
};

// The name of the code: "shape", "memory".
std::string_view name(ErrorCode code);

// Thrown by all functions of Ridge; what() is the message.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace ridge
