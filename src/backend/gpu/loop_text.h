// The text of a resident loop's kernel.
#pragma once
#include <vector>

#include "backend/gpu/kernel.h"
#include "backend/gpu/loop_plan.h"

namespace ridge::gpu {

// A block's shared memory: values that threads exchange (carries twice: a step reads one copy and writes the other), sums that they exchange, then weights.
struct LoopShared {
  struct Places {                // by value
    std::vector<int64_t> at;     // bytes from the start; -1: not there
    std::vector<int64_t> pitch;  // elements from one row to the next; of factors: words, and kGroupGap more between groups of rows
    std::vector<int64_t> copy;   // elements (of factors: words) from one copy to the other; 0: one copy
  };
  Places values, factors;
  std::vector<int64_t> partials;  // by group of products: sums over half of the depth
  int64_t barriers = 0, weights = 0, bytes = 0;
  // With a pitch of 16 words, modulo all 32 banks, the words that a warp's lanes store at a time, or load 16 bytes of, are in different banks.
  static constexpr int kGroupGap = 8;
};
LoopShared loop_shared(const ResidentLoop& loop);

// The nests of products that multiply the same elements in the same stage, so that these are read once.
std::vector<std::vector<size_t>> product_groups(const ResidentLoop& loop);

// How the chunks of a product's weights are divided: the first ones are in registers.
std::vector<int> chunks_in_registers(const ResidentLoop& loop);  // by nest

// The launch's arguments: the fault record, steps, rows, then an address and the bytes from one step to the next for each operand that the text uses.
struct LoopText {
  KernelText text;
  std::vector<int> operands;  // of the scan: inputs of the step, final carries, outputs, carries at the start of each step
};
LoopText loop_text(const ResidentLoop& loop, const KernelDialect& dialect);

}  // namespace ridge::gpu
