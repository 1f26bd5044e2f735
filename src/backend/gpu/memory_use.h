// Which memory the kernels of a program read and write.
#pragma once
#include <set>

#include "compile/program.h"

namespace ridge::gpu {

// Buffers, by the first owner of their memory.
struct MemoryUse {
  std::set<int> read, written;
  // Whether a kernel that uses `later` must stay behind one that uses this.
  bool conflicts(const MemoryUse& later) const;
};

int memory_of(const Program& program, NodeId owner);
bool is_constant(const Program& program, NodeId owner);  // comes from outside, and no kernel writes it: it may be read while earlier kernels run
MemoryUse memory_use(const Program& program, const ProgramKernel& kernel);
MemoryUse together(MemoryUse a, const MemoryUse& b);

// Keeps what the kernel uses until a later one has run.
void extend_lives(Program& program, const ProgramKernel& kernel, size_t until);

}  // namespace ridge::gpu
