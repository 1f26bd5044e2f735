// A graph as kernels in order, with every value's place in memory: what a backend turns into something that runs.
#pragma once
#include <array>
#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "compile/fuse.h"
#include "compile/plan_memory.h"
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

struct ProgramKernel {
  Group group;
  std::vector<TileGroup> tiles;          // tile: one per spec; matmul: the epilogue, if any
  ContractionLoops loops;                // matmul
  std::vector<View> views;               // other nodes: their operands as views; then results as storage
  std::vector<ProgramOperand> operands;  // in the order that the backend's kernel takes them
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

struct ProgramOptions {
  bool simplify = true, fuse = true, plan = true, place = true;
  bool convolutions = false;  // stay nodes: the backend has kernels for them
  // Whether a convolution is best stored in the order of an output that is a permutation of it; none: never.
  std::function<bool(const Graph&, NodeId)> stores_permuted = {};
  std::vector<std::pair<int, int>> state;
  std::vector<NodeId> forward;              // roots of the forward part
  int64_t cache_bytes = int64_t(32) << 20;  // stores whose next reader is farther away than this bypass the cache
};

class Program {
 public:
  // Takes the graph over; nodes are added to it.
  Program(Graph graph, std::vector<NodeId> inputs, std::vector<NodeId> outputs, const ProgramOptions& options);

  const Graph& graph() const { return graph_; }
  const std::vector<NodeId>& inputs() const { return inputs_; }
  const std::vector<NodeId>& outputs() const { return outputs_; }
  int state_input(int output) const;  // the input whose memory this output overwrites; -1: none
  const std::vector<ProgramKernel>& kernels() const { return kernels_; }
  const std::vector<std::string>& refusals() const { return refusals_; }
  int64_t looks() const { return looks_; }  // at nodes and groups, to decide what runs together
  const std::vector<ProgramBuffer>& buffers() const { return buffers_; }
  const ProgramBuffer& buffer_of(NodeId owner) const { return buffers_[size_t(buffer_index_.at(owner))]; }

  // Kernels' workspaces are values too, live for one step. Call once, before offsets are read.
  void plan(std::span<const int64_t> workspace_bytes);
  int64_t arena_bytes() const { return memory_.arena_bytes; }
  int64_t max_live_bytes() const { return memory_.max_live_bytes; }
  int64_t workspace_offset(size_t kernel) const { return workspace_offsets_[kernel]; }
  std::string dump() const;

 private:
  void build();
  std::vector<size_t> unsafe_updates() const;
  bool updates_safely(size_t kernel, const std::vector<size_t>& read, size_t written, std::vector<size_t>& begins) const;
  void write_apart(size_t output);  // by a copy, after the kernel that makes it
  void place_concats();
  void build_kernels();
  void build_node(ProgramKernel& kernel);
  void build_matmul(ProgramKernel& kernel);
  void find_live_ranges();
  void alias_in_place();
  void mark_streaming();
  Storage storage(NodeId id) const;

  Graph graph_;
  std::vector<NodeId> inputs_, outputs_, forward_;
  ProgramOptions options_;
  FusePlan fused_;
  std::vector<int> state_of_;                              // by output: the input whose memory it overwrites, or -1
  std::unordered_map<NodeId, Storage> placed_;             // values that lie inside another's buffer
  std::unordered_map<NodeId, std::vector<NodeId>> parts_;  // of nodes with several results: those that are read
  std::vector<ProgramKernel> kernels_;
  std::vector<std::string> refusals_;
  int64_t looks_ = 0;
  std::vector<ProgramBuffer> buffers_;
  std::unordered_map<NodeId, int> buffer_index_;
  std::vector<int64_t> workspace_offsets_;
  MemoryPlan memory_;
};

// Loops of two operands over one axis, cut where either is cut. Empty optional when their cuts do not nest.
std::optional<std::vector<std::array<int64_t, 3>>> common_loops(const std::vector<View::Loop>& a, const std::vector<View::Loop>& b);

}  // namespace ridge
