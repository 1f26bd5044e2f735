// Stands in for both libcuda and libcublasLt: devices with host memory and their own clock, on which work takes a known time. FAKE_GPU selects faults
// (faults.h); FAKE_GPU_COUNT, FAKE_GPU_FREE and FAKE_GPU_VERSION set the number of devices, their free bytes and the driver's version.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <new>
#include <set>
#include <string>

#include "faults.h"

namespace {

using fake::fault, fake::setting;

constexpr double kCopyGbs = 100, kUploadGbs = 20, kLaunchUs = 2, kMatmulGflops = 50000;

double now = 0;  // the device's clock, in seconds
std::map<unsigned long long, size_t> memory;
std::set<void*> pinned;
double capture_began = -1;  // negative: no stream is being recorded

struct Event {
  double when = -1;
};
struct Graph {
  double seconds = 0;
};
struct Operation {
  int compute = 0, transpose = 0;
};
struct Layout {
  int type = 0;
  uint64_t n = 0;
};

bool inside(unsigned long long pointer, size_t bytes) {
  auto block = memory.upper_bound(pointer);
  if (block == memory.begin()) return false;
  --block;
  return pointer + bytes <= block->first + block->second;
}

constexpr int kInvalid = 1, kOutOfMemory = 2, kIllegalAddress = 700;

}  // namespace

