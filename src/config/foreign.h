// Names in other programs' files that mean something else in Ridge, or nothing.
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "config/key.h"

namespace ridge::config {

struct Meaning {
  const Key* key = nullptr;
  std::string_view remark = {};   // if there is no key: why the name has no counterpart in Ridge. Accepted in files, which other programs read too
  std::optional<bool> only = {};  // … accepted with this value only, which asks for nothing
  std::string problem = {};       // if neither: an unknown name, with a suggestion if one is close
};

// For a name in a known section, or in none. `task` as in find_key(), `options` as in unknown_key().
Meaning meaning_of(unsigned task, std::string_view section, std::string_view name, std::span<const std::string> options = {});

std::string section_problem(std::string_view section);  // empty: a known section

}  // namespace ridge::config
