// The matrix units' instructions and the copies that feed them. Where texts run without a GPU, plain C++ bodies replace the instructions that every chip has;
// Hopper's warpgroup instructions have none.
#include <string>

#include "backend/cuda/prelude.h"

namespace ridge::cuda {
namespace {

// Fragments of mma.m16n8k16: with g = lane / 4 and t = lane % 4, a thread holds these pairs of A: (rows g, g + 8; columns 2t, 2t + 8), of B: (rows 2t, 2t + 8;
// column g), and of the sums: (rows g, g + 8; columns 2t, 2t + 1).
constexpr const char* kWarp = R"(
typedef unsigned short half_bits;
struct alignas(64) TensorMap {
  unsigned long long words[16];
};

__device__ __forceinline__ unsigned lane_id() { return threadIdx.x & 31u; }

// Two numbers rounded to nearest even, the first in the low half.
__device__ __forceinline__ unsigned pack_bf16(float low, float high) { return f32_to_bf16x2(low, high); }
__device__ __forceinline__ unsigned pack_f16(float low, float high) { return f32_to_f16x2(low, high); }
__device__ __forceinline__ float unpack_bf16(half_bits x) { return bf16_to_f32(x); }
__device__ __forceinline__ float unpack_f16(half_bits x) { return f16_to_f32(x); }

// 2^x, a few units in the last place; numbers below the smallest normal one become 0.
__device__ __forceinline__ float exp2_fast(float x) {
#ifdef RIDGE_SIMULATOR
  return exp2f(x);
#else
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
#endif
}

#ifdef RIDGE_SIMULATOR
__device__ inline void multiply_warp(float (&d)[4], const unsigned* a, const unsigned* b, int depth, bool bf16) {
  struct Parts {
    unsigned a[4], b[2];
  } mine = {}, all[32];
  for (int i = 0; i < depth / 4; ++i) mine.a[i] = a[i];
  for (int i = 0; i < depth / 8; ++i) mine.b[i] = b[i];
  simulator_exchange(&mine, sizeof mine, all);
  int group = (int)lane_id() / 4, thread = (int)lane_id() % 4;
  for (int i = 0; i < 4; ++i) {
    int row = group + (i / 2) * 8, column = 2 * thread + i % 2;
    float sum = d[i];
    for (int k = 0; k < depth; ++k) {
      unsigned x = all[row % 8 * 4 + k % 8 / 2].a[row / 8 + 2 * (k / 8)], y = all[column * 4 + k % 8 / 2].b[k / 8];
      half_bits u = (half_bits)(x >> (k % 2 * 16)), v = (half_bits)(y >> (k % 2 * 16));
      sum += bf16 ? unpack_bf16(u) * unpack_bf16(v) : unpack_f16(u) * unpack_f16(v);
    }
    d[i] = sum;
  }
}
__device__ inline void gather_matrices(unsigned* r, const void* row, int count, bool transposed) {
  const void* rows[32];
  simulator_exchange(&row, sizeof row, rows);
  int group = (int)lane_id() / 4, thread = (int)lane_id() % 4;
  for (int i = 0; i < count; ++i) {
    half_bits pair[2];
    for (int j = 0; j < 2; ++j)
      pair[j] = transposed ? ((const half_bits*)rows[8 * i + 2 * thread + j])[group] : ((const half_bits*)rows[8 * i + group])[2 * thread + j];
    r[i] = (unsigned)pair[0] | (unsigned)pair[1] << 16;
  }
  __syncwarp();
}
#endif

// d += a * b, 16 x 8 x 16, all lanes of a warp together. Before compute capability 8.0 there is no bf16 one.
__device__ __forceinline__ void mma_bf16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
#ifdef RIDGE_SIMULATOR
  unsigned b[2] = {b0, b1};
  multiply_warp(d, a, b, 16, true);
#elif __CUDA_ARCH__ >= 800
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
  __trap();
#endif
}
__device__ __forceinline__ void mma_f16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
#ifdef RIDGE_SIMULATOR
  unsigned b[2] = {b0, b1};
  multiply_warp(d, a, b, 16, false);
#elif __CUDA_ARCH__ >= 800
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(b0));
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[2]), "r"(a[3]), "r"(b1));
#endif
}

__device__ __forceinline__ unsigned shared_address(const void* p) {
#ifdef RIDGE_SIMULATOR
  return (unsigned)(unsigned long long)p;
#else
  return (unsigned)__cvta_generic_to_shared(p);
#endif
}

