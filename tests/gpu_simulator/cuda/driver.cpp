// The simulator's driver API. Environment: SIMULATED_GPU_CC (8.6), SIMULATED_GPU_PROCESSORS (4), SIMULATED_GPU_MEMORY (bytes), SIMULATED_GPU_ORDER (forward,
// backward, randomN: the order in which threads start), SIMULATED_GPU_CHECK (checker.h) and FAKE_GPU (faults.h).
#include <dlfcn.h>
#include <elf.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "../../cuda/fake_driver/faults.h"
#include "../blocks.h"
#include "device.h"

namespace simulator {

struct Capture {
  struct Piece {
    double seconds;
    Work work;
  };
  Stream* origin = nullptr;
  int mode = 0;
  bool invalid = false;
  std::vector<Piece> pieces;
  std::set<Stream*> members;
  std::map<Stream*, size_t> joined;  // how much of a member's work others wait for
};

namespace {

using fake::fault, fake::setting;
using Lock = std::lock_guard<std::recursive_mutex>;

// The device's clock runs fast, so that code repeating work until enough time has passed needs few repetitions.
constexpr double kLaunchSeconds = 2e-4, kThreadSeconds = 1e-8, kBytesPerSecond = 10e9;
constexpr size_t kContextBytes = 32 << 20;

struct Function;
struct Module {
  void* library = nullptr;
  const ModuleTable* table = nullptr;
  std::map<std::string, std::unique_ptr<Function>> functions;
  size_t bytes = 0;
};
struct Function {
  std::string name;
  const Entry* entry = nullptr;
  Module* module = nullptr;
  int most_dynamic = 48 << 10;
};
struct Event {
  double when = -1;
  Capture* capture = nullptr;
  Stream* stream = nullptr;
  size_t recorded = 0;
};
struct Graph {
  std::vector<Capture::Piece> pieces;
};

std::recursive_mutex mutex;
double now = 0;
size_t held = 0;  // allocations and modules
int contexts = 0;
int broken = 0;  // the code that all calls return from now on
Stream default_stream;
std::set<Capture*> captures;
char context_tag;

int major() {
  const char* text = std::getenv("SIMULATED_GPU_CC");
  return text ? std::atoi(text) : 8;
}
int minor() {
  const char* text = std::getenv("SIMULATED_GPU_CC");
  const char* dot = text ? std::strchr(text, '.') : nullptr;
  return text ? (dot ? std::atoi(dot + 1) : 0) : 6;
}
int most_shared() {  // per block, in bytes
  const int chip = 10 * major() + minor();
  return chip < 80 ? 65536 : chip == 80 || chip == 87 ? 166912 : chip < 90 ? 101376 : 232448;
}
size_t total_bytes() { return size_t(setting("SIMULATED_GPU_MEMORY", 4ll << 30)); }

// Start of every call: returns the fault that a test requested, then the one that a kernel caused.
int begin(const char* call) {
  if (const int code = fault(call)) return code;
  return broken;
}

// Calls that are not allowed while recording.
int unsafe() {
  for (Capture* capture : captures)
    if (capture->mode != 2) return capture->invalid = true, kCaptureUnsupported;
  return 0;
}

Stream* stream_of(Stream* stream) { return stream ? stream : &default_stream; }

int launch_now(const Launch& launch) {
  const std::string words = run(launch);
  if (!words.empty()) return break_down(kIllegalAddress, words);
  const std::string beside = check_memory();
  return beside.empty() ? 0 : break_down(kIllegalAddress, "kernel " + launch.name + ": " + beside);
}

// Arguments are copied at launch.
struct Arguments {
  std::vector<char> bytes;
  std::vector<size_t> places;
  Arguments(const Entry& entry, void** args) {
    size_t size = 0;
    for (int i = 0; i < entry.count; ++i) places.push_back(size), size += (size_t(entry.sizes[i]) + 63) / 64 * 64;
    bytes.resize(size + 64);
    for (int i = 0; i < entry.count; ++i) std::memcpy(at(size_t(i)), args[i], size_t(entry.sizes[i]));
  }
  Arguments(const Arguments& other) = delete;
  char* at(size_t i) { return bytes.data() + (64 - reinterpret_cast<uintptr_t>(bytes.data()) % 64) % 64 + places[i]; }
};

}  // namespace

std::recursive_mutex& device_mutex() { return mutex; }

int enqueue(Stream* given, double seconds, Work work) {
  Stream* stream = stream_of(given);
  if (stream->capture) {
    stream->capture->pieces.push_back({seconds, std::move(work)});
    stream->recorded = stream->capture->pieces.size();
    return 0;
  }
  now += seconds;
  work();  // its error is returned by the next call
  return 0;
}

int break_down(int code, const std::string& words) {
  std::fprintf(stderr, "simulated GPU: %s\n", words.c_str());
  if (!broken) broken = code;
  return code;
}

}  // namespace simulator

