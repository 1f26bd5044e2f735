// Names in other programs' files that mean something else here, or nothing.
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "config/key.h"

namespace ridge::config {

struct Meaning {
  const Key* key = nullptr;
  std::string_view remark = {};   // without a key: why the name has no counterpart here. Accepted in files, which other programs read too
  std::optional<bool> only = {};  // … with this value alone, which asks for nothing
  std::string problem = {};       // neither: an unknown name, with a close one if there is any
};

// In a known section, or in none. `options` as in unknown_key().
Meaning meaning_of(std::string_view section, std::string_view name, std::span<const std::string> options = {});

std::string section_problem(std::string_view section);  // empty: it is known

}  // namespace ridge::config
