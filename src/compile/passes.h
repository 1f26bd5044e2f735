// What the passes of the pipeline share: the state that they work on, and their functions.
#pragma once
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "compile/fuse.h"
#include "compile/pipeline.h"
#include "compile/program.h"

namespace ridge {

// The graph and everything that the passes make of it.
struct Compilation {
  const PipelineOptions& options;
  const Target& target;
  const std::vector<char>& off;         // by pass
  std::vector<Type> output_types = {};  // as asked for

  Program program = {};              // graph, inputs and outputs from the start
  std::vector<NodeId> forward = {};  // roots of the forward part
  bool has_saved_set = false;        // it was chosen: backward must not be mixed into forward
  FusePlan fused = {};
  std::unordered_map<NodeId, Storage> placed = {};  // values that lie inside another's buffer
  bool fuse_again = false;                          // an output was given a copy: go back to the pass "fuse"
};

// Where a value that has memory lies.
Storage storage_of(const Compilation& c, NodeId id);

// Output `output` is written by a copy, after the kernel that makes it.
void write_apart(Compilation& c, size_t output);

void decompose_missing(Compilation& c);
void hoist_loops(Compilation& c);
void canonicalize_graph(Compilation& c);
void simplify_graph(Compilation& c);
void choose_saved_set(Compilation& c);
void separate_outputs(Compilation& c);
void fuse_groups(Compilation& c);
void group_nodes(Compilation& c);  // each by itself
void order_groups(Compilation& c);
void place_parts(Compilation& c);
void lower_kernels(Compilation& c);
void separate_updates(Compilation& c);
void find_buffers(Compilation& c);
void reuse_in_place(Compilation& c);
void mark_streaming(Compilation& c);
void compile_loops(Compilation& c);
void keep_memory_apart(Compilation& c);
void plan_arena(Program& program, std::span<const int64_t> workspace_bytes);

void verify_graph(const Compilation& c);
void verify_canonical(const Compilation& c);
void verify_outputs(const Compilation& c);
void verify_groups(const Compilation& c);
void verify_order(const Compilation& c);
void verify_kernels(const Compilation& c);
void verify_buffers(const Compilation& c);

}  // namespace ridge
