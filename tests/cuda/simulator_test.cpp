// The simulated GPU itself: small kernels with known results, and wrong ones that it must detect.
#include "support/simulator.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "drivers/cublas_lt.h"
#include "drivers/cuda_driver.h"
#include "support/errors.h"

namespace ridge::cuda {
namespace {

using test::Variable;

class SimulatedGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (!test::simulator_works()) GTEST_SKIP() << "g++ is not installed";
    start();
  }

  void start() {  // again, if the device was broken
    modules.clear();
    stream.reset(), context.reset();
    driver = std::make_unique<Driver>();
    context = use_device(*driver, 0);
    stream = make_stream(*driver);
  }

  // Like NVRTC: returns machine code, or the compiler's messages.
  std::string compile(const std::string& text, std::string* log = nullptr, std::vector<const char*> options = {"--gpu-architecture=sm_86"}) {
    const DynamicLibrary& library = driver->library();
    using Program = struct Tag*;
    int (*create)(Program*, const char*, const char*, int, const char* const*, const char* const*) = nullptr;
    int (*build)(Program, int, const char* const*) = nullptr;
    int (*size)(Program, size_t*) = nullptr;
    int (*bytes)(Program, char*) = nullptr;
    int (*log_size)(Program, size_t*) = nullptr;
    int (*read_log)(Program, char*) = nullptr;
    int (*destroy)(Program*) = nullptr;
    EXPECT_TRUE(library.bind(create, "nvrtcCreateProgram") && library.bind(build, "nvrtcCompileProgram") && library.bind(size, "nvrtcGetCUBINSize") &&
                library.bind(bytes, "nvrtcGetCUBIN") && library.bind(log_size, "nvrtcGetProgramLogSize") && library.bind(read_log, "nvrtcGetProgramLog") &&
                library.bind(destroy, "nvrtcDestroyProgram"));
    Program program = nullptr;
    create(&program, text.c_str(), "text.cu", 0, nullptr, nullptr);
    const int code = build(program, int(options.size()), options.data());
    size_t count = 0;
    log_size(program, &count);
    std::string said(count, '\0');
    read_log(program, said.data());
    if (log)
      *log = said.c_str();
    else
      EXPECT_EQ(code, 0) << said;
    std::string cubin;
    if (code == 0) {
      size(program, &count);
      cubin.resize(count);
      bytes(program, cubin.data());
    }
    destroy(&program);
    return cubin;
  }

  FunctionHandle load(const std::string& text, const char* name) {
    const std::string cubin = compile(text);
    modules.push_back(load_module(*driver, cubin.c_str()));
    return function_of(*driver, modules.back(), name);
  }

  template <class T>
  DeviceMemory put(const std::vector<T>& values) {
    DeviceMemory memory = allocate(*driver, int64_t(values.size() * sizeof(T)));
    driver->copy_to_device(memory.get(), values.data(), values.size() * sizeof(T), stream.get());
    return memory;
  }
  template <class T>
  std::vector<T> get(const DeviceMemory& memory, size_t count) {
    std::vector<T> values(count);
    driver->copy_to_host(values.data(), memory.get(), count * sizeof(T), stream.get());
    driver->stream_wait(stream.get());
    return values;
  }
  template <class... Args>
  void launch(FunctionHandle function, unsigned blocks, unsigned threads, unsigned shared, Args... args) {
    void* pointers[] = {&args..., nullptr};
    driver->launch(function, blocks, 1, 1, threads, 1, 1, shared, stream.get(), pointers, nullptr);
  }
  // The code that the device returns from now on; 0: it works.
  int state() { return driver->stream_wait.quietly(stream.get()); }
  int calls(const char* call) {
    int (*count)(const char*) = nullptr;
    return driver->library().bind(count, "simulatorCalls") ? count(call) : -1;
  }

  const test::Simulator simulator;
  std::unique_ptr<Driver> driver;
  Context context;
  Stream stream;
  std::vector<Module> modules;
};

constexpr const char kSum[] = R"(
// sums in a block: shuffles, then one warp over the warps' sums
extern "C" __global__ void __launch_bounds__(256) sum(const float* __restrict__ x, float* y, int n) {
  __shared__ float parts[32];
  float s = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) s += x[i];
  for (int d = 16; d > 0; d /= 2) s += __shfl_xor_sync(0xffffffffu, s, d);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = s;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  s = threadIdx.x < blockDim.x / 32 ? parts[threadIdx.x] : 0.0f;
  for (int d = 16; d > 0; d /= 2) s += __shfl_down_sync(0xffffffffu, s, d);
  if (threadIdx.x == 0) y[blockIdx.x] = s;
}
)";

