// The prefix of a kernel's text when the simulator compiles it with the host's compiler: CUDA's keywords and functions in plain C++. The text is put in an
// unnamed namespace, so that only the parts in use are compiled.
#pragma once

namespace simulator {

constexpr const char kShim[] = R"shim(
typedef __SIZE_TYPE__ size_t;
#define __global__
#define __device__
#define __host__
#define __constant__
#define __shared__ __attribute__((section("simulator_shared"))) static
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __grid_constant__
#define __builtin_assume(x)

extern "C" {
#define SIMULATOR_UNARY(name) float name##f(float); double name(double);
SIMULATOR_UNARY(exp) SIMULATOR_UNARY(exp2) SIMULATOR_UNARY(expm1) SIMULATOR_UNARY(log) SIMULATOR_UNARY(log2) SIMULATOR_UNARY(log10)
SIMULATOR_UNARY(log1p) SIMULATOR_UNARY(sin) SIMULATOR_UNARY(cos) SIMULATOR_UNARY(tan) SIMULATOR_UNARY(asin) SIMULATOR_UNARY(acos)
SIMULATOR_UNARY(atan) SIMULATOR_UNARY(sinh) SIMULATOR_UNARY(cosh) SIMULATOR_UNARY(tanh) SIMULATOR_UNARY(asinh) SIMULATOR_UNARY(acosh)
SIMULATOR_UNARY(atanh) SIMULATOR_UNARY(erf) SIMULATOR_UNARY(erfc) SIMULATOR_UNARY(sqrt) SIMULATOR_UNARY(cbrt) SIMULATOR_UNARY(floor)
SIMULATOR_UNARY(ceil) SIMULATOR_UNARY(trunc) SIMULATOR_UNARY(round) SIMULATOR_UNARY(rint) SIMULATOR_UNARY(nearbyint) SIMULATOR_UNARY(fabs)
SIMULATOR_UNARY(lgamma) SIMULATOR_UNARY(tgamma)
#define SIMULATOR_BINARY(name) float name##f(float, float); double name(double, double);
SIMULATOR_BINARY(pow) SIMULATOR_BINARY(fmod) SIMULATOR_BINARY(atan2) SIMULATOR_BINARY(hypot) SIMULATOR_BINARY(fmin) SIMULATOR_BINARY(fmax)
SIMULATOR_BINARY(copysign) SIMULATOR_BINARY(nextafter) SIMULATOR_BINARY(remainder) SIMULATOR_BINARY(fdim)
float fmaf(float, float, float); double fma(double, double, double);
float ldexpf(float, int); double ldexp(double, int); float frexpf(float, int*); double frexp(double, int*);
float modff(float, float*); float scalbnf(float, int);
void* memcpy(void*, const void*, size_t); void* memset(void*, int, size_t); int printf(const char*, ...);

// The simulator's side, filled in when the module is loaded.
struct SimulatorHooks {
  unsigned (*barrier)(int kind, int id, int threads, unsigned value);
  unsigned (*warp)(unsigned mask, int kind, const void* mine, void* result, int bytes, int argument, int width);
  void (*fail)(const char* words);
  int (*lane)();
  unsigned (*active)();
  long long (*clock)();
  void (*touch)(const void* at, int bytes, int write);
  unsigned (*cluster_rank)();
  void* (*cluster_address)(void* at, unsigned rank);
};
}

static SimulatorHooks simulator_hooks;
static unsigned char* shared_memory;

// Where accesses are watched, the compiler calls these before each.
#define SIMULATOR_UNWATCHED __attribute__((no_sanitize("thread")))
#ifdef __SANITIZE_THREAD__
SIMULATOR_UNWATCHED static void simulator_touch(const void* at, size_t bytes, int write) {
  if (simulator_hooks.touch) simulator_hooks.touch(at, int(bytes), write);
}
extern "C" {
SIMULATOR_UNWATCHED void __tsan_init() {}
SIMULATOR_UNWATCHED void __tsan_func_entry(void*) {}
SIMULATOR_UNWATCHED void __tsan_func_exit() {}
#define SIMULATOR_WATCH(n) \
  SIMULATOR_UNWATCHED void __tsan_read##n(void* p) { simulator_touch(p, n, 0); } \
  SIMULATOR_UNWATCHED void __tsan_write##n(void* p) { simulator_touch(p, n, 1); } \
  SIMULATOR_UNWATCHED void __tsan_unaligned_read##n(void* p) { simulator_touch(p, n, 0); } \
  SIMULATOR_UNWATCHED void __tsan_unaligned_write##n(void* p) { simulator_touch(p, n, 1); } \
  SIMULATOR_UNWATCHED void __tsan_volatile_read##n(void*) {} \
  SIMULATOR_UNWATCHED void __tsan_volatile_write##n(void*) {}
SIMULATOR_WATCH(1) SIMULATOR_WATCH(2) SIMULATOR_WATCH(4) SIMULATOR_WATCH(8) SIMULATOR_WATCH(16)
SIMULATOR_UNWATCHED void __tsan_read_range(void* p, size_t n) { simulator_touch(p, n, 0); }
SIMULATOR_UNWATCHED void __tsan_write_range(void* p, size_t n) { simulator_touch(p, n, 1); }
}
#endif

#define SIMULATOR_VECTOR(T, name, a1, a2, a4) \
  struct name##1 { T x; }; \
  struct __align__(a2) name##2 { T x, y; }; \
  struct name##3 { T x, y, z; }; \
  struct __align__(a4) name##4 { T x, y, z, w; }; \
  inline name##1 make_##name##1(T x) { return {x}; } \
  inline name##2 make_##name##2(T x, T y) { return {x, y}; } \
  inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; } \
  inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
