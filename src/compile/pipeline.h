// From a graph to a program: one list of passes, in order. Nothing else rewrites a graph that is about to run.
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
  std::function<bool(const Graph&, NodeId)> runs;             // whether there is a kernel for a macro node; none: there always is
  std::function<bool(const Graph&, NodeId)> stores_permuted;  // whether a conv is best stored in the order of this permutation of it; none: never
  bool convolutions = false;                                  // stay nodes; otherwise they become products of windows
  int64_t cache_bytes = int64_t(32) << 20;                    // stores whose next reader is farther away than this bypass the cache
};

struct PipelineOptions {
  std::string passes;                      // "" for all; "-fuse,-simplify" switches passes off by name; RIDGE_PASSES adds to it
  bool verify = false;                     // check what every pass leaves behind; always done in debug builds and with RIDGE_VERIFY=1
  std::vector<NodeId> forward;             // roots of the forward part (a loss): what backward reads of it is chosen anew
  Recompute recompute = Recompute::free;   // how far that choice may go
  std::vector<std::pair<int, int>> state;  // (input, output): the output overwrites the input's memory
};

struct Pass {
  std::string_view name;
  bool required;                       // cannot be switched off
  void (*run)(Compilation&);           // null: the backend runs it, by plan()
  void (*instead)(Compilation&);       // where it is switched off; null: nothing
  void (*verify)(const Compilation&);  // ErrorCode::internal when the result is not legal; null: the pass verifies itself
};
std::span<const Pass> pipeline();

// Compiles what `outputs` need; the graph stays as it is. `inputs` must be input nodes and name every one that `outputs` depend on.
// RIDGE_DUMP=pass[,pass] writes the state after these passes to stderr.
Program compile_graph(const Graph& graph, std::span<const NodeId> inputs, std::span<const NodeId> outputs, const PipelineOptions& options = {},
                      const Target& target = {});

// The pass "plan", which a backend runs once when it knows how much memory each kernel needs for itself: workspaces are values that live for one step.
void plan(Program& program, std::span<const int64_t> workspace_bytes);

}  // namespace ridge
