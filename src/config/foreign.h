// Names in other programs' files that mean something else here, or nothing.
#pragma once
#include <string>
#include <string_view>

#include "config/key.h"

namespace ridge::config {

struct Meaning {
  const Key* key = nullptr;
  std::string_view remark = {};  // without a key: why the name is accepted and has no effect
  std::string problem = {};      // neither: an unknown name or section, with the nearest valid one
  bool bad_section = false;      // the problem is the section's, and the same for all its names
};

Meaning meaning_of(std::string_view section, std::string_view name);

}  // namespace ridge::config