SIMULATOR_VECTOR(signed char, char, 1, 2, 4)
SIMULATOR_VECTOR(unsigned char, uchar, 1, 2, 4)
SIMULATOR_VECTOR(short, short, 2, 4, 8)
SIMULATOR_VECTOR(unsigned short, ushort, 2, 4, 8)
SIMULATOR_VECTOR(int, int, 4, 8, 16)
SIMULATOR_VECTOR(unsigned, uint, 4, 8, 16)
SIMULATOR_VECTOR(float, float, 4, 8, 16)
SIMULATOR_VECTOR(long long, longlong, 8, 16, 16)
SIMULATOR_VECTOR(unsigned long long, ulonglong, 8, 16, 16)
SIMULATOR_VECTOR(double, double, 8, 16, 16)

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};
static uint3 threadIdx, blockIdx, blockDim, gridDim;
constexpr int warpSize = 32;

enum { kSync, kSyncOr, kSyncAnd, kSyncCount, kNamed, kCluster };
inline void __syncthreads() { simulator_hooks.barrier(kSync, 0, 0, 0); }
inline int __syncthreads_or(int p) { return int(simulator_hooks.barrier(kSyncOr, 0, 0, p != 0) != 0); }
inline int __syncthreads_and(int p) { return int(simulator_hooks.barrier(kSyncAnd, 0, 0, p != 0)); }
inline int __syncthreads_count(int p) { return int(simulator_hooks.barrier(kSyncCount, 0, 0, p != 0)); }
inline void simulator_cluster_barrier() { simulator_hooks.barrier(kCluster, 0, 0, 0); }
inline void simulator_named_barrier(int id, int threads) { simulator_hooks.barrier(kNamed, id, threads, 0); }

