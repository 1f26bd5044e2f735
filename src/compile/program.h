// A graph as kernels in order, with every value's place in memory. Plain data: the pipeline makes it, a backend turns it into something that runs.
#pragma once
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "compile/fuse.h"
#include "compile/scan_frame.h"
#include "compile/tile_group.h"

namespace ridge {

// A contraction's loops over views of its operands, strides in elements.
struct ContractionLoops {
  struct Loop {
    int64_t size, a, b, c;
  };
  std::vector<Loop> batch, m, n, k;
};

struct ProgramOperand {
  NodeId owner = kNone;  // whose buffer; kNone: not wanted
  int64_t offset = 0;    // in bytes (views that kernels take as a pointer)
  bool written = false;
};

struct LoopProgram;

struct ProgramKernel {
  Group group;
  std::vector<TileGroup> tiles;          // tile: one per spec; matmul: the epilogue, if any
  ContractionLoops loops;                // matmul
  std::vector<View> views;               // other nodes: their operands as views; then results as storage
  std::vector<ProgramOperand> operands;  // in the order that the backend's kernel takes them
  std::shared_ptr<LoopProgram> loop;     // scan: what one step runs
  std::string name;
};

// Where a buffer lives.
struct ProgramBuffer {
  NodeId owner = kNone;
  enum class Place { arena, input, output } place = Place::arena;
  int index = 0;  // which input or output
  int64_t bytes = 0;
  int first = 0, last = 0;
  int64_t offset = 0;  // in the arena
  int alias = -1;      // buffer whose memory it takes over
};

struct Program {
  Graph graph;
  std::vector<NodeId> inputs, outputs;
  std::vector<int> state_input;  // by output: the input whose memory it overwrites; -1: none
  std::vector<ProgramKernel> kernels;
  std::vector<ProgramBuffer> buffers;
  std::unordered_map<NodeId, int> buffer_index;  // by owner

  std::vector<std::string> refusals;    // fusions that were tried and refused, with the reason
  std::vector<std::string> decomposed;  // nodes that the device has no kernel for
  std::vector<std::string> scans;       // what was moved out of each loop over time
  int64_t looks = 0;                    // at nodes and groups, to decide what runs together
  int64_t saved_bytes = 0;              // what forward keeps for backward

  // The memory plan: made last, when the backend knows its kernels' workspaces.
  bool shares_memory = true;
  std::vector<int64_t> workspace_offsets;  // by kernel
  int64_t arena_bytes = 0, max_live_bytes = 0;

  const ProgramBuffer& buffer_of(NodeId owner) const { return buffers[size_t(buffer_index.at(owner))]; }
};

// A loop over time: where its steps find and leave their values, and what one step runs.
struct LoopProgram {
  ScanFrame frame;
  Program body;
};

std::string to_string(const Program& program);  // kernels, operands and their places, refusals

}  // namespace ridge
