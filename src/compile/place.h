// Where a program's values will lie: known before the memory is.
#pragma once
#include <cstdint>

namespace ridge {

class Program;
struct ProgramOperand;

// An entry of the table of base addresses, plus bytes.
struct Place {
  int32_t base = -1;  // -1: absent
  int64_t offset = 0;
  explicit operator bool() const { return base >= 0; }
};

// Of a planned program, whose bases are the arena, the inputs, then the outputs.
Place place_of(const Program& program, const ProgramOperand& operand);

}  // namespace ridge