TEST_F(SimulatedGpu, SumsInWarpsAndBlocks) {
  const FunctionHandle sum = load(kSum, "sum");
  std::vector<float> x(1000);
  std::iota(x.begin(), x.end(), 1.f);
  const DeviceMemory from = put(x), to = put(std::vector<float>(3));
  for (const char* order : {"forward", "backward", "random7"}) {
    const Variable ordered("SIMULATED_GPU_ORDER", order);
    launch(sum, 3, 256, 0, from.get(), to.get(), 1000);
    const auto parts = get<float>(to, 3);
    EXPECT_EQ(parts[0] + parts[1] + parts[2], 500500.f) << order;
  }
  // More threads than the kernel was compiled for.
  DevicePointer a = from.get(), b = to.get();
  int n = 1;
  void* args[] = {&a, &b, &n};
  EXPECT_EQ(driver->launch.quietly(sum, 1, 1, 1, 512, 1, 1, 0, stream.get(), args, nullptr), 701);
  EXPECT_EQ(state(), 0);
}

TEST_F(SimulatedGpu, WarpsVoteShuffleAndExchange) {
  const FunctionHandle f = load(R"(
    struct Pair { int a; float b; };
    extern "C" __global__ void warp(int* y) {
      const int lane = threadIdx.x & 31;
      int* out = y + threadIdx.x * 8;
      out[0] = __shfl_sync(0xffffffffu, lane * 10, 5);
      out[1] = __shfl_up_sync(0xffffffffu, lane, 1);
      out[2] = __shfl_xor_sync(0xffffffffu, lane, 3, 8);
      out[3] = (int)__ballot_sync(0xffffffffu, lane % 3 == 0);
      out[4] = lane < 16 ? __shfl_sync(0x0000ffffu, lane, 15) : __shfl_sync(0xffff0000u, lane, 16);
      Pair mine = {lane * lane, 0.5f}, all[32];
      simulator_exchange(mine, all);
      out[5] = 0;
      for (int i = 0; i < 32; ++i) out[5] += all[i].a;
      out[6] = (int)__match_any_sync(0xffffffffu, lane / 4);
      out[7] = __syncthreads_count(threadIdx.x < 40);
    })",
                                "warp");
  const DeviceMemory to = put(std::vector<int>(64 * 8));
  launch(f, 1, 64, 0, to.get());
  const auto y = get<int>(to, 64 * 8);
  int ballot = 0;
  for (int i = 0; i < 32; i += 3) ballot |= 1 << i;
  for (int t = 0; t < 64; ++t) {
    const int lane = t % 32;
    const std::vector<int> want = {50, lane ? lane - 1 : 0, lane ^ 3, ballot, lane < 16 ? 15 : 16, 31 * 32 * 63 / 6, int(0xfu << (lane / 4 * 4)), 40};
    EXPECT_EQ(std::vector<int>(y.begin() + t * 8, y.begin() + t * 8 + 8), want) << t;
  }
}

TEST_F(SimulatedGpu, BarriersIgnoreFinishedThreads) {
  const FunctionHandle f = load(R"(
    extern "C" __global__ void early(int* y) {
      if (threadIdx.x % 2) return;
      __syncthreads();
      const int both = __shfl_xor_sync(0x55555555u, (int)threadIdx.x, 2);
      __syncthreads();
      y[blockIdx.x * blockDim.x + threadIdx.x] = both;
    })",
                                "early");
  const DeviceMemory to = put(std::vector<int>(200, -1));
  launch(f, 2, 96, 0, to.get());
  const auto y = get<int>(to, 200);
  for (int i = 0; i < 192; ++i) EXPECT_EQ(y[size_t(i)], i % 2 ? -1 : (i % 96 ^ 2)) << i;
}

