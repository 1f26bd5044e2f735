// An address known before its memory is allocated.
#pragma once
#include <cstdint>

namespace ridge {

// An entry in the table of base addresses, plus an offset in bytes.
struct Place {
  int32_t base = -1;  // -1: absent
  int64_t offset = 0;
  explicit operator bool() const { return base >= 0; }
};

}  // namespace ridge
