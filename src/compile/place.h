// Where a program's values will be stored, known before the memory is allocated.
#pragma once
#include "base/place.h"

namespace ridge {

struct Program;
struct ProgramOperand;

// For a planned program, whose bases are the arena, the inputs, then the outputs.
Place place_of(const Program& program, const ProgramOperand& operand);

}  // namespace ridge
