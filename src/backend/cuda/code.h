// A program made ready for a CUDA device: planned at once, compiled and loaded before its first run, recorded as a graph and replayed.
#pragma once
#include <list>
#include <memory>
#include <vector>

#include "backend/backend.h"
#include "backend/cuda/compiled.h"
#include "backend/cuda/device.h"
#include "backend/cuda/modules.h"

namespace ridge::cuda {

class CublasLt;

class CudaCode final : public Code {
 public:
  CudaCode(Program program, Device& device, Modules& modules, const CublasLt* lt, bool debug);
  ~CudaCode() override;

  const Program& program() const override { return compiled_.program(); }
  int64_t workspace_bytes() const override { return compiled_.workspace_bytes(); }
  int64_t scratch_bytes() const override { return 0; }
  size_t loop_kernels(size_t kernel) const override { return compiled_.loop_kernels(kernel); }
  std::string dump() const override { return compiled_.dump(); }
  void compile_ahead() override;
  void prepare() override;
  void run(std::byte* arena, std::span<const void* const> inputs, std::span<void* const> outputs) override;

  const CompiledProgram& compiled() const { return compiled_; }

 private:
  class OwnLoader;
  using GraphRun = Owned<GraphRunHandle, DriverCall<GraphRunHandle>>;
  struct Recording {
    std::vector<DevicePointer> addresses;
    GraphRun graph;
  };
  void enqueue(bool check);
  void run_directly();
  GraphRun record();
  bool seen_before();

  Device& device_;
  Modules& modules_;
  const CublasLt* lt_;
  bool debug_, ready_ = false;
  CompiledProgram compiled_;
  std::vector<std::shared_ptr<LoadedText>> texts_;
  FaultRecord* fault_ = nullptr;
  std::vector<DevicePointer> addresses_;  // of this run: the arena, the inputs, the outputs
  std::list<Recording> recordings_;       // the one used last first
  std::vector<uint64_t> seen_;            // address sets that were run without a recording, by hash
  size_t next_seen_ = 0;
};

}  // namespace ridge::cuda