using namespace simulator;

extern "C" {
// How often a call was made since cuInit.
int simulatorCalls(const char* call) {
  const std::lock_guard lock(fake::calls_mutex);
  const auto found = fake::calls.find(call);
  return found == fake::calls.end() ? 0 : found->second;
}

int64_t simulatorPinnedBytes() {
  const Lock lock(mutex);
  return int64_t(pinned_bytes());
}

int cuInit(unsigned) {
  const Lock lock(mutex);
  fake::forget_calls();
  broken = 0;
  return fault("cuInit");
}
int cuDriverGetVersion(int* version) { return *version = int(setting("FAKE_GPU_VERSION", 13000)), fault("cuDriverGetVersion"); }
int cuDeviceGetCount(int* count) { return *count = int(setting("FAKE_GPU_COUNT", 1)), fault("cuDeviceGetCount"); }
int cuDeviceGet(int* device, int ordinal) { return *device = ordinal, fault("cuDeviceGet"); }
int cuDeviceGetName(char* text, int size, int) { return std::snprintf(text, size_t(size), "Simulated GPU"), fault("cuDeviceGetName"); }
int cuDeviceTotalMem_v2(size_t* bytes, int) { return *bytes = total_bytes(), fault("cuDeviceTotalMem_v2"); }
int cuDeviceGetAttribute(int* value, int which, int) {
  switch (which) {
    case 1: *value = 1024; break;  // threads per block
    case 2:
    case 3: *value = 1024; break;        // along x and y
    case 4: *value = 64; break;          // along z
    case 5: *value = 2147483647; break;  // blocks along x
    case 6:
    case 7: *value = 65535; break;     // along y and z
    case 8: *value = 48 << 10; break;  // default shared memory limit
    case 10: *value = 32; break;       // threads per warp
    case 12:
    case 82: *value = 65536; break;                                        // registers
    case 13: *value = 1000000; break;                                      // kHz
    case 16: *value = int(setting("SIMULATED_GPU_PROCESSORS", 4)); break;  //
    case 36: *value = 1000000; break;                                      // memory clock, kHz
    case 37: *value = 384; break;                                          // memory bus width, bits
    case 38: *value = 1 << 20; break;                                      // L2 bytes
    case 39: *value = major() == 7 ? 1024 : major() == 8 && minor() != 0 ? 1536 : 2048; break;
    case 75: *value = major(); break;
    case 76: *value = minor(); break;
    case 81: *value = most_shared() + 1024; break;  // per multiprocessor
    case 97: *value = most_shared(); break;
    case 106: *value = 16; break;  // blocks per multiprocessor
    default: *value = 0;
  }
  return fault("cuDeviceGetAttribute");
}
int cuGetErrorName(int code, const char** text) {
  *text = code == kOutOfMemory ? "CUDA_ERROR_OUT_OF_MEMORY" : code == kIllegalAddress ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR_SIMULATED";
  return code < 0;
}
int cuGetErrorString(int code, const char** text) {
  *text = code == kOutOfMemory ? "out of memory" : code == kIllegalAddress ? "a kernel went wrong in the simulator" : "an error of the simulator";
  return code < 0;
}
int cuDevicePrimaryCtxRetain(void** context, int) {
  const Lock lock(mutex);
  if (const int code = begin("cuDevicePrimaryCtxRetain")) return code;
  return *context = &context_tag, ++contexts, 0;
}
int cuDevicePrimaryCtxRelease_v2(int) {
  const Lock lock(mutex);
  if (contexts > 0 && --contexts == 0) broken = 0;
  return fault("cuDevicePrimaryCtxRelease_v2");
}
int cuCtxSetCurrent(void* context) { return context && context != &context_tag ? kInvalidContext : fault("cuCtxSetCurrent"); }
int cuMemGetInfo_v2(size_t* free, size_t* total) {
  const Lock lock(mutex);
  const size_t used = held + (contexts ? kContextBytes : 0);
  *total = total_bytes(), *free = used < *total ? *total - used : 0;
  return begin("cuMemGetInfo_v2");
}
int cuMemAlloc_v2(uint64_t* pointer, size_t bytes) {
  const Lock lock(mutex);
  if (const int code = begin("cuMemAlloc_v2")) return code;
  if (const int code = unsafe()) return code;
  if (bytes == 0) return kInvalid;
  if (held + bytes + kContextBytes > total_bytes()) return kOutOfMemory;
  *pointer = allocate_memory(bytes);
  if (!*pointer) return kOutOfMemory;
  held += bytes;
  return 0;
}
int cuMemFree_v2(uint64_t pointer) {
  const Lock lock(mutex);
  const int code = begin("cuMemFree_v2");
  const size_t bytes = size_of_memory(pointer);
  if (bytes == 0) return pointer == 0 ? code : kInvalid;
  if (!code)
    if (const int refused = unsafe()) return refused;
  if (const std::string words = release_memory(pointer); !words.empty() && !broken) break_down(kIllegalAddress, words);
  held -= bytes;
  return code;
}
int cuMemHostAlloc(void** pointer, size_t bytes, unsigned) {
  const Lock lock(mutex);
  if (const int code = begin("cuMemHostAlloc")) return code;
  if (const int code = unsafe()) return code;
  return *pointer = allocate_pinned(bytes), *pointer ? 0 : kOutOfMemory;
}
int cuMemFreeHost(void* pointer) {
  const Lock lock(mutex);
  return release_pinned(pointer) ? begin("cuMemFreeHost") : kInvalid;
}
int cuMemHostGetDevicePointer_v2(uint64_t* pointer, void* host, unsigned) {
  return *pointer = reinterpret_cast<uint64_t>(host), fault("cuMemHostGetDevicePointer_v2");
}
int cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t bytes, Stream* stream) {
  const Lock lock(mutex);
  if (const int code = begin("cuMemcpyHtoDAsync_v2")) return code;
  if (!on_device(to, bytes)) return kInvalid;
  return enqueue(stream, double(bytes) / kBytesPerSecond, [=] { return std::memcpy(reinterpret_cast<void*>(to), from, bytes), 0; });
}
int cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t bytes, Stream* stream) {
  const Lock lock(mutex);
  if (const int code = begin("cuMemcpyDtoHAsync_v2")) return code;
  if (!on_device(from, bytes)) return kInvalid;
  return enqueue(stream, double(bytes) / kBytesPerSecond, [=] { return std::memcpy(to, reinterpret_cast<const void*>(from), bytes), 0; });
}
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, Stream* stream) {
  const Lock lock(mutex);
  if (const int code = begin("cuMemcpyDtoDAsync_v2")) return code;
  if (!on_device(to, bytes) || !on_device(from, bytes)) return kInvalid;
  return enqueue(stream, 2 * double(bytes) / kBytesPerSecond,
                 [=] { return std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes), 0; });
}
int cuMemsetD8Async(uint64_t to, unsigned char value, size_t bytes, Stream* stream) {
  const Lock lock(mutex);
  if (const int code = begin("cuMemsetD8Async")) return code;
  if (!on_device(to, bytes)) return kInvalid;
  return enqueue(stream, double(bytes) / kBytesPerSecond, [=] { return std::memset(reinterpret_cast<void*>(to), value, bytes), 0; });
}
int cuMemsetD32Async(uint64_t to, unsigned value, size_t words, Stream* stream) {
  const Lock lock(mutex);
  if (const int code = begin("cuMemsetD32Async")) return code;
  if (to % 4 || !on_device(to, 4 * words)) return kInvalid;
  return enqueue(stream, 4 * double(words) / kBytesPerSecond, [=] { return std::fill_n(reinterpret_cast<unsigned*>(to), words, value), 0; });
}

