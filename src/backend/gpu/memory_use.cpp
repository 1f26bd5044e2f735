#include "backend/gpu/memory_use.h"

#include <algorithm>

namespace ridge::gpu {

bool MemoryUse::conflicts(const MemoryUse& later) const {
  auto any = [](const std::set<int>& some, const std::set<int>& of) { return std::ranges::any_of(some, [&](int i) { return of.count(i) > 0; }); };
  return any(later.written, read) || any(later.written, written) || any(later.read, written);
}

int memory_of(const Program& program, NodeId owner) {
  int i = program.buffer_index.at(owner);
  while (true) {
    const ProgramBuffer& b = program.buffers[size_t(i)];
    const int state = b.place == ProgramBuffer::Place::output ? program.state_input[size_t(b.index)] : -1;
    if (b.alias >= 0)
      i = b.alias;
    else if (state >= 0)
      i = program.buffer_index.at(program.inputs[size_t(state)]);
    else
      return i;
  }
}

bool is_constant(const Program& program, NodeId owner) {
  const int memory = memory_of(program, owner);
  return program.buffers[size_t(memory)].place == ProgramBuffer::Place::input &&
         std::ranges::none_of(program.kernels, [&](const ProgramKernel& k) { return memory_use(program, k).written.count(memory) > 0; });
}

MemoryUse memory_use(const Program& program, const ProgramKernel& kernel) {
  MemoryUse used;
  for (const ProgramOperand& o : kernel.operands)
    if (o.owner) (o.written ? used.written : used.read).insert(memory_of(program, o.owner));
  return used;
}

MemoryUse together(MemoryUse a, const MemoryUse& b) {
  a.read.insert(b.read.begin(), b.read.end()), a.written.insert(b.written.begin(), b.written.end());
  return a;
}

void extend_lives(Program& program, const ProgramKernel& kernel, size_t until) {
  for (const ProgramOperand& o : kernel.operands)
    if (o.owner) {
      ProgramBuffer& b = program.buffers[size_t(program.buffer_index.at(o.owner))];
      b.last = std::max(b.last, int(until));
    }
}

}  // namespace ridge::gpu
