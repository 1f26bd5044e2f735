// Names in other programs' files that mean something else here, or nothing.
#pragma once
#include <string>
#include <string_view>

#include "config/key.h"

namespace ridge::config {

struct Meaning {
  const Key* key = nullptr;
  std::string_view remark = {};  // without a key: why the name is accepted and has no effect
  std::string problem = {};      // neither: an unknown name, with the nearest valid one
};

Meaning meaning_of(std::string_view section, std::string_view name);  // in a known section, or in none

std::string section_problem(std::string_view section);  // empty: it is known

}  // namespace ridge::config