int cuStreamCreate(Stream** stream, unsigned) { return *stream = new Stream, begin("cuStreamCreate"); }
int cuStreamDestroy_v2(Stream* stream) {
  const Lock lock(mutex);
  for (Capture* capture : captures) capture->members.erase(stream);
  return delete stream, begin("cuStreamDestroy_v2");
}
int cuStreamSynchronize(Stream* stream) {
  const Lock lock(mutex);
  if (Capture* capture = stream_of(stream)->capture) return capture->invalid = true, kCaptureUnsupported;
  return begin("cuStreamSynchronize");
}
int cuStreamQuery(Stream* stream) { return stream_of(stream)->capture ? kCaptureUnsupported : begin("cuStreamQuery"); }
int cuCtxSynchronize() {
  const Lock lock(mutex);
  if (const int code = unsafe()) return code;
  return begin("cuCtxSynchronize");
}
int cuEventCreate(Event** event, unsigned) { return *event = new Event, begin("cuEventCreate"); }
int cuEventDestroy_v2(Event* event) { return delete event, begin("cuEventDestroy_v2"); }
int cuEventRecord(Event* event, Stream* given) {
  const Lock lock(mutex);
  if (const int code = begin("cuEventRecord")) return code;
  Stream* stream = stream_of(given);
  *event = {stream->capture ? -1 : now, stream->capture, stream, stream->recorded};
  return 0;
}
int cuEventSynchronize(Event* event) { return event->capture ? kCaptureUnsupported : begin("cuEventSynchronize"); }
int cuEventQuery(Event* event) { return event->capture ? kCaptureUnsupported : begin("cuEventQuery"); }
int cuEventElapsedTime(float* milliseconds, Event* first, Event* last) {
  const Lock lock(mutex);
  if (first->when < 0 || last->when < 0) return kInvalidHandle;
  return *milliseconds = float(1e3 * (last->when - first->when)), begin("cuEventElapsedTime");
}
int cuStreamWaitEvent(Stream* given, Event* event, unsigned) {
  const Lock lock(mutex);
  if (const int code = begin("cuStreamWaitEvent")) return code;
  Stream* stream = stream_of(given);
  Capture* capture = event->capture;
  if (!capture) return stream->capture && event->when >= 0 ? (stream->capture->invalid = true, 905) : 0;  // recorded outside: cannot be awaited inside
  if (!captures.count(capture)) return kInvalidHandle;
  if (stream->capture && stream->capture != capture) return 902;  // two recordings cannot be merged
  if (!stream->capture) stream->capture = capture, stream->recorded = 0, capture->members.insert(stream);
  size_t& joined = capture->joined[event->stream];
  joined = std::max(joined, event->recorded);
  return 0;
}
int cuStreamBeginCapture_v2(Stream* stream, int mode) {
  const Lock lock(mutex);
  if (const int code = begin("cuStreamBeginCapture_v2")) return code;
  if (!stream || stream->capture) return kInvalid;
  auto* capture = new Capture;
  capture->origin = stream, capture->mode = mode, capture->members = {stream};
  stream->capture = capture, stream->recorded = 0;
  captures.insert(capture);
  return 0;
}
int cuStreamEndCapture(Stream* stream, Graph** graph) {
  const Lock lock(mutex);
  if (!stream || !stream->capture || stream->capture->origin != stream) return kInvalid;
  const std::unique_ptr<Capture> capture(stream->capture);
  captures.erase(capture.get());
  bool apart = false;  // a member whose work nothing waits for
  for (Stream* member : capture->members) {
    if (member != stream && member->recorded > capture->joined[member]) apart = true;
    member->capture = nullptr;
  }
  *graph = nullptr;
  if (const int code = begin("cuStreamEndCapture")) return code;
  if (capture->invalid) return kCaptureInvalidated;
  if (apart) return kCaptureUnjoined;
  return *graph = new Graph{std::move(capture->pieces)}, 0;
}
int cuStreamIsCapturing(Stream* stream, int* status) { return *status = stream_of(stream)->capture ? 1 : 0, begin("cuStreamIsCapturing"); }
int cuGraphInstantiateWithFlags(Graph** run, const Graph* graph, unsigned long long) {
  const Lock lock(mutex);
  if (const int code = begin("cuGraphInstantiateWithFlags")) return code;
  return *run = new Graph(*graph), 0;
}
int cuGraphGetNodes(const Graph* graph, void**, size_t* count) { return *count = graph->pieces.size(), begin("cuGraphGetNodes"); }
int cuGraphUpload(Graph*, Stream*) { return begin("cuGraphUpload"); }
int cuGraphDestroy(Graph* graph) { return delete graph, begin("cuGraphDestroy"); }
int cuGraphExecDestroy(Graph* run) { return delete run, begin("cuGraphExecDestroy"); }
int cuGraphLaunch(const Graph* run, Stream* stream) {
  const Lock lock(mutex);
  if (const int code = begin("cuGraphLaunch")) return code;
  if (stream_of(stream)->capture) {  // as part of another graph
    for (const Capture::Piece& piece : run->pieces) enqueue(stream, piece.seconds, piece.work);
    return 0;
  }
  now += kLaunchSeconds;
  for (const Capture::Piece& piece : run->pieces) {
    now += piece.seconds;
    if (piece.work()) break;
  }
  return 0;
}

