// The memory of a program's values from kernel to kernel.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace ridge {

struct Program;

struct LiveValue {
  std::string name;  // the kernel that produces it, and its type: "matmul+3 f32[12, 64, 512]"
  int64_t bytes = 0;
};

struct ProgramMemory {
  std::vector<int64_t> live;    // in the arena during each kernel, in bytes
  std::vector<LiveValue> peak;  // values in the arena when it is fullest, largest first
};
// Values that share memory count once, under the name of the first one.
ProgramMemory memory_over(const Program& program);

}  // namespace ridge