TEST_F(SimulatedGpu, CountsWithAtomicsInSharedMemoryOfTheLaunch) {
  const FunctionHandle f = load(R"(
    struct Sizes { long long n; int bins; };
    extern "C" __global__ void histogram(const unsigned char* x, unsigned* y, const __grid_constant__ Sizes s) {
      extern __shared__ __align__(128) unsigned char shared_memory[];
      unsigned* bins = reinterpret_cast<unsigned*>(shared_memory);
      for (int i = threadIdx.x; i < s.bins; i += blockDim.x) bins[i] = 0u;
      __syncthreads();
      for (long long i = threadIdx.x; i < s.n; i += blockDim.x) atomicAdd(&bins[x[i] % s.bins], 1u);
      __syncthreads();
      for (int i = threadIdx.x; i < s.bins; i += blockDim.x) y[i] = bins[i];
    })",
                                "histogram");
  struct {
    long long n = 1000;
    int bins = 20000;
  } sizes;
  std::vector<unsigned char> x(1000);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<unsigned char>(i % 7);
  const DeviceMemory from = put(x), to = put(std::vector<unsigned>(20000));
  DevicePointer a = from.get(), b = to.get();
  void* args[] = {&a, &b, &sizes};
  // More than 48 KiB must be requested explicitly.
  EXPECT_EQ(driver->launch.quietly(f, 1, 1, 1, 128, 1, 1, 80000, stream.get(), args, nullptr), 1);
  constexpr int kMaxDynamic = 8;
  EXPECT_EQ(driver->function_set.quietly(f, kMaxDynamic, 120000), 1);
  driver->function_set(f, kMaxDynamic, 80000);
  driver->launch(f, 1, 1, 1, 128, 1, 1, 80000, stream.get(), args, nullptr);
  const auto y = get<unsigned>(to, 20000);
  for (unsigned i = 0; i < 20000; ++i) EXPECT_EQ(y[i], i < 6 ? 143u : i == 6 ? 142u : 0u);
  // A write out of bounds is detected.
  sizes.bins = 20001;
  driver->launch(f, 1, 1, 1, 128, 1, 1, 80000, stream.get(), args, nullptr);
  EXPECT_EQ(state(), 700);
}

TEST_F(SimulatedGpu, BlocksAndThreadsHaveThreeAxes) {
  const FunctionHandle f = load(R"(
    extern "C" __global__ void place(int* y) {
      const int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
      const int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
      atomicAdd(&y[block * 24 + thread], block * 100 + thread + 1);
    })",
                                "place");
  const DeviceMemory to = put(std::vector<int>(24 * 24));
  DevicePointer a = to.get();
  void* args[] = {&a};
  driver->launch(f, 4, 3, 2, 2, 3, 4, 0, stream.get(), args, nullptr);
  const auto y = get<int>(to, 24 * 24);
  for (int i = 0; i < 24 * 24; ++i) EXPECT_EQ(y[size_t(i)], i / 24 * 100 + i % 24 + 1);
}

TEST_F(SimulatedGpu, ConsecutiveModulesAreIndependent) {
  const DeviceMemory to = allocate(*driver, 4);
  for (int i = 0; i < 3; ++i) {
    const FunctionHandle f = load("extern \"C\" __global__ void number(int* y) { *y = " + std::to_string(i) + "; }", "number");
    launch(f, 1, 1, 0, to.get());
    EXPECT_EQ(get<int>(to, 1)[0], i);
    if (i == 1) modules.clear();
  }
}

constexpr const char kStep[] = R"(
extern "C" __global__ void step(float* x, float by, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] = x[i] * 2.0f + by;
}
)";

TEST_F(SimulatedGpu, RecordsAndReplays) {
  const FunctionHandle f = load(kStep, "step");
  const DeviceMemory x = allocate(*driver, 400), y = allocate(*driver, 400);
  const Stream other = make_stream(*driver);
  const Event forked = make_event(*driver), joined = make_event(*driver);
  std::vector<float> host(100, 1.f), seen(100);
  driver->capture_begin(stream.get(), 0);
  driver->copy_to_device(x.get(), host.data(), 400, stream.get());
  launch(f, 1, 128, 0, x.get(), 3.f, 100);
  driver->event_record(forked.get(), stream.get());
  driver->stream_wait_event(other.get(), forked.get(), 0);
  driver->fill_bytes(y.get(), 0, 400, other.get());
  driver->event_record(joined.get(), other.get());
  driver->stream_wait_event(stream.get(), joined.get(), 0);
  driver->copy_on_device(y.get(), x.get(), 200, stream.get());
  driver->copy_to_host(seen.data(), y.get(), 400, stream.get());
  GraphHandle graph = nullptr;
  driver->capture_end(stream.get(), &graph);
  EXPECT_EQ(seen[0], 0.f);  // nothing has run
  GraphRunHandle run = nullptr;
  driver->graph_instantiate(&run, graph, 0);
  driver->graph_destroy(graph);
  for (float value : {1.f, 5.f}) {
    host.assign(100, value);
    const int launches = calls("cuLaunchKernel");
    driver->graph_launch(run, stream.get());
    driver->stream_wait(stream.get());
    EXPECT_EQ(seen[0], 2 * value + 3);
    EXPECT_EQ(seen[49], 2 * value + 3);
    EXPECT_EQ(seen[50], 0.f);
    EXPECT_EQ(calls("cuLaunchKernel"), launches);
  }
  driver->graph_run_destroy(run);
}

