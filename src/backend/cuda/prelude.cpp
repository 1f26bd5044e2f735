#include "backend/cuda/prelude.h"

#include "backend/cuda/kernel.h"
#include "backend/gpu/prelude_common.h"
#include "base/error.h"
#include "drivers/nvrtc.h"

namespace ridge::cuda {
namespace {

// Instructions that C++ cannot express are in functions of their own, with a plain C++ body for the simulator.
constexpr std::string_view kPreludeHead = R"cuda(
typedef long long i64;
typedef unsigned long long u64;
typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned char u8;
#define RIDGE_INLINE __device__ __forceinline__
#ifdef RIDGE_SIMULATOR
#define RIDGE_CONSTANT
#else
#define RIDGE_CONSTANT __grid_constant__
#endif

// ---- half precision, as base/half.h ----
RIDGE_INLINE float bits_float(u32 u) { return __uint_as_float(u); }
RIDGE_INLINE u32 float_bits(float f) { return __float_as_uint(f); }
RIDGE_INLINE float bf16_to_f32(u16 h) { return bits_float((u32)h << 16); }
RIDGE_INLINE u16 f32_to_bf16(float f) {
#if !defined(RIDGE_SIMULATOR) && __CUDA_ARCH__ >= 800
  u16 h;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(f));
  return h;
#else
  u32 u = float_bits(f);
  if ((u & 0x7fffffffu) > 0x7f800000u) return (u16)((u >> 16) | 0x40);
  return (u16)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
#endif
}
RIDGE_INLINE float f16_to_f32(u16 h) {
#ifndef RIDGE_SIMULATOR
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
  return f;
#else
  u32 sign = (u32)(h & 0x8000) << 16, rest = h & 0x7fff;
  if (rest >= 0x7c00) return bits_float(sign | 0x7f800000u | (rest & 0x3ff) << 13 | (rest > 0x7c00 ? 0x400000u : 0u));
  if (rest < 0x400) return bits_float(sign | float_bits((float)rest * 0x1p-24f));
  return bits_float(sign | ((rest << 13) + 0x38000000u));
#endif
}
RIDGE_INLINE u16 f32_to_f16(float f) {
#ifndef RIDGE_SIMULATOR
  u16 h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
  return h;
#else
  u32 u = float_bits(f), sign = (u >> 16) & 0x8000, rest = u & 0x7fffffffu;
  if (rest > 0x7f800000u) return (u16)(sign | 0x7e00 | ((rest >> 13) & 0x3ff));
  if (rest >= 0x477ff000u) return (u16)(sign | 0x7c00);
  if (rest < 0x38800000u) return (u16)(sign | (float_bits(bits_float(rest) + 0x1p-1f) - 0x3f000000u));
  return (u16)(sign | ((rest + 0xfff + ((rest >> 13) & 1) - 0x38000000u) >> 13));
#endif
}
// Two at once, the first in the low half.
RIDGE_INLINE u32 f32_to_bf16x2(float low, float high) {
#if !defined(RIDGE_SIMULATOR) && __CUDA_ARCH__ >= 800
  u32 w;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(high), "f"(low));
  return w;
#else
  return (u32)f32_to_bf16(low) | (u32)f32_to_bf16(high) << 16;
#endif
}
RIDGE_INLINE u32 f32_to_f16x2(float low, float high) {
#if !defined(RIDGE_SIMULATOR) && __CUDA_ARCH__ >= 800
  u32 w;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(high), "f"(low));
  return w;
#else
  return (u32)f32_to_f16(low) | (u32)f32_to_f16(high) << 16;
#endif
}

)cuda";

constexpr std::string_view kPreludeMemory = R"cuda(// ---- memory: V elements at once; the address is a multiple of V elements or of 16 bytes ----
template <int kBytes> struct Words { static const int count = kBytes / 4; u32 w[kBytes / 4]; };
template <> struct Words<1> { static const int count = 1; u32 w[1]; };
template <> struct Words<2> { static const int count = 1; u32 w[1]; };

