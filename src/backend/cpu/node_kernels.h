// Kernels for nodes that run alone: indexed writes, prefix sums, overlapping sums, sorting.
#pragma once
#include <memory>

#include "graph/graph.h"
#include "threads/task.h"

namespace ridge::cpu {

// For ops of class Fusion::alone (except attention and loops), and pad with interior padding. Operands for bind: the node's operands, then its results (an
// absent result is not computed); all contiguous. Deterministic for any number of threads.
std::unique_ptr<Kernel> make_node_kernel(const Graph& graph, NodeId node);

}  // namespace ridge::cpu
