// Expects a call to throw an error, and checks its message.
#pragma once
#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "ridge/error.h"

namespace ridge {

template <class Call>
Error error_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "no error";
  return Error(ErrorCode::internal, "");
}

inline bool mentions(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

}  // namespace ridge