// kFixed: nobody writes there while the kernel runs, so that the read may be moved before stores.
template <bool kFixed, class T> RIDGE_INLINE T read(const void* p) { return kFixed ? __ldg((const T*)p) : *(const T*)p; }
template <bool kFixed, int kBytes> RIDGE_INLINE void read_words(Words<kBytes>& to, const void* p) {
  if constexpr (kBytes >= 16) {
#pragma unroll
    for (int k = 0; k < kBytes / 16; ++k) {
      uint4 q = read<kFixed, uint4>((const uint4*)p + k);
      to.w[4 * k] = q.x, to.w[4 * k + 1] = q.y, to.w[4 * k + 2] = q.z, to.w[4 * k + 3] = q.w;
    }
  } else if constexpr (kBytes == 8) {
    uint2 q = read<kFixed, uint2>(p);
    to.w[0] = q.x, to.w[1] = q.y;
  } else if constexpr (kBytes == 4) {
    to.w[0] = read<kFixed, u32>(p);
  } else if constexpr (kBytes == 2) {
    to.w[0] = read<kFixed, u16>(p);
  } else {
    to.w[0] = read<kFixed, u8>(p);
  }
}

RIDGE_INLINE void write_16(void* p, uint4 q, bool streaming) {
#ifndef RIDGE_SIMULATOR
  if (streaming) asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(q.x), "r"(q.y), "r"(q.z), "r"(q.w) : "memory");
  else
#endif
    *(uint4*)p = q;
}
template <int kBytes> RIDGE_INLINE void write_words(void* p, const Words<kBytes>& from, bool streaming) {
#pragma unroll
  for (int k = 0; k < kBytes / 16; ++k)
    write_16((uint4*)p + k, make_uint4(from.w[4 * k], from.w[4 * k + 1], from.w[4 * k + 2], from.w[4 * k + 3]), streaming);
}
template <> RIDGE_INLINE void write_words<8>(void* p, const Words<8>& from, bool) { *(uint2*)p = make_uint2(from.w[0], from.w[1]); }
template <> RIDGE_INLINE void write_words<4>(void* p, const Words<4>& from, bool) { *(u32*)p = from.w[0]; }
template <> RIDGE_INLINE void write_words<2>(void* p, const Words<2>& from, bool) { *(u16*)p = (u16)from.w[0]; }
template <> RIDGE_INLINE void write_words<1>(void* p, const Words<1>& from, bool) { *(u8*)p = (u8)from.w[0]; }

// Element k of words that hold elements of the pointer's type.
RIDGE_INLINE float element(const u32* w, int k, const float*) { return bits_float(w[k]); }
RIDGE_INLINE float element(const u32* w, int k, const bf16*) { return bits_float(k & 1 ? w[k / 2] & 0xffff0000u : w[k / 2] << 16); }
RIDGE_INLINE float element(const u32* w, int k, const f16*) { return f16_to_f32((u16)(w[k / 2] >> (k & 1) * 16)); }
RIDGE_INLINE int element(const u32* w, int k, const int*) { return (int)w[k]; }
RIDGE_INLINE int element(const u32* w, int k, const u8*) { return (int)(w[k / 4] >> (k & 3) * 8 & 255); }
RIDGE_INLINE int element(const u32* w, int k, const truth*) { return (int)(w[k / 4] >> (k & 3) * 8 & 255); }
RIDGE_INLINE i64 element(const u32* w, int k, const i64*) { return (i64)((u64)w[2 * k] | (u64)w[2 * k + 1] << 32); }

template <int V> RIDGE_INLINE void pack(u32* w, const float* x, const float*) {
#pragma unroll
  for (int k = 0; k < V; ++k) w[k] = float_bits(x[k]);
}
template <int V> RIDGE_INLINE void pack(u32* w, const float* x, const bf16*) {
  if constexpr (V == 1) w[0] = f32_to_bf16(x[0]);
#pragma unroll
  for (int k = 0; k < V / 2; ++k) w[k] = f32_to_bf16x2(x[2 * k], x[2 * k + 1]);
}
template <int V> RIDGE_INLINE void pack(u32* w, const float* x, const f16*) {
  if constexpr (V == 1) w[0] = f32_to_f16(x[0]);
#pragma unroll
  for (int k = 0; k < V / 2; ++k) w[k] = f32_to_f16x2(x[2 * k], x[2 * k + 1]);
}
template <int V> RIDGE_INLINE void pack(u32* w, const int* x, const int*) {
#pragma unroll
  for (int k = 0; k < V; ++k) w[k] = (u32)x[k];
}
template <int V> RIDGE_INLINE void pack_bytes(u32* w, const int* x) {
#pragma unroll
  for (int k = 0; k < (V + 3) / 4; ++k) w[k] = 0;
#pragma unroll
  for (int k = 0; k < V; ++k) w[k / 4] |= (u32)(x[k] & 255) << (k & 3) * 8;
}
template <int V> RIDGE_INLINE void pack(u32* w, const int* x, const u8*) { pack_bytes<V>(w, x); }
template <int V> RIDGE_INLINE void pack(u32* w, const int* x, const truth*) { pack_bytes<V>(w, x); }
template <int V> RIDGE_INLINE void pack(u32* w, const i64* x, const i64*) {
#pragma unroll
  for (int k = 0; k < V; ++k) w[2 * k] = (u32)x[k], w[2 * k + 1] = (u32)((u64)x[k] >> 32);
}