extern "C" {
int cuInit(unsigned) {
  fake::forget_calls();
  return fault("cuInit");
}
int cuDriverGetVersion(int* version) { return *version = int(setting("FAKE_GPU_VERSION", 12040)), fault("cuDriverGetVersion"); }
int cuDeviceGetCount(int* count) { return *count = int(setting("FAKE_GPU_COUNT", 1)), fault("cuDeviceGetCount"); }
int cuDeviceGet(int* device, int ordinal) { return *device = ordinal + 5, fault("cuDeviceGet"); }
int cuDeviceGetName(char* text, int size, int device) { return std::snprintf(text, size_t(size), "Fake GPU\t%d", device - 5), fault("cuDeviceGetName"); }
int cuDeviceGetAttribute(int* value, int which, int) { return *value = which == 75 ? int(setting("FAKE_GPU_MAJOR", 9)) : 0, fault("cuDeviceGetAttribute"); }
int cuGetErrorName(int code, const char** text) { return *text = code == kOutOfMemory ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_FAKE", code < 0; }
int cuGetErrorString(int code, const char** text) { return *text = code == kOutOfMemory ? "out of memory" : "a fault of the test", code < 0; }
int cuDevicePrimaryCtxRetain(void** context, int) { return *context = &now, fault("cuDevicePrimaryCtxRetain"); }
int cuDevicePrimaryCtxRelease_v2(int) { return fault("cuDevicePrimaryCtxRelease_v2"); }
int cuCtxSetCurrent(void* context) { return context != &now ? kInvalid : fault("cuCtxSetCurrent"); }
int cuMemGetInfo_v2(size_t* free, size_t* total) {
  *free = size_t(setting("FAKE_GPU_FREE", 256 << 20)), *total = size_t(512) << 20;
  return fault("cuMemGetInfo_v2");
}
int cuMemAlloc_v2(unsigned long long* pointer, size_t bytes) {
  if (const int code = fault("cuMemAlloc_v2")) return code;
  size_t held = 0;
  for (const auto& [at, size] : memory) held += size;
  if (held + bytes > size_t(setting("FAKE_GPU_FREE", 256 << 20))) return kOutOfMemory;
  void* block = std::malloc(bytes);
  return *pointer = reinterpret_cast<unsigned long long>(block), memory[*pointer] = bytes, 0;
}
int cuMemFree_v2(unsigned long long pointer) {
  if (memory.erase(pointer) == 0) return kInvalid;
  std::free(reinterpret_cast<void*>(pointer));
  return fault("cuMemFree_v2");
}
int cuMemHostAlloc(void** pointer, size_t bytes, unsigned) {
  if (const int code = fault("cuMemHostAlloc")) return code;
  return *pointer = std::malloc(bytes), pinned.insert(*pointer), 0;
}
int cuMemFreeHost(void* pointer) {
  if (pinned.erase(pointer) == 0) return kInvalid;
  return std::free(pointer), fault("cuMemFreeHost");
}
int cuMemcpyHtoDAsync_v2(unsigned long long to, const void* from, size_t bytes, void*) {
  if (!inside(to, bytes)) return kIllegalAddress;
  std::memcpy(reinterpret_cast<void*>(to), from, bytes);
  return now += double(bytes) / kUploadGbs * 1e-9, fault("cuMemcpyHtoDAsync_v2");
}
int cuMemcpyDtoHAsync_v2(void* to, unsigned long long from, size_t bytes, void*) {
  if (!inside(from, bytes)) return kIllegalAddress;
  std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
  return now += double(bytes) / kUploadGbs * 1e-9, fault("cuMemcpyDtoHAsync_v2");
}
int cuMemcpyDtoDAsync_v2(unsigned long long to, unsigned long long from, size_t bytes, void*) {
  if (!inside(to, bytes) || !inside(from, bytes)) return kIllegalAddress;
  return now += 2 * double(bytes) / kCopyGbs * 1e-9, fault("cuMemcpyDtoDAsync_v2");
}
int cuStreamCreate(void** stream, unsigned) { return *stream = new char, fault("cuStreamCreate"); }
int cuStreamDestroy_v2(char* stream) { return delete stream, fault("cuStreamDestroy_v2"); }
int cuStreamSynchronize(void*) { return fault("cuStreamSynchronize"); }
int cuEventCreate(Event** event, unsigned) { return *event = new Event, fault("cuEventCreate"); }
int cuEventDestroy_v2(Event* event) { return delete event, fault("cuEventDestroy_v2"); }
int cuEventRecord(Event* event, void*) { return event->when = now, fault("cuEventRecord"); }
int cuEventSynchronize(Event*) { return fault("cuEventSynchronize"); }
int cuEventElapsedTime(float* milliseconds, Event* begin, Event* end) {
  if (begin->when < 0 || end->when < 0) return kInvalid;
  return *milliseconds = float(1e3 * (end->when - begin->when)), fault("cuEventElapsedTime");
}
int cuModuleLoadData(void** module, const char* text) {
  const bool ptx = std::strstr(text, ".version") && std::strstr(text, ".target");
  return *module = &now, ptx ? fault("cuModuleLoadData") : 218;
}
int cuModuleUnload(void*) { return fault("cuModuleUnload"); }
int cuModuleGetFunction(const char** function, void*, const char* name) {
  static std::set<std::string> names;
  return *function = names.insert(name).first->c_str(), fault("cuModuleGetFunction");
}
int cuLaunchKernel(const char* function, unsigned blocks, unsigned, unsigned, unsigned threads, unsigned, unsigned, unsigned, void*, void** params, void**) {
  if (blocks == 0 || threads == 0 || threads > 1024) return kInvalid;
  auto pointer = [&](int i) { return *static_cast<unsigned long long*>(params[i]); };
  now += kLaunchUs * 1e-6;
  if (std::strcmp(function, "probe_copy") == 0) {
    const size_t bytes = size_t(blocks) * 16384;
    if (!inside(pointer(0), bytes) || !inside(pointer(1), bytes)) return kIllegalAddress;
    now += 2 * double(bytes) / kCopyGbs * 1e-9;
  }
  if (std::strcmp(function, "probe_fill") == 0 && !inside(pointer(0), size_t(blocks) * threads * 4)) return kIllegalAddress;
  return fault("cuLaunchKernel");
}
int cuFuncSetAttribute(const char*, int, int) { return fault("cuFuncSetAttribute"); }
int cuFuncGetAttribute(int* value, int, const char*) { return *value = 0, fault("cuFuncGetAttribute"); }
int cuMemsetD8Async(unsigned long long to, unsigned char value, size_t bytes, void*) {
  if (!inside(to, bytes)) return kIllegalAddress;
  std::memset(reinterpret_cast<void*>(to), value, bytes);
  return now += double(bytes) / kCopyGbs * 1e-9, fault("cuMemsetD8Async");
}
int cuStreamWaitEvent(void*, Event*, unsigned) { return fault("cuStreamWaitEvent"); }
int cuEventQuery(Event*) { return fault("cuEventQuery"); }
// Recorded work takes time only when the graph runs.
int cuStreamBeginCapture_v2(void*, int) {
  if (capture_began >= 0) return kInvalid;
  return capture_began = now, fault("cuStreamBeginCapture_v2");
}
int cuStreamEndCapture(void*, Graph** graph) {
  if (capture_began < 0) return kInvalid;
  *graph = new Graph{now - capture_began};
  now = capture_began, capture_began = -1;
  return fault("cuStreamEndCapture");
}
int cuGraphInstantiateWithFlags(Graph** run, const Graph* graph, unsigned long long) { return *run = new Graph(*graph), fault("cuGraphInstantiateWithFlags"); }
int cuGraphDestroy(Graph* graph) { return delete graph, fault("cuGraphDestroy"); }
int cuGraphLaunch(const Graph* run, void*) { return now += run->seconds, fault("cuGraphLaunch"); }
int cuGraphExecDestroy(Graph* run) { return delete run, fault("cuGraphExecDestroy"); }

int cublasLtCreate(void** handle) { return *handle = &now, fault("cublasLtCreate"); }
int cublasLtDestroy(void*) { return 0; }
const char* cublasLtGetStatusName(int) { return "CUBLAS_STATUS_FAKE"; }
int cublasLtMatmulDescCreate(Operation** operation, int compute, int) { return *operation = new Operation{compute, 0}, 0; }
int cublasLtMatmulDescDestroy(Operation* operation) { return delete operation, 0; }
int cublasLtMatmulDescSetAttribute(Operation* operation, int which, const int* value, size_t size) {
  if (which != 3 || size != sizeof *value) return 7;
  return operation->transpose = *value, 0;
}
int cublasLtMatrixLayoutCreate(Layout** layout, int type, uint64_t rows, uint64_t columns, int64_t stride) {
  if (rows != columns || int64_t(rows) != stride) return 7;
  return *layout = new Layout{type, rows}, 0;
}
int cublasLtMatrixLayoutSetAttribute(Layout*, int, const void*, size_t) { return 0; }
int cublasLtMatrixLayoutDestroy(Layout* layout) { return delete layout, 0; }
int cublasLtMatmulPreferenceCreate(void** preference) { return *preference = new char, 0; }
int cublasLtMatmulPreferenceDestroy(char* preference) { return delete preference, 0; }
int cublasLtMatmulPreferenceSetAttribute(void*, int which, const void*, size_t size) { return which == 1 && size == 8 ? 0 : 7; }
int cublasLtMatmulAlgoGetHeuristic(void*, Operation*, Layout*, Layout*, Layout*, Layout*, void*, int most, unsigned char* results, int* count) {
  constexpr size_t kSize = 96, kState = 72;
  *count = most < 2 ? most : 2;
  std::memset(results, 0, kSize * size_t(most));
  results[0] = uint8_t(most == 1 ? 2 : 1);  // 1 is slower by half; a single proposal is the better one
  if (*count > 1) results[kSize] = 2;
  if (most > 2) results[2 * kSize + kState] = 15, ++*count;  // one that fails
  return fault("cublasLtMatmulAlgoGetHeuristic");
}
int cublasLtMatmulAlgoConfigGetAttribute(const void*, int, void*, size_t, size_t*) { return 7; }
int cublasLtMatmul(void*, Operation* operation, const float*, unsigned long long a, Layout* layout, unsigned long long b, Layout*, const float*,
                   unsigned long long, Layout*, unsigned long long d, Layout*, const unsigned char* algorithm, unsigned long long workspace, size_t bytes,
                   void*) {
  const size_t matrix = layout->n * layout->n * (layout->type == 0 ? 4 : 2);
  if (!inside(a, matrix) || !inside(b, matrix) || !inside(d, matrix) || !inside(workspace, bytes) || algorithm[0] == 0) return 7;
  double gflops = kMatmulGflops * (layout->type != 0 ? 8 : operation->compute == 77 ? 4 : 1);
  if (algorithm[0] == 1) gflops /= 2;
  if (!operation->transpose) gflops /= 1.25;
  const double n = double(layout->n);
  now += 2 * n * n * n / gflops * 1e-9;
  return fault("cublasLtMatmul");
}
}
