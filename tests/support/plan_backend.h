// A CUDA backend without a device: it plans programs for a chip and collects their kernel texts, but cannot run anything.
#pragma once
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/cuda/make.h"
#include "base/error.h"

namespace ridge::test {

class PlanBackend final : public Backend {
 public:
  explicit PlanBackend(const cuda::Chip& chip) : chip_(chip) {}

  DeviceInfo info() const override { return {"cuda", chip_.target()}; }
  std::byte* allocate(int64_t bytes) override {
    if (!has_memory) refuse();
    return static_cast<std::byte*>(std::aligned_alloc(64, size_t(bytes + 63) / 64 * 64));
  }
  void release(std::byte* p, int64_t) override { std::free(p); }
  void upload(void*, const void*, int64_t) override {
    if (!has_memory) refuse();
  }
  void download(void*, const void*, int64_t) override { refuse(); }
  void copy(void*, const void*, int64_t) override { refuse(); }
  void clear(void*, int64_t) override { refuse(); }
  bool convolutions() const override { return true; }
  bool convolutions_read_bytes() const override { return true; }
  bool runs(const Graph& graph, NodeId node) const override { return cuda::has_kernel(graph, node, chip_); }
  bool channels_last(const Graph& graph, NodeId conv) const override { return cuda::conv_channels_last(graph, conv, chip_); }
  bool stores_permuted(const Graph& graph, NodeId permuted) const override { return cuda::conv_stores_permuted(graph, permuted, chip_); }
  void use_f32_products(Precision format) override { chip_.f32_products = format; }
  Precision f32_products() const override { return chip_.f32_products; }
  std::unique_ptr<Code> compile(Program program) override {
    auto code = std::make_unique<Plan>(std::move(program), chip_);
    if (loader) code->compiled.load(*loader);
    for (cuda::KernelText& text : code->compiled.texts())
      if (seen_.insert(text.entry + "\n" + text.body).second) texts_.push_back(std::move(text));
    scans_.insert(scans_.end(), code->program().scans.begin(), code->program().scans.end());
    launches_.push_back(code->compiled.launches());
    return code;
  }

  bool has_memory = false;        // which no program uses
  gpu::Loader* loader = nullptr;  // if set, programs are loaded with it when they are compiled

  const std::vector<cuda::KernelText>& texts() const { return texts_; }  // without duplicates
  const std::vector<std::string>& scans() const { return scans_; }       // notes on loops over time
  const std::vector<int64_t>& launches() const { return launches_; }     // of each program, in the order in which they were compiled

 private:
  struct Plan final : Code {
    Plan(Program program, const cuda::Chip& chip) : compiled(std::move(program), cuda::CudaMaker(chip)) {}
    const Program& program() const override { return compiled.program(); }
    int64_t workspace_bytes() const override { return compiled.workspace_bytes(); }
    int64_t scratch_bytes() const override { return 0; }
    size_t loop_kernels(size_t kernel) const override { return compiled.loop_kernels(kernel); }
    std::string dump() const override { return compiled.dump(); }
    int64_t launches() const override { return compiled.launches(); }
    void run(std::byte*, std::span<const void* const>, std::span<void* const>) override { refuse(); }
    cuda::CompiledProgram compiled;
  };
  [[noreturn]] static void refuse() { fail(ErrorCode::internal, "[plan] there is no device"); }

  cuda::Chip chip_;
  std::set<std::string> seen_;
  std::vector<cuda::KernelText> texts_;
  std::vector<std::string> scans_;
  std::vector<int64_t> launches_;
};

}  // namespace ridge::test
