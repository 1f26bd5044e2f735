// Nodes that draw random numbers, and how draws inside loops are numbered (base/rng.h defines what a draw depends on).
#pragma once
#include <functional>
#include <memory>
#include <optional>

#include "graph/graph.h"
#include "graph/scan.h"

namespace ridge {

inline constexpr uint32_t kSecondStream = 0x80000000u;  // for the second draw of a call that draws twice; call numbers stay well below it

struct Draw {
  uint32_t stream;
  Shape shape;  // of the drawn tensor
  size_t base;  // operand index of the base; the seed and the step are the two operands before it
};
std::optional<Draw> draw_of(const Graph& graph, NodeId id);  // nullopt: the node draws nothing

// The distance in elements between neighbouring indices of each axis. A random op's attributes: ints = stream, shape; reals = empty, or
// {axis, size} when it draws part of a tensor whose length along `axis` is `size`; element numbers are then those of the whole tensor.
Shape draw_strides(const Node& random);

// Visits the node if it draws, and every draw inside it if it is a loop, together with the graph that contains the draw.
void for_each_draw_in(const Graph& graph, NodeId id, const std::function<void(const Graph&, NodeId, const Draw&)>& visit);

// Inside loops the time index occupies the upper 32 bits of the block number, so one step advances by this many elements. Nested loops
// count as a single loop over all their steps, with the inner loop varying fastest.
inline constexpr int64_t kElementsOfStep = int64_t(1) << 34;
inline constexpr int64_t kMaxCountedSteps = int64_t(1) << 29;  // the product with kElementsOfStep still fits an i64

// The body with its time index added to the base of every draw. `index` of the result is the sequence that supplies the time index; a new
// one is added as the last sequence. Draws whose seed, step or base already varies by step are unchanged. Returns `body` itself when
// nothing changes.
std::shared_ptr<const ScanBody> count_by_step(std::shared_ptr<const ScanBody> body, int64_t steps);

}  // namespace ridge
