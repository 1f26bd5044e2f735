// A graph as an ordered list of kernels, with a memory location for every value. Plain data: the pipeline produces it, and a backend turns
// it into code.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "compile/fuse.h"
#include "compile/scan_frame.h"
#include "compile/tile_group.h"

namespace ridge {

// The loops of a contraction over views of its operands; strides in elements.
struct ContractionLoops {
  struct Loop {
    int64_t size, a, b, c;
  };
  std::vector<Loop> batch, m, n, k;
};

struct ProgramOperand {
  NodeId owner = kNone;  // the value whose buffer it is; kNone: not needed
  int64_t offset = 0;    // in bytes, for views that kernels take as a pointer
  bool written = false;
};

struct LoopProgram;

struct ProgramKernel {
  Group group;
  std::vector<TileGroup> tiles;          // tile: one per spec; matmul: the epilogue, if any
  ContractionLoops loops;                // matmul
  std::vector<View> views;               // other nodes: views of the operands, then the stored results
  std::vector<ProgramOperand> operands;  // in the order in which the backend's kernel takes them
  std::shared_ptr<LoopProgram> loop;     // scan: the program of one step
  std::string name, choice_key;          // choice_key: names it for measured choices; set by backends that have any
};

// Where a buffer is stored.
struct ProgramBuffer {
  NodeId owner = kNone;
  enum class Place { arena, input, output } place = Place::arena;
  int index = 0;  // which input or output
  int64_t bytes = 0;
  int first = 0, last = 0;
  int64_t offset = 0;  // in the arena
  int alias = -1;      // the buffer whose memory it takes over
};

struct Program {
  uint64_t number = 0;  // of the compilation, so that a program is not mistaken for an earlier one at the same address
  Graph graph;
  std::vector<NodeId> inputs, outputs;
  std::vector<int> state_input;  // by output: the input whose memory it overwrites; -1: none
  std::vector<ProgramKernel> kernels;
  std::vector<ProgramBuffer> buffers;
  std::unordered_map<NodeId, int> buffer_index;  // by owner

  std::vector<std::string> refusals;    // fusions that were tried and refused, with the reason
  std::vector<std::string> decomposed;  // nodes for which the device has no kernel
  std::vector<std::string> scans;       // what was hoisted out of each loop over time
  int64_t planning_work = 0;            // nodes and groups examined while deciding what runs together
  int64_t saved_bytes = 0;              // saved by forward for backward

  // The memory plan: made last, when the backend knows the workspaces of its kernels.
  bool shares_memory = true;
  bool row_blocks = false;                 // a loop's body may run in blocks of rows, for all steps
  std::vector<int64_t> workspace_offsets;  // by kernel
  int64_t arena_bytes = 0, max_live_bytes = 0;

  const ProgramBuffer& buffer_of(NodeId owner) const { return buffers[size_t(buffer_index.at(owner))]; }
};

// A loop over time: where each step reads and writes its values, and the program of one step.
struct LoopProgram {
  ScanFrame frame;
  Program body;
};

std::string to_string(const Program& program);  // kernels, operands and their locations, refusals

}  // namespace ridge
