// An address that is known before the memory is.
#pragma once
#include <cstdint>

namespace ridge {

// An entry of the table of base addresses, plus bytes.
struct Place {
  int32_t base = -1;  // -1: absent
  int64_t offset = 0;
  explicit operator bool() const { return base >= 0; }
};

}  // namespace ridge
