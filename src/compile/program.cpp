#include "compile/program.h"

#include <fmt/format.h>

namespace ridge {

std::string to_string(const Program& p) {
  std::string text;
  for (const std::string& note : p.scans) text += note + "\n";
  for (size_t k = 0; k < p.kernels.size(); ++k) {
    const ProgramKernel& kernel = p.kernels[k];
    text += fmt::format("{:4}  {}", k, kernel.name);
    for (const ProgramOperand& o : kernel.operands) {
      if (!o.owner) continue;
      text += fmt::format(" {}%{}:{}", o.written ? "->" : "", o.owner, to_string(p.graph.type(o.owner)));
      const auto known = p.buffer_index.find(o.owner);
      if (known == p.buffer_index.end()) continue;  // not planned yet
      const ProgramBuffer& b = p.buffers[size_t(known->second)];
      const char* place = b.place == ProgramBuffer::Place::input ? "in" : b.place == ProgramBuffer::Place::output ? "out" : "arena";
      text += fmt::format("@{}{}", place, b.place == ProgramBuffer::Place::arena ? b.offset : b.index);
    }
    text += "\n";
    for (const TileGroup& t : kernel.tiles) text += to_string(t);
  }
  for (const std::string& r : p.refusals) text += "not fused: " + r + "\n";
  return text;
}

}  // namespace ridge