// Four 8 x 8 matrices of 16-bit numbers; lane 8 i + r names row r of matrix i (16 bytes, aligned). A thread gets of each matrix row g the pair
// at 2t; transposed: column g the pair at rows 2t.
__device__ __forceinline__ void load_matrices(unsigned (&r)[4], const void* row) {
#ifdef RIDGE_SIMULATOR
  gather_matrices(r, row, 4, false);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
#endif
}
__device__ __forceinline__ void load_matrices_transposed(unsigned (&r)[4], const void* row) {
#ifdef RIDGE_SIMULATOR
  gather_matrices(r, row, 4, true);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
#endif
}

// 16 bytes from global to shared memory, without waiting; zeros when `there` is false. Before compute capability 8.0 it waits.
__device__ __forceinline__ void copy_async_16(void* to, const void* from, bool there) {
#if !defined(RIDGE_SIMULATOR) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(shared_address(to)), "l"(from), "r"(there ? 16 : 0) : "memory");
#else
  uint4 zero = make_uint4(0, 0, 0, 0);
  *(uint4*)to = there ? *(const uint4*)from : zero;
#endif
}
__device__ __forceinline__ void copy_async_commit() {
#if !defined(RIDGE_SIMULATOR) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int kLater>  // all but the last kLater commits of this thread have arrived
__device__ __forceinline__ void copy_async_wait() {
#if !defined(RIDGE_SIMULATOR) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" :: "n"(kLater) : "memory");
#endif
}
)";

constexpr const char* kTf32 = R"(
// Rounded to 10 bits of fraction.
__device__ __forceinline__ unsigned to_tf32(unsigned x) {
#ifdef RIDGE_SIMULATOR
  return (x & 0x7f800000u) == 0x7f800000u ? x : (x + 0x1000u) & 0xffffe000u;
#elif __CUDA_ARCH__ >= 800
  unsigned r;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(bits_float(x)));
  return r;
#else
  return x;
#endif
}
// d += a * b, 16 x 8 x 8, in fragments of f32: of A (row g, g + 8; column t, t + 4), of B (row t, t + 4; column g).
__device__ __forceinline__ void mma_tf32(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
#ifdef RIDGE_SIMULATOR
  struct Parts { unsigned a[4], b[2]; } mine = {{a[0], a[1], a[2], a[3]}, {b0, b1}}, all[32];
  simulator_exchange(&mine, sizeof mine, all);
  int group = (int)lane_id() / 4, thread = (int)lane_id() % 4;
  for (int i = 0; i < 4; ++i) {
    int row = group + (i / 2) * 8, column = 2 * thread + i % 2;
    for (int k = 0; k < 8; ++k) d[i] += bits_float(all[row % 8 * 4 + k % 4].a[row / 8 + 2 * (k / 4)]) * bits_float(all[column * 4 + k % 4].b[k / 4]);
  }
#elif __CUDA_ARCH__ >= 800
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
  __trap();
#endif
}
)";

// Hopper only: asynchronous matrix products by four warps together, with operands in shared memory; barriers that count bytes; block copies.
constexpr const char* kWarpgroup = R"(
__device__ __forceinline__ void barrier_init(unsigned long long* barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(shared_address(barrier)), "r"(count) : "memory");
}
__device__ __forceinline__ void barrier_init_done() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void barrier_arrive(unsigned long long* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(shared_address(barrier)) : "memory");
}
__device__ __forceinline__ void barrier_expect(unsigned long long* barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(shared_address(barrier)), "r"(bytes) : "memory");
}
// Until the phase of this parity has ended.
__device__ __forceinline__ void barrier_wait(unsigned long long* barrier, unsigned parity) {
  asm volatile("{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@done bra.uni over;\nbra.uni again;\nover:\n}"
      :: "r"(shared_address(barrier)), "r"(parity) : "memory");
}
// Whether it has, without waiting.
__device__ __forceinline__ bool barrier_test(unsigned long long* barrier, unsigned parity) {
  unsigned done;
  asm volatile("{\n.reg .pred done;\nmbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\nselp.u32 %0, 1, 0, done;\n}"
      : "=r"(done) : "r"(shared_address(barrier)), "r"(parity) : "memory");
  return done != 0;
}

__device__ __forceinline__ void tensor_prefetch(const TensorMap* map) { asm volatile("prefetch.tensormap [%0];" :: "l"(map) : "memory"); }
__device__ __forceinline__ void tensor_load_4d(void* to, const TensorMap* map, unsigned long long* barrier, int c0, int c1, int c2, int c3) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];"
      :: "r"(shared_address(to)), "l"(map), "r"(shared_address(barrier)), "r"(c0), "r"(c1), "r"(c2), "r"(c3) : "memory");
}
__device__ __forceinline__ void bulk_load(void* to, const void* from, int bytes, unsigned long long* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
      :: "r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(barrier)) : "memory");
}
__device__ __forceinline__ void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void named_barrier(int id, int threads) { asm volatile("bar.sync %0, %1;" :: "r"(id), "r"(threads) : "memory"); }
__device__ __forceinline__ void named_barrier_arrive(int id, int threads) { asm volatile("bar.arrive %0, %1;" :: "r"(id), "r"(threads) : "memory"); }
template <int kCount>
__device__ __forceinline__ void registers_up() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(kCount)); }
template <int kCount>
__device__ __forceinline__ void registers_down() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(kCount)); }

