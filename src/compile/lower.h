// Lowers a set of graph nodes to one loop nest. This alone decides whether a fusion is legal: it is legal if it can be lowered.
#pragma once
#include <string>
#include <unordered_set>
#include <vector>

#include "compile/index_map.h"
#include "compile/tile_group.h"
#include "graph/graph.h"

namespace ridge {

struct GroupSpec {
  std::vector<NodeId> members;                           // computed here, operands first; everything else is loaded
  std::vector<NodeId> stores;                            // members (or views of anything) that are needed outside
  NodeId matmul = kNone;                                 // members read the sums of this matmul
  const std::unordered_set<NodeId>* repeated = nullptr;  // recomputed wherever they are read
};

struct LoweredGroup {
  TileGroup group;
  std::vector<NodeId> operands;  // owner of each memory operand
  std::vector<char> written;     // per operand
  std::string refusal;           // why it cannot be one loop nest; empty if it can
};

LoweredGroup lower_group(const Graph& graph, const GroupSpec& spec, const StorageFn& storage);

}  // namespace ridge
