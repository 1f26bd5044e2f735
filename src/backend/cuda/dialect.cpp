// The CUDA C++ dialect.
#include <fmt/core.h>

#include "backend/cuda/chip.h"

namespace ridge::cuda {
namespace {

constexpr gpu::KernelDialect::Word kWords[] = {
    {"block", "blockIdx.x"},
    {"thread", "threadIdx.x"},
    {"barrier", "__syncthreads()"},
    {"warp_barrier", "__syncwarp()"},
    {"shared", "__shared__"},
    {"aligned(", "__align__("},
    {"dynamic_shared", "extern __shared__ __align__(128) unsigned char shared_memory[]"},
    {"global", ""},
    {"in_shared", ""},
    {"constant", ""},
    {"unroll", "#pragma unroll"},
    {"shuffle(", "__shfl_sync(0xffffffffu, "},
    {"ballot(", "__ballot_sync(0xffffffffu, "},
    {"count_bits(", "__popc("},
    {"high_product(", "__umulhi("},
    {"atomic_add(", "atomicAdd("},
    {"atomic_max(", "atomicMax("},
};

std::string entry(std::string_view threads, std::string_view name, std::string_view arguments) {
  return fmt::format("extern \"C\" __global__ void __launch_bounds__({}) {}({})", threads, name, arguments);
}

}  // namespace

const gpu::KernelDialect& dialect() {
  static constexpr gpu::KernelDialect cuda{kWords, entry};
  return cuda;
}

}  // namespace ridge::cuda