TEST_F(SimulatedGpu, RejectsCallsForbiddenWhileRecording) {
  GraphHandle graph = nullptr;
  driver->capture_begin(stream.get(), 0);
  DevicePointer p = 0;
  EXPECT_EQ(driver->memory_alloc.quietly(&p, 64), 900);
  EXPECT_EQ(driver->capture_end.quietly(stream.get(), &graph), 901);
  driver->capture_begin(stream.get(), 0);
  EXPECT_EQ(driver->stream_wait.quietly(stream.get()), 900);
  EXPECT_EQ(driver->capture_end.quietly(stream.get(), &graph), 901);
  // Work on a second stream that nothing waits for.
  const DeviceMemory x = allocate(*driver, 64);
  const Stream other = make_stream(*driver);
  const Event event = make_event(*driver);
  driver->capture_begin(stream.get(), 2);
  driver->event_record(event.get(), stream.get());
  driver->stream_wait_event(other.get(), event.get(), 0);
  driver->fill_bytes(x.get(), 0, 64, other.get());
  EXPECT_EQ(driver->capture_end.quietly(stream.get(), &graph), 904);
}

struct Wrong {
  const char *text, *says;
};

TEST_F(SimulatedGpu, FindsKernelErrors) {
  for (const auto& [text, says] : {Wrong{"x[threadIdx.x + 1] = 1;", "behind an allocation of 120 bytes"},
                                   {"x[-1] = 1;", "before an allocation of 120 bytes"},
                                   {"x[threadIdx.x * 100000000ll] = 1;", "outside of all memory"},
                                   {"x[0] = *(int*)8;", "outside of all memory"},
                                   {"x[0] = x[100];", "outside of all memory"},
                                   {"if (threadIdx.x < 7) { __syncthreads(); x[0] = 1; __syncthreads(); } else { __shfl_sync(0xffffffffu, 1, 1); }", "in vain"},
                                   {"__shfl_sync(threadIdx.x < 8 ? 0xffffffffu : 0x3fffffffu, 1, 1);", "different operations or masks"},
                                   {"__shfl_sync(1u, 1, 1);", "does not name it"},
                                   {"if (threadIdx.x == 3) __trap();", "__trap() was called in thread (3, 0, 0) of block (0, 0, 0)"}}) {
    SCOPED_TRACE(text);
    start();
    const FunctionHandle f = load(std::string("extern \"C\" __global__ void wrong(int* x) { ") + text + " }", "wrong");
    const DeviceMemory x = allocate(*driver, 120);
    testing::internal::CaptureStderr();
    launch(f, 1, 30, 0, x.get());
    EXPECT_EQ(state(), 700);
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_NE(said.find("kernel wrong: "), std::string::npos) << said;
    EXPECT_NE(said.find(says), std::string::npos) << said;
  }
}

TEST_F(SimulatedGpu, AMissingBarrierIsFoundByReordering) {
  const FunctionHandle f = load(R"(
    extern "C" __global__ void race(int* y) {
      __shared__ int last;
      if (threadIdx.x == 0) last = 7;
      y[threadIdx.x] = last;
    })",
                                "race");
  const DeviceMemory to = allocate(*driver, 128);
  launch(f, 1, 32, 0, to.get());
  EXPECT_EQ(get<int>(to, 32)[31], 7);
  const Variable backward("SIMULATED_GPU_ORDER", "backward");
  launch(f, 1, 32, 0, to.get());
  EXPECT_EQ(get<int>(to, 32)[31], -1);
}