enum { kMeet, kShuffle, kShuffleXor, kShuffleUp, kShuffleDown, kBallot, kExchange, kMatch };
inline void __syncwarp(unsigned mask = 0xffffffffu) { simulator_hooks.warp(mask, kMeet, nullptr, nullptr, 0, 0, 32); }
template <class T>
T simulator_shuffle(unsigned mask, int kind, T value, int argument, int width) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "a shuffle moves 4 or 8 bytes");
  T result;
  simulator_hooks.warp(mask, kind, &value, &result, sizeof value, argument, width);
  return result;
}
template <class T> T __shfl_sync(unsigned mask, T value, int lane, int width = 32) { return simulator_shuffle(mask, kShuffle, value, lane, width); }
template <class T> T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32) { return simulator_shuffle(mask, kShuffleXor, value, lanes, width); }
template <class T> T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) { return simulator_shuffle(mask, kShuffleUp, value, int(by), width); }
template <class T> T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) { return simulator_shuffle(mask, kShuffleDown, value, int(by), width); }
inline unsigned __ballot_sync(unsigned mask, int p) { return simulator_hooks.warp(mask, kBallot, nullptr, nullptr, 0, p != 0, 32); }
inline int __any_sync(unsigned mask, int p) { return __ballot_sync(mask, p) != 0; }
inline int __all_sync(unsigned mask, int p) { return __ballot_sync(mask, !p) == 0; }
inline unsigned __activemask() { return simulator_hooks.active(); }
inline int simulator_lane() { return simulator_hooks.lane(); }
inline void simulator_exchange(const void* mine, int bytes, void* all) { simulator_hooks.warp(0xffffffffu, kExchange, mine, all, bytes, 0, 32); }
template <class T> void simulator_exchange(const T& mine, T (&all)[32]) { simulator_exchange(&mine, int(sizeof mine), all); }
template <class T> unsigned __match_any_sync(unsigned mask, T value) { return simulator_hooks.warp(mask, kMatch, &value, nullptr, sizeof value, 0, 32); }
template <class T, class F>
T simulator_reduce(unsigned mask, T value, F f) {
  T all[32], sum = value;
  simulator_hooks.warp(mask, kExchange, &value, all, sizeof value, 0, 32);
  bool first = true;
  for (int i = 0; i < 32; ++i)
    if (mask >> i & 1) sum = first ? all[i] : f(sum, all[i]), first = false;
  return sum;
}
template <class T> T __reduce_add_sync(unsigned mask, T v) { return simulator_reduce(mask, v, [](T a, T b) { return T(unsigned(a) + unsigned(b)); }); }
template <class T> T __reduce_max_sync(unsigned mask, T v) { return simulator_reduce(mask, v, [](T a, T b) { return a < b ? b : a; }); }
template <class T> T __reduce_min_sync(unsigned mask, T v) { return simulator_reduce(mask, v, [](T a, T b) { return b < a ? b : a; }); }
template <class T> T __reduce_or_sync(unsigned mask, T v) { return simulator_reduce(mask, v, [](T a, T b) { return T(a | b); }); }
template <class T> T __reduce_and_sync(unsigned mask, T v) { return simulator_reduce(mask, v, [](T a, T b) { return T(a & b); }); }

// Threads take turns only where they meet, so plain steps are atomic. There are none for floating-point sums: their order is not fixed.
#define SIMULATOR_ATOMIC(name, expression) \
  template <class T, class V> \
  SIMULATOR_UNWATCHED T atomic##name(T* at, V given) { \
    static_assert(T(1) / T(2) == T(0), "only integers have a sum that does not depend on the order"); \
    const T old = *at, value = T(given); \
    *at = (expression); \
    return old; \
  }
SIMULATOR_ATOMIC(Add, T(old + value)) SIMULATOR_ATOMIC(Sub, T(old - value)) SIMULATOR_ATOMIC(Max, old < value ? value : old)
SIMULATOR_ATOMIC(Min, value < old ? value : old) SIMULATOR_ATOMIC(And, T(old & value)) SIMULATOR_ATOMIC(Or, T(old | value))
SIMULATOR_ATOMIC(Xor, T(old ^ value)) SIMULATOR_ATOMIC(Inc, old >= value ? T(0) : T(old + 1))
template <class T, class V> SIMULATOR_UNWATCHED T atomicExch(T* at, V value) { const T old = *at; *at = T(value); return old; }
template <class T, class V, class W> SIMULATOR_UNWATCHED T atomicCAS(T* at, V expected, W value) { const T old = *at; if (old == T(expected)) *at = T(value); return old; }
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}
inline void __nanosleep(unsigned) {}
inline long long clock64() { return simulator_hooks.clock(); }
inline void __trap() { simulator_hooks.fail("__trap() was called"); }
#define assert(x) ((x) ? void() : simulator_hooks.fail("assertion failed: " #x))

template <class T> T __ldg(const T* p) { return *p; }
template <class T> T __ldcs(const T* p) { return *p; }
template <class T> T __ldcg(const T* p) { return *p; }
template <class T> T __ldca(const T* p) { return *p; }
template <class T> T __ldlu(const T* p) { return *p; }
template <class T> T __ldcv(const T* p) { return *p; }
template <class T> void __stcs(T* p, T v) { *p = v; }
template <class T> void __stcg(T* p, T v) { *p = v; }
template <class T> void __stwb(T* p, T v) { *p = v; }
template <class T> void __stwt(T* p, T v) { *p = v; }

