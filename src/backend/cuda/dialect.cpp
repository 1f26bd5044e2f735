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
SIMULATOR_UNWATCHED inline void cluster_prepare(u64* barriers, u32) {
  if (threadIdx.x == 0) barriers[0] = barriers[1] = 0;
}
SIMULATOR_UNWATCHED inline void count_sent(u64* barrier, u32 rank, u32 bytes) { *(u64*)simulator_hooks.cluster_address(barrier, rank) += bytes; }
template <class T> RIDGE_INLINE void cluster_send(T* at, T x, u64* barriers, u32 turn, u32 self, u32 blocks) {
  for (u32 rank = 0; rank < blocks; ++rank) {
    if (rank == self) continue;
    count_sent(barriers + turn % 2, rank, sizeof x);
    *(T*)simulator_hooks.cluster_address(at, rank) = x;
  }
}
SIMULATOR_UNWATCHED inline void cluster_meet(u64* barriers, u32 turn, u32 bytes) {
  simulator_cluster_barrier();
  if (threadIdx.x != 0) return;
  if (barriers[turn % 2] != bytes) simulator_hooks.fail("a block of a cluster receives another number of bytes than it waits for");
  barriers[turn % 2] = 0;
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
// Two barriers take turns, each for the warps of this block and the bytes that the others send. Nothing waits for stores to device memory, as a cluster's barrier does.
RIDGE_INLINE void cluster_prepare(u64* barriers, u32 warps) {
  const u32 at = (u32)__cvta_generic_to_shared(barriers);
  if (threadIdx.x == 0)
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\nmbarrier.init.shared::cta.b64 [%2], %1;\nfence.mbarrier_init.release.cluster;"
        :: "r"(at), "r"(warps), "r"(at + 8) : "memory");
}
template <class T> RIDGE_INLINE void cluster_send(T* at, T x, u64* barriers, u32 turn, u32 self, u32 blocks) {
  extern __shared__ __align__(128) unsigned char shared_memory[];
  const u32 begin = (u32)__cvta_generic_to_shared(shared_memory);
  const u32 offset = (u32)__cvta_generic_to_shared(at) - begin, barrier = (u32)__cvta_generic_to_shared(barriers + turn % 2) - begin;
#pragma unroll
  for (u32 i = 1; i < blocks; ++i) {
    u32 to;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"(begin), "r"((self + i) % blocks));
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];"
        :: "r"(to + offset), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w), "r"(to + barrier) : "memory");
  }
}
RIDGE_INLINE void cluster_meet(u64* barriers, u32 turn, u32 bytes) {
  const u32 at = (u32)__cvta_generic_to_shared(barriers + turn % 2);
  __syncwarp();
  if (threadIdx.x == 0)
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(at), "r"(bytes) : "memory");
  else if (threadIdx.x % 32 == 0)
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(at) : "memory");
  asm volatile("{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@done bra.uni over;\nbra.uni again;\nover:\n}"
      :: "r"(at), "r"(turn / 2 % 2) : "memory");
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

constexpr std::string_view kRowCopies = R"(
template <int V, bool kAligned, class S> RIDGE_INLINE void copy_ahead(S* keep, const S* p, bool live) {
  if (!live) return;
#if !defined(RIDGE_SIMULATOR) && __CUDA_ARCH__ >= 800
  if constexpr (kAligned && V * sizeof(S) % 16 == 0) {
    u32 to = (u32)__cvta_generic_to_shared(keep);
#pragma unroll
    for (int k = 0; k < V * (int)sizeof(S) / 16; ++k)
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + 16 * k), "l"((const uint4*)p + k) : "memory");
    return;
  }
#endif
#pragma unroll
  for (int k = 0; k < V; ++k) keep[k] = p[k];
}
RIDGE_INLINE void end_copies() {
#if !defined(RIDGE_SIMULATOR) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int kLeft> RIDGE_INLINE void wait_for_copies() {
#if !defined(RIDGE_SIMULATOR) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
#endif
}
RIDGE_INLINE void wait_for_copies(int left) {
  if (left >= 4) wait_for_copies<4>();
  else if (left >= 2) wait_for_copies<2>();
  else if (left == 1) wait_for_copies<1>();
  else wait_for_copies<0>();
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
    {"row_copies", kRowCopies},
    {"cluster_rank", "cluster_rank()"},
    {"cluster_barrier", "cluster_barrier()"},
    {"cluster_store(", "cluster_store("},
    {"cluster_prepare(", "cluster_prepare("},
    {"cluster_send(", "cluster_send("},
    {"cluster_meet(", "cluster_meet("},
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