TEST_F(SimulatedGpu, FindsRacesOnRequest) {
  const Variable check("SIMULATED_GPU_CHECK", "1");
  for (const auto& [text, says] : {Wrong{"s[t] = t; __syncthreads(); x[t] = s[63 - t];", ""},
                                   {"s[t] = t; x[t] = s[63 - t];", "race in shared memory"},
                                   {"s[t] = t; __syncwarp(); x[t] = s[t ^ 1];", ""},
                                   {"s[t] = t; __syncwarp(); x[t] = s[t ^ 32];", "race in shared memory"},
                                   {"s[t] = t; __shfl_sync(0xffffffffu, 1, 1); x[t] = s[t ^ 31];", ""},
                                   {"s[t] = t; __syncthreads(); int y = s[t ^ 1]; s[t] = y;", "race in shared memory"},
                                   {"s[t] = t; __syncthreads(); int y = s[t ^ 1]; __syncthreads(); s[t] = y;", ""},
                                   {"x[t / 2] = 1;", ""},
                                   {"x[t / 2] = t;", "race in the device's memory"},
                                   {"if (t == 0) x[blockIdx.x] = 1;", ""},
                                   {"if (t == 0) x[0] = 1;", ""},
                                   {"if (t == 0) x[0] = blockIdx.x;", "race in the device's memory"},
                                   {"if (t == 0) x[blockIdx.x] = x[1 - blockIdx.x];", "race in the device's memory"},
                                   {"atomicAdd(&x[0], 1);", ""}}) {
    SCOPED_TRACE(text);
    start();
    const FunctionHandle f =
        load(std::string("extern \"C\" __global__ void racy(int* x) { __shared__ int s[64]; const int t = threadIdx.x; x += ") +
                 (std::string(text).find("blockIdx") != std::string::npos || std::string(text).find("x[0]") != std::string::npos ? "0" : "64 * blockIdx.x") +
                 "; " + text + " }",
             "racy");
    const DeviceMemory x = allocate(*driver, 4 * 128);
    testing::internal::CaptureStderr();
    launch(f, 2, 64, 0, x.get());
    EXPECT_EQ(state(), *says ? 700 : 0);
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_NE(said.find(says), std::string::npos) << said;
  }
  start();
}

TEST_F(SimulatedGpu, RejectsTextsThatDoNotCompile) {
  std::string log;
  EXPECT_EQ(compile("extern \"C\" __global__ void f(int* x) { y[0] = 1; }", &log), "");
  EXPECT_NE(log.find("error"), std::string::npos) << log;
  EXPECT_EQ(compile("#include <cmath>\n", &log), "");
  EXPECT_EQ(compile("extern \"C\" __global__ void f(float* x) { atomicAdd(x, 1.0f); }", &log), "");  // order not deterministic
  EXPECT_EQ(compile("", &log, {"--gpu-architecture=sm_61"}), "");
  EXPECT_EQ(compile("", &log, {"--wat"}), "");
  EXPECT_NE(log.find("--wat"), std::string::npos) << log;
}

TEST_F(SimulatedGpu, FailsOnRequest) {
  const Variable broken("FAKE_GPU", "cuMemAlloc_v2=2@2,nvrtcCompileProgram=6");
  allocate(*driver, 64);
  EXPECT_TRUE(test::has(test::error_of([&] { allocate(*driver, 64); }), "out of memory"));
  std::string log;
  EXPECT_EQ(compile(kSum, &log), "");
}

TEST_F(SimulatedGpu, CountsItsMemory) {
  size_t before = 0, after = 0, total = 0;
  driver->memory_info(&before, &total);
  {
    const DeviceMemory x = allocate(*driver, 1 << 20);
    driver->memory_info(&after, &total);
    EXPECT_EQ(before - after, 1u << 20);
    EXPECT_EQ(total, 4ull << 30);
    EXPECT_TRUE(test::has(test::error_of([&] { allocate(*driver, int64_t(4) << 30); }), "out of memory"));
  }
  driver->memory_info(&after, &total);
  EXPECT_EQ(before, after);
}

TEST_F(SimulatedGpu, MultipliesLikeCublasLt) {
  const CublasLt lt(library_search(driver->version()));
  constexpr int kN = 5;
  std::vector<float> a(25), b(25);
  for (int i = 0; i < 25; ++i) a[size_t(i)] = float(i % 7 - 3), b[size_t(i)] = float(i % 5 + 1);
  const DeviceMemory pa = put(a), pb = put(b), pd = put(std::vector<float>(25)), workspace = allocate(*driver, 4 << 20);
  for (const bool transposed : {false, true}) {
    const SquareMatmul matmul(lt, Precision::fp32, kN, transposed, 4 << 20);
    const auto algorithms = matmul.algorithms(8);
    ASSERT_EQ(algorithms.size(), 4u);
    for (const LtHeuristic& h : algorithms) {
      matmul.run(h.algorithm, pa.get(), pb.get(), pd.get(), workspace.get(), stream.get());
      const auto d = get<float>(pd, 25);
      for (int i = 0; i < kN; ++i)
        for (int j = 0; j < kN; ++j) {
          float want = 0;
          for (int k = 0; k < kN; ++k) want += a[size_t(transposed ? k + i * kN : i + k * kN)] * b[size_t(k + j * kN)];
          EXPECT_EQ(d[size_t(i + j * kN)], want);
        }
    }
  }
}

}  // namespace
}  // namespace ridge::cuda