int cuModuleLoadData(Module** module, const void* image) {
  const Lock lock(mutex);
  if (const int code = begin("cuModuleLoadData")) return code;
  if (const int code = unsafe()) return code;
  Elf64_Ehdr header;
  std::memcpy(&header, image, sizeof header);
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) return kInvalidImage;
  const size_t bytes = header.e_shoff + size_t(header.e_shnum) * header.e_shentsize;
  // Use a fresh name: for a known one the dynamic linker returns the library it already has.
  static int number = 0;
  const std::string name = "/ridge_simulator_" + std::to_string(::getpid()) + "_" + std::to_string(++number) + ".so";
  void* library = nullptr;
  for (const char* folder : {"/dev/shm", "/tmp"}) {
    const std::string path = folder + name;
    const bool wrote = bool(std::ofstream(path, std::ios::binary).write(static_cast<const char*>(image), std::streamsize(bytes)));
    if (wrote) library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    ::unlink(path.c_str());
    if (library) break;
  }
  if (!library) {
    std::fprintf(stderr, "simulated GPU: a module cannot be loaded: %s\n", ::dlerror());
    return kInvalidImage;
  }
  const auto* table = static_cast<const ModuleTable*>(::dlsym(library, "simulator_module"));
  if (!table) return ::dlclose(library), kInvalidImage;
  *table->hooks = hooks();
  *module = new Module{library, table, {}, bytes};
  held += bytes;
  return 0;
}
int cuModuleUnload(Module* module) {
  const Lock lock(mutex);
  held -= module->bytes;
  ::dlclose(module->library);
  delete module;
  return begin("cuModuleUnload");
}
int cuModuleGetFunction(Function** function, Module* module, const char* name) {
  const Lock lock(mutex);
  if (const int code = begin("cuModuleGetFunction")) return code;
  const auto* entry = static_cast<const Entry*>(::dlsym(module->library, (std::string("simulator_entry_") + name).c_str()));
  if (!entry) return kNotFound;
  std::unique_ptr<Function>& found = module->functions[name];
  if (!found) found.reset(new Function{name, entry, module});
  return *function = found.get(), 0;
}
int cuFuncSetAttribute(Function* function, int which, int value) {
  const Lock lock(mutex);
  if (const int code = begin("cuFuncSetAttribute")) return code;
  const int fixed = int(function->module->table->shared_end - function->module->table->shared_begin);
  if (which == 8) {
    if (value < 0 || value + fixed > most_shared()) return kInvalid;
    function->most_dynamic = value;
  }
  return 0;
}
int cuFuncGetAttribute(int* value, int which, Function* function) {
  const Lock lock(mutex);
  const ModuleTable& table = *function->module->table;
  switch (which) {
    case 0: *value = function->entry->bound ? function->entry->bound : 1024; break;
    case 1: *value = int(table.shared_end - table.shared_begin); break;
    case 4: *value = 32; break;
    case 5:
    case 6: *value = 10 * major() + minor(); break;
    case 8: *value = function->most_dynamic; break;
    default: *value = 0;
  }
  return begin("cuFuncGetAttribute");
}
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Function*, int threads, size_t shared) {
  *blocks = std::max(1, std::min(1536 / std::max(threads, 1), int(size_t(most_shared() + 1024) / (shared + 1024))));
  return begin("cuOccupancyMaxActiveBlocksPerMultiprocessor");
}
int cuLaunchKernel(Function* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, Stream* stream,
                   void** args, void** extra) {
  const Lock lock(mutex);
  if (const int code = begin("cuLaunchKernel")) return code;
  const Entry& entry = *function->entry;
  const ModuleTable& table = *function->module->table;
  const uint64_t threads = uint64_t(bx) * by * bz, blocks = uint64_t(gx) * gy * gz;
  auto refuse = [&](int code, const char* why) {
    std::fprintf(stderr, "simulated GPU: kernel %s: a launch of (%u, %u, %u) blocks of (%u, %u, %u) threads with %u bytes of shared memory %s\n",
                 function->name.c_str(), gx, gy, gz, bx, by, bz, shared, why);
    return code;
  };
  if (extra) return kInvalid;
  if (threads == 0 || blocks == 0) return refuse(kInvalid, "is empty");
  if (threads > 1024 || bz > 64 || gx > 2147483647u || gy > 65535 || gz > 65535) return refuse(kInvalid, "is beyond the device's limits");
  if (entry.cluster > 1 && (gx % unsigned(entry.cluster) != 0 || gy * gz != 1 || threads % 32 != 0)) return refuse(kInvalid, "has no whole number of clusters");
  if (entry.bound && threads > uint64_t(entry.bound)) return refuse(kLaunchOutOfResources, "has more threads than its __launch_bounds__");
  const auto fixed = size_t(table.shared_end - table.shared_begin);
  if (shared > unsigned(function->most_dynamic)) return refuse(kInvalid, "asks for more shared memory than was granted with cuFuncSetAttribute");
  if (fixed > size_t(48) << 10 || fixed + shared > size_t(most_shared())) return refuse(kInvalid, "has more shared memory than a block may have");
  const auto kept = std::make_shared<Arguments>(entry, args);
  Launch launch{function->name, &entry, &table, {gx, gy, gz}, {bx, by, bz}, shared, nullptr};
  return enqueue(stream, kLaunchSeconds + double(threads) * double(blocks) * kThreadSeconds, [=] {
    std::vector<void*> pointers;
    for (size_t i = 0; i < kept->places.size(); ++i) pointers.push_back(kept->at(i));
    Launch now = launch;
    now.args = pointers.data();
    return launch_now(now);
  });
}
// With the only attribute that is used: the kernel may start before the one in front of it has ended. Here it never does.
struct LaunchConfig {
  unsigned blocks[3], threads[3], shared;
  Stream* stream;
  const int* attributes;
  unsigned count;
};
int cuLaunchKernelEx(const LaunchConfig* c, Function* function, void** args, void** extra) {
  const Lock lock(mutex);
  if (const int code = begin("cuLaunchKernelEx")) return code;
  constexpr int kOverlap = 6;
  if (major() < 9 || c->count != 1 || c->attributes[0] != kOverlap || c->attributes[2] != 1) return kInvalid;
  return cuLaunchKernel(function, c->blocks[0], c->blocks[1], c->blocks[2], c->threads[0], c->threads[1], c->threads[2], c->shared, c->stream, args, extra);
}
}
