// What forward keeps for backward, by minimum cut: the fewest bytes from which everything that backward reads can be had again.
#pragma once
#include <string>
#include <vector>

#include "graph/graph.h"

namespace ridge {

// How far recomputation may go. Each level saves memory and costs more time than the one before.
enum class Recompute {
  free,         // only what fuses into the kernel that reads it again
  elementwise,  // also what must be stored again for a kernel that reads it from memory (norms, activations)
  attention,    // also attention
  segments,     // also a loop's steps, from the carry of every stretch (segment_scans, before gradients are taken)
  layers,       // everything between the values that all later ones hang on (a transformer's residual stream)
};
std::string_view name(Recompute level);

struct SavedSet {
  std::vector<NodeId> outputs;  // the graph's outputs after the rewrite
  std::vector<NodeId> saved;
  int64_t bytes = 0;
};

// `forward` are the roots of the forward part (the loss); whatever `outputs` need beyond its ancestors is backward.
SavedSet choose_saved(Graph& graph, std::span<const NodeId> outputs, std::span<const NodeId> forward, Recompute level);

}  // namespace ridge
