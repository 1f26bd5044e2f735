// A compiled graph: planned, bound to memory, and run repeatedly.
#pragma once
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backend/program_memory.h"
#include "compile/pipeline.h"
#include "graph/graph.h"

namespace ridge {

class Arena;
class Backend;

struct CompileOptions : PipelineOptions {
  CompileOptions(Backend& device) : backend(&device) {}

  Backend* backend;              // never null; must outlive the executable
  std::shared_ptr<Arena> arena;  // null: allocates its own; programs that never overlap may share one
};

struct KernelReport {
  std::string name;                                     // "matmul+3", "map[5]", "row[9]", "attention", "scan[64x2]" (steps, kernels per step)
  double flops = 0, bytes = 0;                          // as executed
  double algorithmic_flops = 0, unavoidable_bytes = 0;  // the basis for efficiency figures: see backend/kernel_work.h
};

struct Report {
  std::vector<KernelReport> kernels;
  std::vector<LiveValue> peak;        // values in the arena at peak memory use, largest first
  std::vector<std::string> refusals;  // fusions that were tried and refused, with the reason
  std::vector<std::string> scans;     // what was hoisted out of each loop over time
  int64_t arena_bytes = 0;            // activations and temporaries
  int64_t max_live_bytes = 0;
  int64_t workspace_bytes = 0, scratch_bytes = 0;  // the kernels' packing buffers; per-thread scratch, summed over all threads
  int64_t input_bytes = 0, output_bytes = 0;
  int64_t planned_bytes = 0;  // the part of all the above that this executable owns
  int64_t saved_bytes = 0;    // saved by forward for backward
  int64_t planning_work = 0;  // nodes and groups examined while deciding what runs together: grows with the program
  double compile_ms = 0;
};

class Executable {
 public:
  // `inputs` must be input nodes and include every one that `outputs` depend on.
  Executable(const Graph& graph, std::vector<NodeId> inputs, std::vector<NodeId> outputs, const CompileOptions& options);
  ~Executable();
  Executable(Executable&&) noexcept;

  // Takes one pointer per input and per output, contiguous, in the order of the constructor. Memory is mapped by the first run. If a kernel
  // finds an index out of range, an Error is thrown after the run.
  void run(std::span<const void* const> inputs, std::span<void* const> outputs);

  void share(std::shared_ptr<Arena> arena);  // call before the first run

  // Preparation that the first run would otherwise do. compile_ahead() starts it in the background if the device supports that; when
  // prepare() returns, kernels are compiled, candidates measured and the memory mapped.
  void compile_ahead();
  void prepare();

  const Report& report() const;
  std::string dump() const;  // kernels, operands, offsets
  int64_t launches() const;  // of a run on the device
  const std::vector<Type>& input_types() const;
  const std::vector<Type>& output_types() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ridge
