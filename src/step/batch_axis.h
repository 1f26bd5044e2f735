// Whether a batch may be split: every sample must go its own way until the losses are added up.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace ridge {

// Inputs whose first axis counts samples, and the sum and count of losses made from them. Returns the first operation that mixes
// samples, with its shapes and why; empty when there is none.
std::string find_coupling(const Graph& graph, std::span<const NodeId> batch_inputs, std::span<const NodeId> losses);

// The losses of some samples as a graph. Inputs of two traces that are compared have equal ids.
struct BatchTrace {
  const Graph& graph;
  std::span<const NodeId> batch;  // inputs whose first axis counts samples
  NodeId base;                    // input: the number of the first sample
  struct Ratio {
    NodeId sum, count;
  };
  std::vector<Ratio> ratios;  // the losses; then other figures, of which neither number may depend on the batch, or both must add up over it
  int64_t samples;
  std::span<const NodeId> gradients = {};  // compared too: a custom operation's own gradient may depend on the size
};

// Where the samples of a random draw are: `inner` elements of `axis` for each of them.
struct DrawAxis {
  int axis = -1;  // -1: all samples share what is drawn
  int64_t inner = 0;
  bool operator==(const DrawAxis&) const = default;
};

// What two traces of the same losses, for different numbers of samples, tell about splitting a batch: what depends on the number of
// samples otherwise than by having an element for each of them, and how each draw (by its stream) has its samples. The numbers must be
// primes that divide no other size in the graph.
struct BatchAxes {
  std::string coupling;  // why the batch cannot be split; empty: it can
  std::map<uint32_t, DrawAxis> draws;
};
BatchAxes follow_batch(const BatchTrace& a, const BatchTrace& b);

// What in a third trace is not as those two predict for its number of samples; empty: nothing.
std::string find_unpredicted(const BatchTrace& a, const BatchTrace& b, const BatchTrace& c);

}  // namespace ridge
