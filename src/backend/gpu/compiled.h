// A program compiled for a GPU: kernels bound to memory, and loops over time whose bodies are compiled the same way. Needs no device until it is loaded.
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/gpu/kernel.h"
#include "compile/program.h"

namespace ridge::gpu {

// The kernels that a backend provides in addition to those all GPUs share. Needed only while a program is compiled.
class KernelMaker {
 public:
  virtual ~KernelMaker() = default;
  virtual const GpuChip& chip() const = 0;
  virtual std::string target() const = 0;  // the compiler's target: "sm_90a"
  virtual std::unique_ptr<Kernel> matmul(const Program& program, const ProgramKernel& kernel) const = 0;
  virtual std::unique_ptr<Kernel> macro(const Program& program, const ProgramKernel& kernel) const = 0;  // attention, conv; null: no such kernel
  // A kernel that also does the work of kernels before it, whose results only it reads; null: there is none. Operands: those of the first, …, those of the
  // last.
  virtual std::unique_ptr<Kernel> joined(const Program& program, std::span<const ProgramKernel* const> first, const ProgramKernel& last) const {
    return (void)program, (void)first, (void)last, nullptr;
  }
  // A macro's kernel that also does the work of a column kernel, which sums what it stores; null: no such kernel. Operands: the macro's, then the other's.
  virtual std::unique_ptr<Kernel> macro_with_sums(const Program& program, const ProgramKernel& kernel, const ProgramKernel& column) const {
    return (void)program, (void)kernel, (void)column, nullptr;
  }
  // Products with equal keys may share launches; empty: the product has its own. Operands: those of the first product, then those of the second, …
  virtual std::string matmul_key(const Program& program, const ProgramKernel& kernel) const { return (void)program, (void)kernel, std::string(); }
  virtual std::unique_ptr<Kernel> matmuls(const Program& program, std::span<const ProgramKernel* const> kernels) const {
    return (void)program, (void)kernels, nullptr;
  }
};

class CompiledProgram {
 public:
  CompiledProgram(Program program, const KernelMaker& maker);
  ~CompiledProgram();

  const Program& program() const { return program_; }
  int64_t arena_bytes() const { return program_.arena_bytes; }
  int64_t workspace_bytes() const { return workspace_bytes_; }  // the largest that any kernel needs
  size_t loop_kernels(size_t kernel) const;                     // kernels in one step of a loop over time; 0 for any other kernel
  int64_t launches() const;                                     // in one run, copies included
  std::string dump() const;                                     // the program, its kernels' choices, then the bodies of its loops
  std::vector<KernelText> texts() const;                        // without duplicates

  void load(Loader& loader);

  // The memory that a run uses.
  struct Addresses {
    Address arena = 0, fault = 0;
    Address empty = 0;  // any valid memory, for operands that are not bound
    std::span<const Address> inputs, outputs;
  };
  // Enqueues one run. Calls `after` with each kernel once its launches are enqueued; a loop counts as one kernel. A failure names the kernel.
  using After = std::function<void(size_t kernel)>;
  std::span<const size_t> done_by(size_t kernel) const {
    return shows_[kernel];
  }  // the kernels whose results are in memory after this one: none, one or several
  void enqueue(LaunchSink& sink, const Addresses& addresses, const After& after = {});
  std::string describe(size_t kernel) const;

 private:
  struct Scan;
  void set_bases(const Addresses& addresses);
  void put(size_t kernel, LaunchSink& sink, const Addresses& addresses);
  Place fault_place() const { return {1 + int32_t(program_.inputs.size() + program_.outputs.size()), 0}; }

  std::vector<ProgramOperand> operands_of(size_t kernel) const;  // of all kernels whose work it does

  Program program_;
  std::vector<std::vector<size_t>> does_;         // by kernel: those whose work it does, usually itself alone; its operands are theirs, one after another
  std::vector<std::vector<size_t>> shows_;        // the same, without those whose results only the kernel itself sees
  std::vector<std::unique_ptr<Kernel>> kernels_;  // null for scans
  std::vector<std::unique_ptr<Scan>> scans_;      // null for other kernels
  std::vector<Address> bases_;                    // the arena, the inputs, the outputs, the fault record
  int64_t workspace_bytes_ = 0;
};

}  // namespace ridge::gpu
