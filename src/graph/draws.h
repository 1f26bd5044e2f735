// Nodes that draw random numbers, and how draws inside loops are counted (base/rng.h says what a draw is a function of).
#pragma once
#include <functional>
#include <memory>
#include <optional>

#include "graph/graph.h"
#include "graph/scan.h"

namespace ridge {

inline constexpr uint32_t kSecondStream = 0x80000000u;  // of calls that draw twice; calls are numbered far below

struct Draw {
  uint32_t stream;
  Shape shape;  // of what is drawn
  size_t base;  // which operand is the base; the step and the seed are the two before it
};
std::optional<Draw> draw_of(const Graph& graph, NodeId id);  // none: the node draws nothing

// How many elements further the next index of each axis is. A random op's attributes: ints = stream, shape; reals = none, or {axis, size}:
// it draws a part of a tensor that is as long as `size` along `axis`, and counts elements of the whole.
Shape draw_strides(const Node& random);

// The node if it draws, and every draw inside it if it is a loop, with the graph that it is a node of.
void for_each_draw_in(const Graph& graph, NodeId id, const std::function<void(const Graph&, NodeId, const Draw&)>& visit);

// Inside loops the time index takes the upper 32 bits of the block number: it counts in units of this many elements. Nested loops count
// as one loop over all their steps, the inner one fastest.
inline constexpr int64_t kElementsOfStep = int64_t(1) << 34;
inline constexpr int64_t kMostCountedSteps = int64_t(1) << 29;  // their product with the above stays an i64

// The body with its time index added to the base of every draw in it. `index` of the result is the sequence that brings it, the last one
// where it is new. Draws whose seed, step or base already changes from step to step are left as they are. Returns `body` itself when
// nothing changes.
std::shared_ptr<const ScanBody> count_by_step(std::shared_ptr<const ScanBody> body, int64_t steps);

}  // namespace ridge
