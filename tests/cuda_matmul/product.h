// Matrix products on a device for tests: the simulated GPU, with or without its cuBLASLt.
#pragma once
#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/cuda/matmul.h"
#include "drivers/cublas_lt.h"
#include "support/cuda_device.h"
#include "support/matmul_case.h"

namespace ridge::cuda {
inline namespace matmul_test {  // lets all tests be linked into one program

using namespace test::matmul_case;

// The device shared by all tests, with or without cuBLASLt, and kernel choices that live as long as it does.
class Products final : public Loader {
 public:
  explicit Products(bool library) : written_for(test::CudaDevice::the().chip()), device_(test::CudaDevice::the()) {
    written_for.cublas_lt = library;
    if (!library) return;
    std::optional<test::Simulator> simulator;
    if (!test::tests_real_gpu()) simulator.emplace();
    lt_ = std::make_unique<CublasLt>(library_search(device_.driver().version()));
  }
  const Driver& driver() const override { return device_.driver(); }
  const Chip& chip() const override { return written_for; }
  const CublasLt* cublas_lt() const override { return lt_.get(); }
  StreamHandle stream() const override { return device_.stream(); }
  FunctionHandle function(const KernelText& text) override {
    asked.push_back(text);
    return device_.function(text);
  }
  std::string choice(const std::string& key) override { return choices[key]; }
  void keep_choice(const std::string& key, const std::string& value) override { choices[key] = value, ++kept; }
  void record_choice(const std::string& key, const std::string& value) override { choices[key] = value; }

  Chip written_for;
  std::map<std::string, std::string> choices;
  int kept = 0;
  std::vector<KernelText> asked;  // texts that kernels requested

 private:
  test::CudaDevice& device_;
  std::unique_ptr<CublasLt> lt_;
};

// Operands on the device, and their bytes after a kernel ran.
class Memory {
 public:
  Place add(const std::vector<std::byte>& bytes, int64_t offset = 0) {
    memory_.push_back(test::CudaDevice::the().memory(bytes.data(), int64_t(bytes.size())));
    sizes_.push_back(int64_t(bytes.size()));
    bases_.push_back(memory_.back().get());
    return {int32_t(bases_.size()) - 1, offset};
  }
  std::vector<std::byte> read(Place p) const { return test::CudaDevice::the().read(memory_[size_t(p.base)], sizes_[size_t(p.base)]); }
  Bases bases() const { return bases_; }

 private:
  std::vector<DeviceMemory> memory_;
  std::vector<int64_t> sizes_;
  std::vector<DevicePointer> bases_;
};

inline ContractionLoops loops_of(const cpu::MatmulDesc& d) {
  ContractionLoops loops;
  auto copy = [](const std::vector<cpu::MatmulLoop>& from, std::vector<ContractionLoops::Loop>& to) {
    for (const cpu::MatmulLoop& l : from) to.push_back({l.size, l.a, l.b, l.c});
  };
  copy(d.batch, loops.batch), copy(d.m, loops.m), copy(d.n, loops.n), copy(d.k, loops.k);
  return loops;
}

// Loads, binds and runs a kernel once. It may request only texts it named beforehand, when all of them are compiled in parallel.
inline void run(Kernel& kernel, Products& loader, Memory& memory, std::span<const Place> operands) {
  loader.asked.clear();
  kernel.load(loader);
  const std::vector<KernelText> named = kernel.texts();
  for (const KernelText& text : loader.asked) EXPECT_NE(std::find(named.begin(), named.end(), text), named.end()) << text.entry << " is compiled late";
  const std::vector<std::byte> junk(size_t(kernel.workspace_bytes()), std::byte{0xFF});
  const Place workspace = memory.add(junk), fault = memory.add(std::vector<std::byte>(sizeof(FaultRecord)));
  kernel.bind(operands, workspace, fault);
  StreamSink sink(loader.driver(), loader.stream());
  kernel.enqueue(memory.bases(), sink);
  loader.driver().stream_wait(loader.stream());
}

// C's bytes after the case's product; `note` receives how it was computed.
inline std::vector<std::byte> product(const MatmulCase& c, Products& loader, std::string* note = nullptr) {
  Memory memory;
  auto add = [&](const Operand& o) { return memory.add(o.bytes, o.origin * size_of(o.type)); };
  const Place operands[] = {add(c.a), add(c.b), add(c.c)};
  MatmulDesc desc;
  desc.loops = loops_of(c.desc), desc.a = c.desc.a_type, desc.b = c.desc.b_type, desc.result = c.desc.c_type;
  for (const Place& p : operands) desc.alignments.push_back(p.offset);
  const std::unique_ptr<Kernel> kernel = make_matmul(desc, loader.chip());
  run(*kernel, loader, memory, operands);
  if (note) *note = kernel->note();
  return memory.read(operands[2]);
}

}  // namespace matmul_test
}  // namespace ridge::cuda