template <class To, class From>
To simulator_bits(From from) {
  static_assert(sizeof(To) == sizeof(From), "");
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}
inline unsigned __float_as_uint(float x) { return simulator_bits<unsigned>(x); }
inline int __float_as_int(float x) { return simulator_bits<int>(x); }
inline float __uint_as_float(unsigned x) { return simulator_bits<float>(x); }
inline float __int_as_float(int x) { return simulator_bits<float>(x); }
inline long long __double_as_longlong(double x) { return simulator_bits<long long>(x); }
inline double __longlong_as_double(long long x) { return simulator_bits<double>(x); }

inline bool isnan(float x) { return x != x; }
inline bool isnan(double x) { return x != x; }
inline bool isinf(float x) { return __builtin_isinf(x); }
inline bool isinf(double x) { return __builtin_isinf(x); }
inline bool isfinite(float x) { return __builtin_isfinite(x); }
inline bool isfinite(double x) { return __builtin_isfinite(x); }
inline bool signbit(float x) { return __builtin_signbit(x); }

#define SIMULATOR_MIN_MAX(T) \
  inline T min(T a, T b) { return b < a ? b : a; } \
  inline T max(T a, T b) { return a < b ? b : a; }
SIMULATOR_MIN_MAX(int) SIMULATOR_MIN_MAX(unsigned) SIMULATOR_MIN_MAX(long) SIMULATOR_MIN_MAX(unsigned long) SIMULATOR_MIN_MAX(long long)
SIMULATOR_MIN_MAX(unsigned long long)
inline unsigned min(int a, unsigned b) { return min(unsigned(a), b); }
inline unsigned min(unsigned a, int b) { return min(a, unsigned(b)); }
inline unsigned max(int a, unsigned b) { return max(unsigned(a), b); }
inline unsigned max(unsigned a, int b) { return max(a, unsigned(b)); }
inline long long min(long long a, int b) { return min(a, (long long)b); }
inline long long min(int a, long long b) { return min((long long)a, b); }
inline long long max(long long a, int b) { return max(a, (long long)b); }
inline long long max(int a, long long b) { return max((long long)a, b); }
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }
inline int abs(int x) { return x < 0 ? int(-unsigned(x)) : x; }
inline long long abs(long long x) { return x < 0 ? (long long)(-(unsigned long long)x) : x; }
inline long long llabs(long long x) { return abs(x); }
inline float abs(float x) { return fabsf(x); }
inline double abs(double x) { return fabs(x); }
// CUDA has the plain names for floats too.
#define SIMULATOR_FLOAT(name) inline float name(float x) { return name##f(x); }
SIMULATOR_FLOAT(exp) SIMULATOR_FLOAT(exp2) SIMULATOR_FLOAT(log) SIMULATOR_FLOAT(log2) SIMULATOR_FLOAT(sqrt) SIMULATOR_FLOAT(floor) SIMULATOR_FLOAT(ceil)
SIMULATOR_FLOAT(tanh) SIMULATOR_FLOAT(sin) SIMULATOR_FLOAT(cos) SIMULATOR_FLOAT(fabs) SIMULATOR_FLOAT(rint) SIMULATOR_FLOAT(trunc) SIMULATOR_FLOAT(round)

