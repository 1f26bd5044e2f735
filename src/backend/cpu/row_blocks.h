// Loops over time whose rows (samples) do not depend on each other: a unit computes one block of rows for all steps.
#pragma once
#include <memory>
#include <string>

#include "backend/cpu/variant.h"
#include "compile/program.h"
#include "threads/task.h"

namespace ridge::cpu {

// Weights are packed once, before the loop; the carries and values of a block stay in its core's cache, and threads do not wait for each other
// between steps. The size of a block depends on the shapes only, and a row's bits do not depend on its block.
class RowBlockLoop : public Kernel {
 public:
  virtual const Program& body() const = 0;
  virtual std::string describe() const = 0;  // "4 blocks of up to 16 rows"
};

// Takes the loop's frame and program, unless the body cannot be split into rows: then it returns null, and `why` names the value or the kernel. Operands for
// bind: those of the scan.
std::unique_ptr<RowBlockLoop> make_row_blocks(LoopProgram& loop, std::string& why, const KernelVariant& variant = {});

}  // namespace ridge::cpu
