// Lets a loop over time put out what its gradient reads, so that backward need not run the body again.
#pragma once
#include <string>
#include <vector>

#include "graph/graph.h"

namespace ridge {

struct SavedLoops {
  std::vector<NodeId> roots;
  std::vector<std::string> notes;  // one line per loop: how many values, and their bytes
};

// The gradient of a loop is a loop that starts each step from the carries of the first one, and computes what it needs of the body from
// them. A minimum cut over bytes finds the values behind products and large sums that it reads; the first loop puts these out. With `save`
// false nothing changes, and the notes say what is computed again.
SavedLoops save_in_loops(Graph& graph, std::span<const NodeId> roots, bool save);

}  // namespace ridge
