// A program as a GPU's kernels bound to places, loops over time around bodies made the same way. Needs no device until it is loaded.
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/gpu/kernel.h"
#include "compile/program.h"

namespace ridge::gpu {

// What a backend has kernels for besides those that GPUs share. Needed while a program is compiled, not afterwards.
class KernelMaker {
 public:
  virtual ~KernelMaker() = default;
  virtual const GpuChip& chip() const = 0;
  virtual std::string target() const = 0;  // of its compiler: "sm_90a"
  virtual std::unique_ptr<Kernel> matmul(const Program& program, const ProgramKernel& kernel) const = 0;
  virtual std::unique_ptr<Kernel> macro(const Program& program, const ProgramKernel& kernel) const = 0;  // attention, conv; null: there is none
};

class CompiledProgram {
 public:
  CompiledProgram(Program program, const KernelMaker& maker);
  ~CompiledProgram();

  const Program& program() const { return program_; }
  int64_t arena_bytes() const { return program_.arena_bytes; }
  int64_t workspace_bytes() const { return workspace_bytes_; }  // the largest of any kernel
  size_t loop_kernels(size_t kernel) const;                     // kernels of one step of a loop over time; 0 for any other kernel
  int64_t launches() const;                                     // of one run, copies included
  std::string dump() const;                                     // the program, its kernels' choices, then its loops' bodies
  std::vector<KernelText> texts() const;                        // each once

  void load(Loader& loader);

  // Where a run's memory lies.
  struct Addresses {
    Address arena = 0, fault = 0;
    Address empty = 0;  // some memory, for what is bound to nothing
    std::span<const Address> inputs, outputs;
  };
  // One run. `after` is told each kernel whose launches are made, loops as one. A failure names the kernel.
  using After = std::function<void(size_t kernel)>;
  void enqueue(LaunchSink& sink, const Addresses& addresses, const After& after = {});
  std::string describe(size_t kernel) const;

 private:
  struct Scan;
  void set_bases(const Addresses& addresses);
  void put(size_t kernel, LaunchSink& sink, const Addresses& addresses);
  Place fault_place() const { return {1 + int32_t(program_.inputs.size() + program_.outputs.size()), 0}; }

  std::vector<ProgramOperand> operands_of(size_t kernel) const;  // those of the kernel whose work it takes over as well

  Program program_;
  std::vector<int> takes_over_;                   // by kernel: another one whose work it does
  std::vector<std::unique_ptr<Kernel>> kernels_;  // null for scans
  std::vector<std::unique_ptr<Scan>> scans_;      // null for others
  std::vector<Address> bases_;                    // the arena, the inputs, the outputs, the fault record
  int64_t workspace_bytes_ = 0;
};

}  // namespace ridge::gpu