// Without kAligned the address is a multiple of one element only.
template <int V, bool kAligned = true, bool kFixed = false, class S, class T> RIDGE_INLINE void load(T (&to)[V], const S* p, bool live) {
  if (!kAligned) {
#pragma unroll
    for (int k = 0; k < V; ++k) to[k] = live ? widened(p[k]) : 0;
    return;
  }
  typedef Words<V * (int)sizeof(S)> W;
  W w;
#pragma unroll
  for (int k = 0; k < W::count; ++k) w.w[k] = 0;
  if (live) read_words<kFixed>(w, p);
#pragma unroll
  for (int k = 0; k < V; ++k) to[k] = element(w.w, k, p);
}
// Also leaves the elements in shared memory, where later passes over the row find them.
template <int V, bool kAligned, class S, class T> RIDGE_INLINE void load_and_keep(T (&to)[V], const S* p, S* keep, bool live) {
  if (!kAligned) {
    S zero = S();
#pragma unroll
    for (int k = 0; k < V; ++k) keep[k] = live ? p[k] : zero, to[k] = widened(keep[k]);
    return;
  }
  typedef Words<V * (int)sizeof(S)> W;
  W w;
#pragma unroll
  for (int k = 0; k < W::count; ++k) w.w[k] = 0;
  if (live) read_words<false>(w, p);
  write_words(keep, w, false);
#pragma unroll
  for (int k = 0; k < V; ++k) to[k] = element(w.w, k, p);
}
template <int V, bool kAligned = true, class S, class T> RIDGE_INLINE void store(S* p, const T (&from)[V], bool live, bool streaming) {
  if (!kAligned) {
#pragma unroll
    for (int k = 0; k < V; ++k)
      if (live) narrow(p[k], from[k]);
    return;
  }
  typedef Words<V * (int)sizeof(S)> W;
  W w;
  pack<V>(w.w, from, p);
  if (live) write_words(p, w, streaming);
}
template <class S> RIDGE_INLINE auto load_one(const S* p, bool live) -> decltype(widened(*p)) {
  decltype(widened(*p)) x = 0;
  if (live) x = widened(*p);
  return x;
}
template <class S, class T> RIDGE_INLINE void store_one(S* p, T x, bool live) {
  if (live) narrow(*p, x);
}
template <int V, class T> RIDGE_INLINE void spread(T (&to)[V], T x) {
#pragma unroll
  for (int k = 0; k < V; ++k) to[k] = x;
}

// ---- bad indices: the first one is told ----
struct Fault { int raised, pad; i64 value, limit, position; };
__device__ __noinline__ void raise_fault(Fault* fault, i64 value, i64 limit, i64 position) {
  if (atomicCAS(&fault->raised, 0, 1) == 0) fault->value = value, fault->limit = limit, fault->position = position;
}
RIDGE_INLINE i64 checked_index(i64 index, i64 size, bool live, Fault* fault) {
  if (index >= 0 && index < size) return index;
  if (live) raise_fault(fault, index, size, -1);
  return 0;
}
RIDGE_INLINE float checked_class(i64 value, i64 limit, i64 position, bool live, Fault* fault) {
  if (value >= 0 && value < limit) return 0.f;
  if (live) raise_fault(fault, value, limit, position);
  return bits_float(0x7fc00000u);
}

)cuda";

constexpr std::string_view kPreludeExtremes = R"cuda(// ---- arithmetic of one element, as the CPU does it ----
RIDGE_INLINE float maximum(float a, float b) {
#if !defined(RIDGE_SIMULATOR) && __CUDA_ARCH__ >= 800
  float m;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(m) : "f"(a), "f"(b));
  return m;
#else
  return a > b || a != a ? a : b;
