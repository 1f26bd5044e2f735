#include "tile_harness.h"

namespace ridge::cuda::tile_test {

using test::CudaDevice;

Outcome run(std::span<const TileGroup> groups, std::vector<Memory>& memory, int shift) {
  auto kernel = make_tile_kernel(groups, CudaDevice::the().chip());
  return run(*kernel, memory, shift);
}

Outcome run(Kernel& kernel, std::vector<Memory>& memory, int shift) {
  CudaDevice& device = CudaDevice::the();
  std::vector<DeviceMemory> held;
  std::vector<DevicePointer> bases;
  std::vector<Place> places;
  auto hold = [&](const void* bytes, int64_t size, int64_t offset) {
    held.push_back(device.memory(bytes, size));
    bases.push_back(held.back().get());
    return Place{int32_t(bases.size()) - 1, offset};
  };
  std::vector<std::vector<std::byte>> shifted;
  for (Memory& m : memory) {
    const size_t by = size_t(shift * size_of(m.dtype));
    std::vector<std::byte> bytes(m.bytes.size() + by, std::byte(0xA5));
    std::copy(m.bytes.begin(), m.bytes.end(), bytes.begin() + long(by));
    places.push_back(hold(bytes.data(), int64_t(bytes.size()), int64_t(Memory::kMargin + by)));
  }
  const std::vector<std::byte> rubbish(size_t(kernel.workspace_bytes()), std::byte(0xFF));
  const Place workspace = hold(rubbish.data(), int64_t(rubbish.size()), 0);
  const FaultRecord none;
  const Place fault = hold(&none, sizeof none, 0);
  device.ask(kernel.texts());
  kernel.load(device);
  kernel.bind(places, workspace, fault);
  device.enqueue(kernel, bases);
  device.wait();
  for (size_t i = 0; i < memory.size(); ++i) {
    const size_t by = size_t(shift * size_of(memory[i].dtype));
    const std::vector<std::byte> bytes = device.read(held[i], int64_t(memory[i].bytes.size() + by));
    std::copy(bytes.begin() + long(by), bytes.end(), memory[i].bytes.begin());
  }
  Outcome outcome;
  outcome.launches = kernel.launches();
  const std::vector<std::byte> bytes = device.read(held.back(), sizeof none);
  std::memcpy(&outcome.fault, bytes.data(), sizeof none);
  return outcome;
}

void ask(std::span<const TileGroup> groups) {
  for (const TileGroup& group : groups) CudaDevice::the().ask(make_tile_kernel({&group, 1}, CudaDevice::the().chip())->texts());
}

void check(const TileGroup& group, const std::vector<Memory>& memory, double tolerance, int shift) {
  std::vector<Memory> want = memory, got = memory;
  evaluate(group, want);
  run(group, got, shift);
  compare(group, got, want, tolerance);
}

}  // namespace ridge::cuda::tile_test
