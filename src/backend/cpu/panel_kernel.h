// Sums over lists of weighted functions of gathered states (panel_program.h), as kernels.
#pragma once
#include <memory>

#include "compile/tile_group.h"
#include "threads/task.h"

namespace ridge::cpu {

// Whether the group has the form of such sums, so that make_panel_kernel returns a kernel.
bool runs_as_panel(const TileGroup& group);
std::unique_ptr<Kernel> make_panel_kernel(const TileGroup& group);  // null if it does not

}  // namespace ridge::cpu
