// Shared by the passes of the pipeline: the state that they work on, and their functions.
#pragma once
#include <unordered_map>
#include <vector>

#include "compile/fuse.h"
#include "compile/pipeline.h"
#include "compile/program.h"

namespace ridge {

// The graph and everything that the passes derive from it.
struct Compilation {
  const PipelineOptions& options;
  const Target& target;
  const std::vector<char>& off;         // by pass: whether it is switched off
  std::vector<Type> output_types = {};  // as the caller requested

  Program program = {};              // holds graph, inputs and outputs from the start
  std::vector<NodeId> forward = {};  // roots of the forward part
  bool has_saved_set = false;        // the saved set was chosen, so backward must not be mixed into forward
  FusePlan fused = {};
  std::unordered_map<NodeId, Storage> placed = {};  // values stored inside another value's buffer
  bool fuse_again = false;                          // an output was given a copy: repeat from the pass "fuse"
};

// Where a value that has memory is stored.
Storage storage_of(const Compilation& c, NodeId id);

// Lets a copy write output `output`, after the kernel that produces it.
void write_separately(Compilation& c, size_t output);

void decompose_missing(Compilation& c);
void save_loop_values(Compilation& c);
void hoist_loops(Compilation& c);
void canonicalize_graph(Compilation& c);
void simplify_graph(Compilation& c);
void choose_layout(Compilation& c);
void choose_saved_set(Compilation& c);
void separate_outputs(Compilation& c);
void fuse_groups(Compilation& c);
void group_nodes(Compilation& c);  // one group per node
void order_groups(Compilation& c);
void place_parts(Compilation& c);
void lower_kernels(Compilation& c);
void separate_updates(Compilation& c);
void find_buffers(Compilation& c);
void reuse_in_place(Compilation& c);
void mark_streaming(Compilation& c);
void compile_loops(Compilation& c);
void allow_row_blocks(Compilation& c);
void give_each_own_memory(Compilation& c);
void plan_arena(Program& program, std::span<const int64_t> workspace_bytes);

void verify_graph(const Compilation& c);
void verify_canonical(const Compilation& c);
void verify_outputs(const Compilation& c);
void verify_groups(const Compilation& c);
void verify_order(const Compilation& c);
void verify_kernels(const Compilation& c);
void verify_buffers(const Compilation& c);

}  // namespace ridge
