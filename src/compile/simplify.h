// Rewrites that preserve every value: fewer nodes, and graph shapes that fuse well.
#pragma once
#include <vector>

#include "graph/graph.h"

namespace ridge {

// Establishes what later passes rely on, and always runs: no markers (stop_gradient, custom), no reductions over single elements, and no
// convolutions unless the backend has kernels for them.
std::vector<NodeId> canonicalize(Graph& graph, std::span<const NodeId> outputs, bool convolutions = false);

// `conv_fuses`: convolutions end in epilogues, as on the CPU. `conv_reads_bytes`: they may read bytes, which then are not converted before.
std::vector<NodeId> simplify(Graph& graph, std::span<const NodeId> outputs, bool conv_fuses = false, bool conv_reads_bytes = false);

}  // namespace ridge
