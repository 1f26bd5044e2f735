// Where an operand's element lies, as affine functions of loop indices, and how movement ops change them. This is how
// reshape, permute, slice, flip, expand, windows, pad and concat cost no kernel of their own.
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

// The loops. `full` is each axis's stride in the row-major order of the whole domain as the graph sees it, `kept` the same
// for what is left after the reduction (0 on reduced axes): nodes of either size find their indices by them.
struct Domain {
  Shape sizes, full, kept;
  std::vector<int> origin;  // the axis that an axis was split from
  Shape low, high;          // the part of each axis that is looked at (inside borders); [0, size) by default
  static Domain of(const Shape& shape);
  int rank() const { return sizes.rank(); }
};

// Thrown inside lowering: an axis must be split (and lowering starts again), or it cannot be done for the reason given.
struct SplitAxis {
  int axis;
  int64_t inner;  // size of the inner part
};
struct Refusal {
  std::string reason;
};

void split_axis(Domain& domain, const SplitAxis& at);

// Digits of a linear index in a row-major shape, right for all indices inside the domain's borders. Throws SplitAxis or Refusal.
IndexMap split_linear(const Domain& domain, const Affine& linear, const Shape& shape);

// The operand's index map for a movement op other than pad and concat.
IndexMap through(const Graph& graph, NodeId movement, const IndexMap& map, const Domain& domain);

// Where low <= index < high holds for one affine index: nothing to check, or a bound on one loop axis. Throws Refusal when it
// is not a condition on a single axis.
std::optional<TileAccess::Bound> bound_of(const Domain& domain, const Affine& index, int64_t low, int64_t high);

// Where a value that has memory lies: inside its owner's buffer (itself, or a concat it is a part of).
struct Storage {
  NodeId owner = kNone;
  int64_t offset = 0;  // in elements
  Shape strides;
};
// A movement node that has no memory of its own gives owner kNone: it is looked through.
using StorageFn = std::function<Storage(NodeId)>;

// A node as a strided view of what it is made from by movement alone.
struct View {
  struct Loop {
    int64_t size, stride;
  };
  NodeId source = kNone;  // the node that was computed or bound
  NodeId base = kNone;    // the owner of its memory
  int64_t offset = 0;
  std::vector<std::vector<Loop>> axes;  // per axis of the node, slowest first; several where one stride does not do
};
std::optional<View> resolve_view(const Graph& graph, NodeId node, const StorageFn& storage);

// Loops of two operands over one axis, cut where either is cut. Empty optional when their cuts do not nest.
std::optional<std::vector<std::array<int64_t, 3>>> common_loops(const std::vector<View::Loop>& a, const std::vector<View::Loop>& b);

}  // namespace ridge