inline float rsqrtf(float x) { return float(1 / __builtin_sqrt(double(x))); }
inline double rsqrt(double x) { return 1 / __builtin_sqrt(x); }
inline float __expf(float x) { return expf(x); }
inline float __exp10f(float x) { return powf(10.f, x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline float __tanhf(float x) { return tanhf(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float exp10f(float x) { return powf(10.f, x); }
inline float __saturatef(float x) { return x > 0 ? (x < 1 ? x : 1.f) : 0.f; }
inline float __fdividef(float a, float b) { return a / b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __frcp_rn(float x) { return 1 / x; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __frsqrt_rn(float x) { return rsqrtf(x); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
inline void sincosf(float x, float* s, float* c) { *s = sinf(x), *c = cosf(x); }
inline void __sincosf(float x, float* s, float* c) { sincosf(x, s, c); }

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __brev(unsigned x) {
  unsigned y = 0;
  for (int i = 0; i < 32; ++i) y |= (x >> i & 1u) << (31 - i);
  return y;
}
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned((unsigned long long)a * b >> 32); }
inline int __mulhi(int a, int b) { return int((long long)a * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) { return (unsigned long long)((unsigned __int128)a * b >> 64); }
inline long long __mul64hi(long long a, long long b) { return (long long)((__int128)a * b >> 64); }
inline unsigned __umul24(unsigned a, unsigned b) { return (a & 0xffffffu) * (b & 0xffffffu); }
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned s) {
  const unsigned long long both = (unsigned long long)b << 32 | a;
  unsigned y = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned which = s >> (4 * i) & 0xf, byte = unsigned(both >> (8 * (which & 7))) & 0xff;
    y |= (which & 8 ? (byte & 0x80 ? 0xffu : 0u) : byte) << (8 * i);
  }
  return y;
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) { return by & 31 ? high << (by & 31) | low >> (32 - (by & 31)) : high; }
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) { return by & 31 ? low >> (by & 31) | high << (32 - (by & 31)) : low; }

// To whole numbers as the device does it: what is too large becomes the largest, NaN zero.
template <class To, class From>
To simulator_whole(From x, To least, To most) {
  if (x != x) return 0;
  if (x <= From(least)) return least;
  if (x >= From(most)) return most;
  return To(x);
}
#define SIMULATOR_WHOLE(word, T, least, most) \
  inline T __float2##word##_rz(float x) { return simulator_whole<T>(truncf(x), least, most); } \
  inline T __float2##word##_rn(float x) { return simulator_whole<T>(rintf(x), least, most); } \
  inline T __float2##word##_rd(float x) { return simulator_whole<T>(floorf(x), least, most); } \
  inline T __float2##word##_ru(float x) { return simulator_whole<T>(ceilf(x), least, most); } \
  inline T __double2##word##_rz(double x) { return simulator_whole<T>(trunc(x), least, most); } \
  inline T __double2##word##_rn(double x) { return simulator_whole<T>(rint(x), least, most); }
SIMULATOR_WHOLE(int, int, -2147483647 - 1, 2147483647)
SIMULATOR_WHOLE(uint, unsigned, 0u, 4294967295u)
SIMULATOR_WHOLE(ll, long long, -9223372036854775807ll - 1, 9223372036854775807ll)
SIMULATOR_WHOLE(ull, unsigned long long, 0ull, 18446744073709551615ull)
inline float __int2float_rn(int x) { return float(x); }
inline float __uint2float_rn(unsigned x) { return float(x); }
inline float __ll2float_rn(long long x) { return float(x); }
inline float __ull2float_rn(unsigned long long x) { return float(x); }
inline float __double2float_rn(double x) { return float(x); }

// An entry as the simulator sees it: how to call it with what a launch points to, and how large that is.
struct SimulatorEntry {
  void (*call)(void (*)(), void**);
  void (*function)();
  const int* sizes;
  int count, bound, cluster;
};
template <size_t... I> struct SimulatorIndices {};
template <class... Args> struct SimulatorParameters {
  static constexpr int sizes[] = {int(sizeof(Args))..., 0};
  template <size_t... I>
  static void spread(void (*entry)(Args...), void** args, SimulatorIndices<I...>) { entry(*static_cast<const Args*>(args[I])...); }
  static void call(void (*entry)(), void** args) {
    spread(reinterpret_cast<void (*)(Args...)>(entry), args, SimulatorIndices<__integer_pack(sizeof...(Args))...>());
  }
};
template <class... Args>
SimulatorEntry simulator_entry(void (*entry)(Args...), int bound, int cluster) {
  using P = SimulatorParameters<Args...>;
  return {&P::call, reinterpret_cast<void (*)()>(entry), P::sizes, int(sizeof...(Args)), bound, cluster};
}
extern "C" __attribute__((weak)) char __start_simulator_shared[], __stop_simulator_shared[];  // null: the text has none
struct SimulatorModule {
  SimulatorHooks* hooks;
  uint3 *thread, *block, *threads, *blocks;
  unsigned char** shared_memory;
  char *shared_begin, *shared_end;
};
extern "C" __attribute__((visibility("default"))) SimulatorModule simulator_module;
SimulatorModule simulator_module = {&simulator_hooks, &threadIdx, &blockIdx, &blockDim, &gridDim, &shared_memory, __start_simulator_shared, __stop_simulator_shared};
namespace {
)shim";

}  // namespace simulator
