// The CUDA C++ dialect.
#include <fmt/core.h>

#include "backend/cuda/chip.h"
#include "backend/cuda/prelude.h"

namespace ridge::cuda {
namespace {

std::string_view matrix_units() {
  static const std::string text = std::string(matrix_prelude()) + std::string(tf32_prelude());
  return text;
}

const gpu::KernelDialect::Word kWords[] = {
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
    {"matrix_units", matrix_units()},
    {"tf32(", "to_tf32("},
    {"bf16_pair(", "pack_bf16("},
    {"f16_pair(", "pack_f16("},
    {"multiply_tf32(", "mma_tf32("},
    {"multiply_bf16(", "mma_bf16("},
    {"multiply_f16(", "mma_f16("},
};

std::string entry(std::string_view threads, std::string_view name, std::string_view arguments) {
  return fmt::format("extern \"C\" __global__ void __launch_bounds__({}) {}({})", threads, name, arguments);
}

}  // namespace

const gpu::KernelDialect& dialect() {
  static const gpu::KernelDialect cuda{kWords, entry};
  return cuda;
}

}  // namespace ridge::cuda
