#include "backend/cuda/chip.h"

#include <fmt/core.h>

#include "drivers/cuda_driver.h"

namespace ridge::cuda {
namespace {

// CUdevice_attribute
constexpr int kSharedPerBlock = 8, kMultiprocessors = 16, kL2Bytes = 38, kThreadsPerMultiprocessor = 39, kMajor = 75, kMinor = 76,
              kSharedPerMultiprocessor = 81, kSharedPerBlockAtMost = 97;

}  // namespace

Chip::Chip() {
  GpuChip::dialect = &cuda::dialect();
  matrix_units = true, blocks_of_cluster = 8;
  name = "NVIDIA H200", multiprocessors = 132, threads_per_multiprocessor = 2048;
  shared_bytes = 232448, shared_bytes_per_multiprocessor = 233472, l2_bytes = int64_t(60) << 20, memory_bytes = int64_t(139) << 30;
}

std::string Chip::target() const { return fmt::format("sm_{}{}{}", major, minor, wgmma() ? "a" : ""); }

Chip chip_of(const Driver& driver, int device) {
  Chip chip = chip_for(driver.attribute(kMajor, device), driver.attribute(kMinor, device));
  char text[256] = {};
  driver.device_name(text, int(sizeof text) - 1, device);
  chip.name = text;
  // Keeps a plausible default for what an old driver does not report.
  auto take = [&](auto& field, int which) {
    if (const int value = driver.attribute(which, device)) field = value;
  };
  take(chip.multiprocessors, kMultiprocessors);
  take(chip.threads_per_multiprocessor, kThreadsPerMultiprocessor);
  take(chip.shared_bytes, kSharedPerBlock), take(chip.shared_bytes, kSharedPerBlockAtMost);
  take(chip.shared_bytes_per_multiprocessor, kSharedPerMultiprocessor);
  take(chip.l2_bytes, kL2Bytes);
  if (size_t free = 0, total = 0; driver.memory_info.quietly(&free, &total) == 0) chip.memory_bytes = int64_t(total);
  return chip;
}

Chip chip_for(int major, int minor) {
  Chip chip;
  if (major == 9 && minor == 0) return chip;
  chip.name = fmt::format("compute capability {}.{}", major, minor);
  chip.major = major, chip.minor = minor;
  chip.matrix_units = chip.bf16(), chip.blocks_of_cluster = chip.at_least(9, 0) ? 8 : 1;
  chip.memory_bytes = int64_t(24) << 30;
  auto sizes = [&](int multiprocessors, int threads, int64_t shared, int64_t l2) {
    chip.multiprocessors = multiprocessors, chip.threads_per_multiprocessor = threads;
    chip.shared_bytes = shared, chip.shared_bytes_per_multiprocessor = shared + (major == 7 ? 0 : 1024), chip.l2_bytes = l2 << 20;
  };
  if (major == 7)
    sizes(40, 1024, 65536, 4);
  else if (major == 8 && minor == 0)
    sizes(108, 2048, 166912, 40);
  else if (major == 8)
    sizes(84, 1536, 101376, minor == 9 ? 48 : 6);
  else if (major == 12)
    sizes(170, 1536, 101376, 96);
  else
    sizes(148, 2048, 232448, 126);
  return chip;
}

}  // namespace ridge::cuda