#endif
}
RIDGE_INLINE float minimum(float a, float b) {
#if !defined(RIDGE_SIMULATOR) && __CUDA_ARCH__ >= 800
  float m;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(m) : "f"(a), "f"(b));
  return m;
#else
  return a < b || a != a ? a : b;
#endif
}
)cuda";

constexpr std::string_view kPreludeApproximations = R"cuda(RIDGE_INLINE float near_quotient(float a, float b) {  // within 2 ulp for b in [1, 2^126]
#ifndef RIDGE_SIMULATOR
  float q;
  asm("div.approx.f32 %0, %1, %2;" : "=f"(q) : "f"(a), "f"(b));
  return q;
#else
  return a / b;
#endif
}
// exp of what lies below a row's maximum: the error is less than an ulp of 1, for a fraction of the cost.
RIDGE_INLINE float exp_below(float x) {
#ifndef RIDGE_SIMULATOR
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.44269504f));
  return y;
#else
  return exp2f(x * 1.44269504f);
#endif
}
)cuda";

constexpr std::string_view kPreludeExchange =
    R"cuda(template <class T> RIDGE_INLINE T exchanged(T x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
)cuda";

constexpr std::string_view kPreludeBlocks = R"cuda(// Over a block of kThreads: put, __syncthreads(), get. The array holds one place per warp.
template <class J, class A> RIDGE_INLINE void put_joined(A* places, A a) {
  a = joined_lanes<J, 32>(a);
  if ((threadIdx.x & 31) == 0) places[threadIdx.x / 32] = a;
}
template <class J, int kThreads, class A> RIDGE_INLINE A get_joined(const A* places) {
  A a;
  J::clear(a);
  if ((threadIdx.x & 31) < kThreads / 32) a = places[threadIdx.x & 31];
  return joined_lanes<J, 32>(a);
}
RIDGE_INLINE float sum_of_warp(float x) { return joined_lanes<Sum, 32>(x); }
RIDGE_INLINE float max_of_warp(float x) { return joined_lanes<Max, 32>(x); }
)cuda";

}  // namespace

std::string_view prelude() {
  static const std::string text = [] {
    std::string all;
    for (std::string_view part : {kPreludeHead, gpu::elements_prelude(), kPreludeMemory, gpu::random_prelude(), kPreludeExtremes, gpu::arithmetic_prelude(),
                                  kPreludeApproximations, gpu::functions_prelude(), kPreludeExchange, gpu::joins_prelude(), kPreludeBlocks})
      all += part;
    return all;
  }();
  return text;
}

std::string source_of(const gpu::KernelText& text) {
  if (!text.overlaps) return std::string(prelude()) + text.body;
  // Loads through the read-only cache could be moved in front of the instruction that waits.
  constexpr std::string_view kHead = R"cuda(
#ifdef RIDGE_SIMULATOR
#define RIDGE_BEGIN_NEXT
#define RIDGE_AFTER_PREVIOUS
#else
#define __ldg(p) (*(p))
#define RIDGE_BEGIN_NEXT asm volatile("griddepcontrol.launch_dependents;" ::: "memory")
#define RIDGE_AFTER_PREVIOUS asm volatile("griddepcontrol.wait;" ::: "memory")
#endif
)cuda";
  std::string body = text.body;
  constexpr std::string_view kGlobal = "extern \"C\" __global__";
  size_t begin = body.npos;
  for (size_t at = body.find(kGlobal); at != body.npos && begin == body.npos; at = body.find(kGlobal, at + 1)) {
    const size_t opens = body.find('{', at), name = body.find(" " + text.entry + "(", at);
    if (name < opens) begin = opens;
  }
  if (begin == body.npos) fail(ErrorCode::internal, "[cuda] {} has no entry", text.entry);
  const bool waits = body.find("RIDGE_AFTER_PREVIOUS;", begin) != body.npos;  // where the text says so
  body.insert(begin + 1, waits ? "\n  RIDGE_BEGIN_NEXT;" : "\n  RIDGE_BEGIN_NEXT;\n  RIDGE_AFTER_PREVIOUS;");
  return std::string(kHead) + std::string(prelude()) + body;
}

std::string compile_text(const Nvrtc& nvrtc, const gpu::KernelText& text, const std::string& target) {
  return nvrtc.compile(text.entry, source_of(text), target);
}

}  // namespace ridge::cuda
