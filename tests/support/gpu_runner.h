// Compiles graphs for a CUDA device and runs them with guarded memory: on the machine's GPU if it has one, else on the simulated one.
#pragma once
#include <optional>

#include "backend/cuda/backend.h"
#include "ops/harness.h"
#include "runtime/arena.h"
#include "support/cuda_device.h"

namespace ridge::test {

class Gpu {
 public:
  static Gpu& the() {  // never destroyed, because the driver may be unloaded first
    static Gpu* gpu = new Gpu;
    return *gpu;
  }

  // A device with these properties, which is simulated as long as this object exists.
  explicit Gpu(const SimulatorOptions& options) : simulator_(std::in_place, options) { start(); }

  cuda::CudaBackend& backend() { return *backend_; }

  // Like run_compiled: runs twice, from differently filled memory, with guards around every buffer.
  std::vector<Bytes> run(const Graph& graph, const std::vector<NodeId>& inputs, const std::vector<NodeId>& outputs, const Values& values,
                         const std::string& passes) {
    CompileOptions options(*backend_);
    options.passes = passes, options.arena = arena_;
    Executable exe(graph, inputs, outputs, options);
    exe.compile_ahead();
    std::vector<int64_t> starts;
    int64_t total = kGuard;
    auto place = [&](NodeId id) { starts.push_back(total), total += (graph.type(id).bytes() + 255) / 256 * 256 + kGuard; };
    for (NodeId i : inputs) place(i);
    for (NodeId o : outputs) place(o);
    reserve(total);
    std::vector<const void*> in;
    std::vector<void*> out;
    for (size_t i = 0; i < inputs.size(); ++i) in.push_back(memory_ + starts[i]);
    for (size_t i = 0; i < outputs.size(); ++i) out.push_back(memory_ + starts[inputs.size() + i]);
    std::vector<Bytes> first;
    for (int turn = 0; turn < 2; ++turn) {
      Bytes before(static_cast<size_t>(total)), after(before.size());
      for (size_t k = 0; k < before.size(); ++k) before[k] = std::byte(uint8_t(k * 37 + size_t(turn) * 101 + 7));
      for (size_t i = 0; i < inputs.size(); ++i) reference::to_bytes(values.at(inputs[i]), before.data() + starts[i]);
      backend_->upload(memory_, before.data(), total);
      exe.run(in, out);
      backend_->download(after.data(), memory_, total);
      std::vector<Bytes> got;
      for (size_t o = 0; o < outputs.size(); ++o) {
        std::byte* from = after.data() + starts[inputs.size() + o];
        const size_t bytes = size_t(graph.type(outputs[o]).bytes());
        got.emplace_back(from, from + bytes);
        std::copy_n(before.data() + (from - after.data()), bytes, from);
      }
      EXPECT_TRUE(after == before) << "wrote outside the outputs";
      if (turn == 0)
        first = std::move(got);
      else
        EXPECT_EQ(first, got) << "a second run gives other bits";
    }
    return first;
  }

 private:
  static constexpr int64_t kGuard = 256;

  Gpu() {
    if (!tests_real_gpu()) simulator_.emplace();
    start();
    simulator_.reset();  // its libraries stay loaded once opened
  }
  void start() {
    if (simulator_) {
      static const TempFolder cache;  // timings from a simulated GPU must not reach a real cache
      ::setenv("RIDGE_CACHE", cache.path().c_str(), 0);
    }
    backend_ = cuda::make_cuda_backend();
    arena_ = std::make_shared<Arena>(*backend_);
  }
  void reserve(int64_t bytes) {
    if (bytes <= held_) return;
    if (memory_) backend_->release(memory_, held_);
    held_ = std::max<int64_t>(2 * bytes, 1 << 20), memory_ = backend_->allocate(held_);
  }

  std::optional<Simulator> simulator_;
  std::unique_ptr<cuda::CudaBackend> backend_;
  std::shared_ptr<Arena> arena_;
  std::byte* memory_ = nullptr;
  int64_t held_ = 0;
};

// While a test of this class runs, run_compiled() runs on the GPU.
template <class Base>
class OnGpu : public Base {
 protected:
  void SetUp() override {
    if (!tests_real_gpu() && !simulator_works()) GTEST_SKIP() << "no compiler for the simulated GPU";
    other_device() = [](const Graph& graph, const std::vector<NodeId>& inputs, const std::vector<NodeId>& outputs, const Values& values,
                        const std::string& passes) { return Gpu::the().run(graph, inputs, outputs, values, passes); };
  }
  void TearDown() override { other_device() = nullptr; }
};

}  // namespace ridge::test
