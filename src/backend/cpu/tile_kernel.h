// Fused groups on the CPU: a vector interpreter over tiles that fit in the L1 cache.
#pragma once
#include <memory>
#include <span>

#include "backend/cpu/matmul.h"
#include "compile/tile_group.h"
#include "threads/task.h"

namespace ridge::cpu {

// One launch for all groups, which must not depend on each other. Operands for bind: those of the first group, then those of the next, …
// threads: that will share the units; results do not depend on their number.
std::unique_ptr<Kernel> make_tile_kernel(std::span<const TileGroup> groups, int threads = 1, const KernelVariant& variant = {});

// A map group over [batch, rows, columns] that reads a matmul's sums through group.accumulator.
class TileEpilogue {
 public:
  virtual ~TileEpilogue() = default;
  virtual int64_t scratch_bytes() const = 0;
  virtual MatmulEpilogue bind(std::span<const Ref> operands) = 0;  // valid while this object lives
};
std::unique_ptr<TileEpilogue> make_tile_epilogue(const TileGroup& group);

}  // namespace ridge::cpu
