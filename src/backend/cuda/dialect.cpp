// The CUDA C++ dialect.
#include <fmt/core.h>

#include <algorithm>

#include "backend/cuda/chip.h"
#include "backend/cuda/prelude.h"

namespace ridge::cuda {
namespace {

std::string_view matrix_units() {
  static const std::string text = std::string(matrix_prelude()) + std::string(tf32_prelude());
  return text;
}

constexpr std::string_view kClusters = R"(
#ifdef RIDGE_SIMULATOR
RIDGE_INLINE u32 cluster_rank() { return simulator_hooks.cluster_rank(); }
RIDGE_INLINE void cluster_barrier() { simulator_cluster_barrier(); }
template <class T> RIDGE_INLINE void cluster_store(T* at, T x, u32 blocks) {
  for (u32 rank = 0; rank < blocks; ++rank) *(T*)simulator_hooks.cluster_address(at, rank) = x;
}
#else
RIDGE_INLINE u32 cluster_rank() {
  u32 rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
RIDGE_INLINE void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
template <class T> RIDGE_INLINE void cluster_store(T* at, T x, u32 blocks) {
  extern __shared__ __align__(128) unsigned char shared_memory[];
  const u32 begin = (u32)__cvta_generic_to_shared(shared_memory), offset = (u32)__cvta_generic_to_shared(at) - begin;  // addresses hold the block's rank
#pragma unroll
  for (u32 rank = 0; rank < blocks; ++rank) {
    u32 to;  // where the block's memory begins: with the address of each element, the compiler would keep one in a register for each store of a step
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"(begin), "r"(rank));
    to += offset;
    if constexpr (sizeof(T) == 2)
      asm volatile("st.shared::cluster.u16 [%0], %1;" :: "r"(to), "h"(x) : "memory");
    else if constexpr (sizeof(T) == 4)
      asm volatile("st.shared::cluster.u32 [%0], %1;" :: "r"(to), "r"(*(u32*)&x) : "memory");
    else
      asm volatile("st.shared::cluster.u64 [%0], %1;" :: "r"(to), "l"(*(u64*)&x) : "memory");
  }
}
#endif
)";

constexpr std::string_view kNearDivision = R"(
RIDGE_INLINE float near_reciprocal(float x) {
#ifdef RIDGE_SIMULATOR
  return 1.f / x;
#else
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}
RIDGE_INLINE float full_quotient(float a, float b) {
#ifdef RIDGE_SIMULATOR
  return a / b;
#else
  float y;
  asm("div.full.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
#endif
}
)";

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
    {"near_division", kNearDivision},
    {"clusters", kClusters},
    {"cluster_rank", "cluster_rank()"},
    {"cluster_barrier", "cluster_barrier()"},
    {"cluster_store(", "cluster_store("},
    {"matrix_units", matrix_units()},
    {"tf32(", "to_tf32("},
    {"bf16_pair(", "pack_bf16("},
    {"f16_pair(", "pack_f16("},
    {"multiply_tf32(", "mma_tf32("},
    {"multiply_bf16(", "mma_bf16("},
    {"multiply_f16(", "mma_f16("},
};

std::string entry(std::string_view threads, std::string_view name, std::string_view arguments) {
  std::string bounds(threads), cluster;
  if (const size_t last = bounds.rfind(','); std::count(bounds.begin(), bounds.end(), ',') == 2)
    cluster = fmt::format(" __cluster_dims__({}, 1, 1)", bounds.substr(last + 1)), bounds.resize(last);
  return fmt::format("extern \"C\" __global__ void __launch_bounds__({}){} {}({})", bounds, cluster, name, arguments);
}

}  // namespace

const gpu::KernelDialect& dialect() {
  static const gpu::KernelDialect cuda{kWords, entry};
  return cuda;
}

}  // namespace ridge::cuda
