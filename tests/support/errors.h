// The error that a call fails with, and its message.
#pragma once
#include <optional>
#include <string_view>

#include "ridge/error.h"

namespace ridge::test {

std::optional<Error> error_of(const auto& act) {
  try {
    act();
  } catch (const Error& e) {
    return e;
  }
  return {};
}

inline bool has(const std::optional<Error>& error, std::string_view part) {
  return error && std::string_view(error->what()).find(part) != std::string_view::npos;
}

}  // namespace ridge::test
