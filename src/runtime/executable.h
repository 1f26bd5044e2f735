// A compiled graph: planned, bound to memory, and replayed.
#pragma once
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "compile/pipeline.h"
#include "graph/graph.h"

namespace ridge {

class Arena;
class Backend;

struct CompileOptions : PipelineOptions {
  CompileOptions(Backend& device) : backend(&device) {}

  Backend* backend;              // never null; must live as long as the executable
  std::shared_ptr<Arena> arena;  // none: one of its own; programs that never overlap may share
};

struct KernelReport {
  std::string name;                                     // "matmul+3", "map[5]", "row[9]", "attention", "scan[64x2]" (steps, kernels of a step)
  double flops = 0, bytes = 0;                          // as it runs
  double algorithmic_flops = 0, unavoidable_bytes = 0;  // what it is judged by: see compile/kernel_work.h
};

struct LiveValue {
  std::string name;  // the kernel that makes it and its type: "matmul+3 f32[12, 64, 512]"
  int64_t bytes = 0;
};

struct Report {
  std::vector<KernelReport> kernels;
  std::vector<LiveValue> peak;        // what lies in the arena when most does, largest first
  std::vector<std::string> refusals;  // fusions that were tried and refused, with the reason
  std::vector<std::string> scans;     // what was moved out of each loop over time
  int64_t arena_bytes = 0;            // activations and temporaries
  int64_t max_live_bytes = 0;
  int64_t workspace_bytes = 0, scratch_bytes = 0;  // kernels' packing buffers, per-thread scratch of all threads
  int64_t input_bytes = 0, output_bytes = 0;
  int64_t planned_bytes = 0;  // all of the above that this executable holds itself
  int64_t saved_bytes = 0;    // what forward keeps for backward
  int64_t looks = 0;          // at nodes and groups, to decide what runs together: grows as the program does
  double compile_ms = 0;
};

class Executable {
 public:
  // `inputs` must be input nodes and name every one that `outputs` depend on.
  Executable(const Graph& graph, std::vector<NodeId> inputs, std::vector<NodeId> outputs, CompileOptions options);
  ~Executable();
  Executable(Executable&&) noexcept;

  // Memory is mapped at the first run; until then an executable is a plan.
  // One pointer per input and per output, contiguous, in the order of the constructor. A bad index met by a
  // kernel is an Error afterwards.
  void run(std::span<const void* const> inputs, std::span<void* const> outputs);

  void share(std::shared_ptr<Arena> arena);  // before the first run

  // What the first run would do before it runs. compile_ahead() begins in the background where the device allows it; prepare() has
  // compiled, measured among candidates and mapped the memory.
  void compile_ahead();
  void prepare();

  const Report& report() const;
  std::string dump() const;  // kernels, operands, offsets
  const std::vector<Type>& input_types() const;
  const std::vector<Type>& output_types() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ridge
