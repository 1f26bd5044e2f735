#include "compile/place.h"

#include "compile/program.h"

namespace ridge {

Place place_of(const Program& program, const ProgramOperand& operand) {
  if (!operand.owner) return {};
  const ProgramBuffer& b = program.buffer_of(operand.owner);
  switch (b.place) {
    case ProgramBuffer::Place::arena: return {0, b.offset + operand.offset};
    case ProgramBuffer::Place::input: return {1 + b.index, operand.offset};
    case ProgramBuffer::Place::output:
      // State has a single location, so that kernels can see that there is nothing to copy.
      if (const int in = program.state_input[size_t(b.index)]; in >= 0) return {1 + in, operand.offset};
      return {1 + int32_t(program.inputs.size()) + b.index, operand.offset};
  }
  return {};
}

}  // namespace ridge
