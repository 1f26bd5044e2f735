// The position of an operand's element as affine functions of loop indices, and how movement ops change them. This is why reshape, permute,
// slice, flip, expand, windows, pad and concat need no kernel.
#pragma once
#include <array>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "compile/tile_group.h"
#include "graph/graph.h"

namespace ridge {

// offset + sum over loop axes of index * stride
struct Affine {
  int64_t offset = 0;
  Shape strides;
  bool operator==(const Affine&) const = default;
};

// One affine function per axis of a node.
using IndexMap = std::vector<Affine>;

// The loops. `full` is each axis's stride in the row-major order of the whole domain as the graph sees it; `kept` is the same for the
// domain after the reduction (0 on reduced axes). Nodes of either size derive their indices from them.
struct Domain {
  Shape sizes, full, kept;
  std::vector<int> origin;  // the original axis that each axis was split from
  Shape low, high;          // the part of each axis that is accessed (inside borders); [0, size) by default
  static Domain of(const Shape& shape);
  int rank() const { return sizes.rank(); }
};

// Thrown during lowering: an axis must be split (and lowering restarts), or lowering is impossible for the given reason.
struct SplitAxis {
  int axis;
  int64_t inner;  // size of the inner part
};
struct Refusal {
  std::string reason;
};

void split_axis(Domain& domain, const SplitAxis& at);

// The digits of a linear index in a row-major shape, valid for all indices inside the domain's borders. Throws SplitAxis or Refusal.
IndexMap split_linear(const Domain& domain, const Affine& linear, const Shape& shape);

// The index map of the operand of a movement op other than pad and concat.
IndexMap through(const Graph& graph, NodeId movement, const IndexMap& map, const Domain& domain);

// The condition low <= index < high for one affine index: nullopt when it always holds, otherwise a bound on one loop axis. Throws Refusal
// when it is not a condition on a single axis.
std::optional<TileAccess::Bound> bound_of(const Domain& domain, const Affine& index, int64_t low, int64_t high);

// Where a value that has memory is stored: in its owner's buffer (its own, or that of a concat it is part of).
struct Storage {
  NodeId owner = kNone;
  int64_t offset = 0;  // in elements
  Shape strides;
};
// Returns owner kNone for a movement node without memory, which callers then look through.
using StorageFn = std::function<Storage(NodeId)>;

// A node as a strided view of the value that it is a rearrangement of.
struct View {
  struct Loop {
    int64_t size, stride;
  };
  NodeId source = kNone;  // the node that was computed or bound
  NodeId base = kNone;    // the owner of its memory
  int64_t offset = 0;
  std::vector<std::vector<Loop>> axes;  // per axis of the node, slowest first; several loops if one stride is not enough
};
std::optional<View> resolve_view(const Graph& graph, NodeId node, const StorageFn& storage);

// The loops of two operands over one axis, split where either is split. nullopt when their splits do not nest.
std::optional<std::vector<std::array<int64_t, 3>>> common_loops(const std::vector<View::Loop>& a, const std::vector<View::Loop>& b);

}  // namespace ridge