__device__ __forceinline__ void store_matrices(void* row, const unsigned (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" :: "r"(shared_address(row)), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]) : "memory");
}
// Where one thread alone adds to a place, its sums have one order.
__device__ __forceinline__ void add_4(float* to, float a, float b, float c, float d) {
  asm volatile("red.global.add.v4.f32 [%0], {%1,%2,%3,%4};" :: "l"(to), "f"(a), "f"(b), "f"(c), "f"(d) : "memory");
}
__device__ __forceinline__ float4 load_4_added(const float* from) {
  float4 r;
  asm volatile("ld.relaxed.gpu.global.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(r.x), "=f"(r.y), "=f"(r.z), "=f"(r.w) : "l"(from) : "memory");
  return r;
}

// A tile of rows of 128 bytes, swizzled, 1024-byte aligned. `lead`: bytes to the next 64 columns of an operand that lies with its long side
// along the rows' direction.
__device__ __forceinline__ unsigned long long tile_descriptor(const void* tile, unsigned lead) {
  return (unsigned long long)((shared_address(tile) & 0x3ffffu) >> 4) | (unsigned long long)(lead >> 4) << 16 | (64ull << 32) | (1ull << 62);
}
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kLater>
__device__ __forceinline__ void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(kLater) : "memory"); }
// Sums in flight are not moved by the compiler across this.
template <int kCount>
__device__ __forceinline__ void keep_sums(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i]) :: "memory");
}
)";

// d (+)= a * b, 64 x columns x 16; a is in shared memory or in registers. A thread of warp w holds rows 16 w + g and 16 w + g + 8 of the sums and, of every 8
// columns, the pair at 2t; row g comes first.
std::string warpgroup_product(const std::string& type, int columns, bool registers) {
  const int sums = columns / 2, inputs = registers ? 4 : 1;
  auto number = [](int i) { return "%" + std::to_string(i); };
  std::string list, outs, text = registers ? "template <int kTransposedB>\n" : "template <int kTransposedA, int kTransposedB>\n";
  for (int i = 0; i < sums; ++i) {
    list += (i ? "," : "") + number(i);
    outs += (i ? ", " : "") + std::string("\"+f\"(d[") + std::to_string(i) + "])";
  }
  text += "__device__ __forceinline__ void wgmma_" + type + "(float (&d)[" + std::to_string(sums) + "], ";
  text += registers ? "const unsigned (&a)[4], " : "unsigned long long a, ";
  text += "unsigned long long b, int add) {\n  asm volatile(\"{\\n.reg .pred p;\\nsetp.ne.b32 p, " + number(sums + inputs + 1) + ", 0;\\n";
  text += "wgmma.mma_async.sync.aligned.m64n" + std::to_string(columns) + "k16.f32." + type + "." + type + " {" + list + "}, ";
  if (registers)
    text += "{" + number(sums) + "," + number(sums + 1) + "," + number(sums + 2) + "," + number(sums + 3) + "}";
  else
    text += number(sums);
  text += ", " + number(sums + inputs) + ", p, 1, 1, " + number(sums + inputs + 2) + (registers ? "" : ", " + number(sums + inputs + 3)) +
          ";\\n}\"\n      : " + outs;
  text += registers ? "\n      : \"r\"(a[0]), \"r\"(a[1]), \"r\"(a[2]), \"r\"(a[3])" : "\n      : \"l\"(a)";
  text += ", \"l\"(b), \"r\"(add), " + std::string(registers ? "" : "\"n\"(kTransposedA), ") + "\"n\"(kTransposedB));\n}\n";
  return text;
}

std::string make_text() {
  std::string text = std::string(kWarp) + "#ifdef __CUDA_ARCH_FEAT_SM90_ALL" + kWarpgroup;
  for (const char* type : {"bf16", "f16"})
    for (int columns : {32, 64, 96, 128, 256})
      for (bool registers : {false, true}) text += warpgroup_product(type, columns, registers);
  return text + "#endif\n";
}

}  // namespace

std::string_view matrix_prelude() {
  static const std::string text = make_text();
  return text;
}

std::string_view tf32_prelude() { return kTf32; }

}  // namespace ridge::cuda
