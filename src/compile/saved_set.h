// Chooses what forward saves for backward by a minimum cut: the fewest bytes from which everything that backward reads can be recomputed.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"

namespace ridge {

// How much may be recomputed. Each level saves more memory and costs more time than the previous one.
enum class Recompute {
  free,         // only what fuses into the kernel that reads it
  elementwise,  // also what must be stored a second time for a kernel that reads it from memory (norms, activations)
  attention,    // also attention, and the products of a loop's steps (scan_saved)
  segments,     // also the steps of a loop, from the carry at the start of every stretch (segment_scans, before gradients are taken)
  layers,       // everything between the values that all later ones depend on (a transformer's residual stream)
};
std::string_view name(Recompute level);
std::optional<Recompute> parse_recompute(std::string_view name);

struct SavedSet {
  std::vector<NodeId> outputs;  // the graph's outputs after the rewrite
  std::vector<NodeId> saved;
  int64_t bytes = 0;
};

// `forward` are the roots of the forward part (the loss); everything else that `outputs` need is backward. `conv_fuses`: convolutions end in
// epilogues.
SavedSet choose_saved(Graph& graph, std::span<const NodeId> outputs, std::span<const NodeId> forward, Recompute level, bool conv_fuses = false);

}  // namespace ridge
