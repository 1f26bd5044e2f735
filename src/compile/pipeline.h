// Compiles a graph to a program with one ordered list of passes. Nothing else rewrites a graph before it runs.
#pragma once
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "compile/saved_set.h"
#include "graph/graph.h"

namespace ridge {

struct Program;
struct Compilation;

// What the passes need to know about the device.
struct Target {
  std::string name;
  std::function<bool(const Graph&, NodeId)> runs;             // whether there is a kernel for a macro node; empty: there always is
  std::function<bool(const Graph&, NodeId)> channels_last;    // whether a conv is faster with channels last; empty: none is
  std::function<bool(const Graph&, NodeId)> stores_permuted;  // whether a conv is best stored in the axis order of this permutation of it; empty: never
  bool convolutions = false;                                  // the device has kernels for them; otherwise they become products of windows
  bool convolutions_fuse = false;                             // they take an epilogue as products do, and run inside loops over time
  bool convolutions_read_bytes = false;
  int64_t cache_bytes = int64_t(32) << 20;  // stores whose next reader is more than this many bytes away bypass the cache
};

struct PipelineOptions {
  std::string passes;                      // "" for all; "-fuse,-simplify" switches passes off by name; RIDGE_PASSES adds to it
  bool verify = false;                     // verify the result of every pass; always on in debug builds and with RIDGE_VERIFY=1
  std::vector<NodeId> forward;             // roots of the forward part (a loss): the pipeline chooses which of its values are saved for backward
  Recompute recompute = Recompute::free;   // how much may be recomputed instead of saved
  std::vector<std::pair<int, int>> state;  // (input, output): the output overwrites the input's memory
};

struct Pass {
  std::string_view name;
  bool required;                       // cannot be switched off
  void (*run)(Compilation&);           // null: the backend runs it by calling plan()
  void (*instead)(Compilation&);       // what runs when the pass is switched off; null: nothing
  void (*verify)(const Compilation&);  // throws ErrorCode::internal when the result is not legal; null: the pass verifies itself
};
std::span<const Pass> pipeline();
std::string disabled_passes(std::string_view passes);  // all that `passes` and RIDGE_PASSES switch off: "-simplify,-fuse"

// Compiles everything that `outputs` need; the graph is not modified. `inputs` must be input nodes and include every one that `outputs`
// depend on. RIDGE_DUMP=pass[,pass] writes the state after these passes to stderr.
Program compile_graph(const Graph& graph, std::span<const NodeId> inputs, std::span<const NodeId> outputs, const PipelineOptions& options = {},
                      const Target& target = {});

// The pass "plan". A backend runs it once it knows how much workspace each kernel needs; workspaces are values that live for one step.
void plan(Program& program, std::span<const int64_t> workspace_bytes);

}  // namespace ridge
