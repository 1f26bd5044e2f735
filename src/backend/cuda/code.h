// A program prepared for a CUDA device: planned immediately, compiled and loaded before its first run, then recorded as a graph and replayed.
#pragma once
#include <list>
#include <memory>
#include <vector>

#include "backend/backend.h"
#include "backend/cuda/device.h"
#include "backend/cuda/modules.h"
#include "backend/gpu/compiled.h"

namespace ridge {
class KernelLog;
}

namespace ridge::cuda {

class CublasLt;
class Cudnn;

struct CodeOptions {
  bool debug = false;  // no recordings; wait and check after every launch
  int timed = 0;       // the run whose kernels are timed one by one and printed to stderr; 0: none
};

class CudaCode final : public Code {
 public:
  CudaCode(Program program, Device& device, Modules& modules, const CublasLt* lt, const Cudnn* cudnn, const CodeOptions& options);
  ~CudaCode() override;

  const Program& program() const override { return compiled_.program(); }
  int64_t workspace_bytes() const override { return compiled_.workspace_bytes(); }
  int64_t scratch_bytes() const override { return 0; }
  size_t loop_kernels(size_t kernel) const override { return compiled_.loop_kernels(kernel); }
  std::string dump() const override { return compiled_.dump(); }
  int64_t launches() const override { return compiled_.launches(); }
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
  CompiledProgram::Addresses addresses() const;
  void run_directly();
  void run_timed();
  void run_logged(KernelLog& log);
  void run_examined(KernelLog& log);
  std::vector<float> time_kernels();  // of one run, in milliseconds
  void share_times(std::vector<float>& ms) const;
  GraphRun record(const std::function<void(StreamSink&)>& work, bool overlap = false);
  GraphRun record_run();
  KernelText prepared(KernelText text) const;
  bool seen_before();

  Device& device_;
  Modules& modules_;
  const CublasLt* lt_;
  const Cudnn* cudnn_;
  CodeOptions options_;
  CompiledProgram compiled_;
  const bool overlaps_;           // kernels are compiled so that they may start while those in front of them end
  bool overlap_recorded_ = true;  // until the driver refuses
  bool ready_ = false;
  int runs_ = 0;  // counted up to the timed run
  std::vector<std::shared_ptr<LoadedText>> texts_;
  FaultRecord* fault_ = nullptr;
  std::vector<DevicePointer> addresses_;  // for this run: the arena, the inputs, the outputs
  std::list<Recording> recordings_;       // most recently used first
  std::vector<uint64_t> seen_;            // hashes of the address sets that were run without a recording
  size_t next_seen_ = 0;
};

}  // namespace ridge::cuda
