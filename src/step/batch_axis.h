// Decides whether a batch may be split: samples must stay independent until the losses are summed.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace ridge {

// Returns the first operation that mixes samples, with its shapes and the reason; empty if there is none. `batch_inputs`: inputs whose first
// axis counts samples; `losses`: the sum and count of the losses computed from them.
std::string find_coupling(const Graph& graph, std::span<const NodeId> batch_inputs, std::span<const NodeId> losses);

// The graph of the losses for a given number of samples. Traces to be compared have equal input ids.
struct BatchTrace {
  const Graph& graph;
  std::span<const NodeId> batch;  // inputs whose first axis counts samples
  NodeId base;                    // input: the index of the first sample
  struct Ratio {
    NodeId sum, count;
  };
  std::vector<Ratio> ratios;  // the losses, then other metrics: either both numbers are independent of the batch, or both are sums over it
  int64_t samples;
  std::span<const NodeId> gradients = {};  // also compared: a custom operation's gradient may depend on the size
};

// The sample axis of a random draw: each sample has `inner` elements along `axis`.
struct DrawAxis {
  int axis = -1;  // -1: all samples share the draw
  int64_t inner = 0;
  bool operator==(const DrawAxis&) const = default;
};

// Result of comparing two traces of the same losses with different numbers of samples: anything that depends on the number of
// samples other than by having one element per sample, and the sample axis of each draw (by stream). The numbers of samples must be
// primes that divide no other size in the graph.
struct BatchAxes {
  std::string coupling;  // why the batch cannot be split; empty: it can
  std::map<uint32_t, DrawAxis> draws;
};
BatchAxes follow_batch(const BatchTrace& a, const BatchTrace& b);

// Describes where a third trace differs from what `a` and `b` predict for its number of samples; empty: nowhere.
std::string find_unpredicted(const BatchTrace& a, const BatchTrace& b, const BatchTrace& c);

}  // namespace ridge
