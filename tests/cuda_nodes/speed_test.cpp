// Speed of single-node kernels: printed if TEST_SPEED=1, never checked.
#include <fmt/core.h>

#include "backend/cuda/make.h"
#include "graph/builder.h"
#include "support/cuda_device.h"
#include "support/samples.h"

namespace ridge::cuda {
namespace {

class GpuNodeSpeed : public test::CudaTest {};

struct Timing {
  double ms, bytes;
  int launches;
};

// The best of several runs, each from freshly written memory. Index inputs are distributed like words of a text: a few frequent, most rare.
Timing time_of(const Graph& g, NodeId node) {
  test::CudaDevice& device = test::CudaDevice::the();
  const Driver& driver = device.driver();
  auto kernel = make_node_kernel(g, node, device.chip());
  std::vector<Type> types;
  for (NodeId id : g[node].in) types.push_back(g.type(id));
  const size_t operands = types.size();
  for (const Type& t : g[node].types) types.push_back(t);
  test::Random random(1);
  std::vector<DeviceMemory> memory;
  std::vector<Place> places;
  double bytes = 0;
  for (size_t i = 0; i < types.size(); ++i) {
    std::vector<std::byte> host(static_cast<size_t>(types[i].bytes()));
    if (i < operands && types[i].dtype == DType::i64) {
      auto* index = reinterpret_cast<int64_t*>(host.data());
      const double size = double(g[node].type().shape[0]);
      for (int64_t k = 0; k < types[i].shape.numel(); ++k) index[k] = int64_t(std::pow(size, random.uniform(0, 1))) - 1;
    } else if (i < operands && types[i].dtype == DType::f32) {
      auto* values = reinterpret_cast<float*>(host.data());
      for (int64_t k = 0; k < types[i].shape.numel(); ++k) values[k] = float(random.uniform(-1, 1));
    }
    memory.push_back(device.memory(host.data(), int64_t(host.size())));
    places.push_back({int32_t(i), 0});
    bytes += double(types[i].bytes());
  }
  memory.push_back(cuda::allocate(driver, std::max<int64_t>(1, kernel->workspace_bytes())));
  const FaultRecord none;
  memory.push_back(device.memory(&none, sizeof none));
  std::vector<DevicePointer> bases;
  for (const DeviceMemory& m : memory) bases.push_back(m.get());
  device.ask(kernel->texts());
  kernel->load(device);
  const int32_t space = int32_t(types.size());
  kernel->bind(places, {space, 0}, {space + 1, 0});
  const Event begin = make_event(driver), end = make_event(driver);
  Timing timing{1e9, bytes, kernel->launches()};
  for (int turn = 0; turn < 8; ++turn) {
    driver.event_record(begin.get(), device.stream());
    device.enqueue(*kernel, bases);
    driver.event_record(end.get(), device.stream());
    device.wait();
    float ms = 0;
    driver.event_milliseconds(&ms, begin.get(), end.get());
    if (turn > 1) timing.ms = std::min(timing.ms, double(ms));
  }
  return timing;
}

TEST_F(GpuNodeSpeed, IsPrintedForLargeNodes) {
  if (!test::is_set("TEST_SPEED")) return;
  Graph g;
  Builder b(g);
  auto input = [&](DType t, Shape s) { return g.input({t, s}, "x"); };
  auto i64 = [&](Shape s) { return input(DType::i64, s); };
  const DType f32 = DType::f32, bf16 = DType::bf16;
  const std::pair<const char*, NodeId> nodes[] = {
      {"take_grad f32 65536x768 -> 50304", g.add(Op::take_grad, {input(f32, {65536, 768}), i64({65536})}, {{0, 50304}, {}, nullptr})},
      {"take_grad bf16 65536x768 -> 50304", g.add(Op::take_grad, {input(bf16, {65536, 768}), i64({65536})}, {{0, 50304}, {}, nullptr})},
      {"take_grad f32 16384x384 -> 65", g.add(Op::take_grad, {input(f32, {16384, 384}), i64({16384})}, {{0, 65}, {}, nullptr})},
      {"scatter_add f32 1M -> 50000", b.scatter_add(input(f32, {50000}), i64({1000000}), input(f32, {1000000}), 0)},
      {"scatter f32 1M -> 50000", b.scatter(input(f32, {50000}), i64({1000000}), input(f32, {1000000}), 0)},
      {"cumsum f32 64M", b.cumsum(input(f32, {1 << 26}), 0)},
      {"cumsum f32 4096x16384", b.cumsum(input(f32, {4096, 16384}), 1)},
      {"sort f32 16M", b.sort(input(f32, {1 << 24}), 0).first},
      {"sort f32 64x50257", b.sort(input(f32, {64, 50257}), 1).first},
      {"sort f32 65536x256", b.sort(input(f32, {65536, 256}), 1).first},
      {"fold f32 64x64x31x64x3", g.add(Op::fold, {input(f32, {64, 64, 31, 64, 3})}, {{2, 3, 2, 1, 63}, {}, nullptr})},
      {"pad f32 64x64x64x64", g.add(Op::pad, {input(f32, {64, 64, 64, 64})}, {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1}, {0}, nullptr})},
  };
  for (const auto& [what, id] : nodes) {
    const Timing t = time_of(g, g[id].op == Op::get ? g[id].in[0] : id);
    fmt::print("{:36} {:2} launches {:9.3f} ms {:8.0f} GB/s (operands and results once)\n", what, t.launches, t.ms, t.bytes / t.ms * 1e-6);
  }
}

}  // namespace
}  // namespace ridge::cuda
