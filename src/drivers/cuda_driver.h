// NVIDIA's driver, opened at run time: Ridge is built without CUDA's headers and toolkit, and runs on machines without a driver. Every call is checked: an
// error names the call, the driver's message and what to do.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "drivers/checked_call.h"
#include "ridge/error.h"

namespace ridge::cuda {

std::string driver_library();      // RIDGE_CUDA_LIBRARY, or the driver's usual library name
std::string remedy_for(int code);  // what to do about a driver error

class DriverError : public Error {
 public:
  DriverError(int code, const std::string& message);
  int result() const { return result_; }
  bool lost() const;  // the device or its context is gone: nothing on it will work again in this process

 private:
  int result_;
};

// The subset of the driver's types that is used.
using DevicePointer = unsigned long long;
using ContextHandle = struct ContextTag*;
using StreamHandle = struct StreamTag*;
using EventHandle = struct EventTag*;
using ModuleHandle = struct ModuleTag*;
using FunctionHandle = struct FunctionTag*;
using GraphHandle = struct GraphTag*;
using GraphRunHandle = struct GraphRunTag*;

// For cuLaunchKernelEx, which starts a kernel before the one in front of it has ended.
struct LaunchAttribute {
  static constexpr int kOverlap = 6;  // CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
  int id = kOverlap, pad = 0;
  union {
    int allowed;
    unsigned char bytes[64];
  } value{};
};
struct LaunchConfig {
  unsigned blocks[3] = {1, 1, 1}, threads[3] = {1, 1, 1}, shared = 0;
  StreamHandle stream = nullptr;
  LaunchAttribute* attributes = nullptr;
  unsigned count = 0;
};

class Driver;
template <class... Args>
using DriverCall = CheckedCall<Driver, Args...>;

class Driver {
 public:
  explicit Driver(const std::string& path = driver_library());  // opens and initialises the library

  const DynamicLibrary& library() const { return library_; }
  // cuLaunchKernelEx, if the driver can record it with overlapping kernels; else null.
  using LaunchEx = int (*)(const LaunchConfig*, FunctionHandle, void**, void**);
  LaunchEx launch_ex() const { return launch_ex_; }
  int version() const { return version_; }  // the newest CUDA version it supports: 12040 is 12.4
  [[noreturn]] void throw_missing(const char* symbol) const;
  [[noreturn]] void refuse(const char* symbol, int code, const std::string& what = {}) const;
  int attribute(int which, int device) const;  // 0: unknown

 private:
  std::string path_;
  DynamicLibrary library_;
  int version_ = 0;
  LaunchEx launch_ex_ = nullptr;

 public:
  DriverCall<unsigned> init{*this, "cuInit"};
  DriverCall<int*> get_version{*this, "cuDriverGetVersion"};
  DriverCall<int*> device_count{*this, "cuDeviceGetCount"};
  DriverCall<int*, int> device_get{*this, "cuDeviceGet"};
  DriverCall<char*, int, int> device_name{*this, "cuDeviceGetName"};
  DriverCall<int*, int, int> device_attribute{*this, "cuDeviceGetAttribute"};
  DriverCall<int, const char**> error_name{*this, "cuGetErrorName"};
  DriverCall<int, const char**> error_text{*this, "cuGetErrorString"};
  DriverCall<ContextHandle*, int> context_retain{*this, "cuDevicePrimaryCtxRetain"};
  DriverCall<int> context_release{*this, "cuDevicePrimaryCtxRelease_v2"};
  DriverCall<ContextHandle> context_use{*this, "cuCtxSetCurrent"};
  DriverCall<size_t*, size_t*> memory_info{*this, "cuMemGetInfo_v2"};
  DriverCall<DevicePointer*, size_t> memory_alloc{*this, "cuMemAlloc_v2"};
  DriverCall<DevicePointer> memory_free{*this, "cuMemFree_v2"};
  DriverCall<void**, size_t, unsigned> pinned_alloc{*this, "cuMemHostAlloc"};
  DriverCall<void*> pinned_free{*this, "cuMemFreeHost"};
  DriverCall<DevicePointer, const void*, size_t, StreamHandle> copy_to_device{*this, "cuMemcpyHtoDAsync_v2"};
  DriverCall<void*, DevicePointer, size_t, StreamHandle> copy_to_host{*this, "cuMemcpyDtoHAsync_v2"};
  DriverCall<DevicePointer, DevicePointer, size_t, StreamHandle> copy_on_device{*this, "cuMemcpyDtoDAsync_v2"};
  DriverCall<StreamHandle*, unsigned> stream_create{*this, "cuStreamCreate"};
  DriverCall<StreamHandle> stream_destroy{*this, "cuStreamDestroy_v2"};
  DriverCall<StreamHandle> stream_wait{*this, "cuStreamSynchronize"};
  DriverCall<EventHandle*, unsigned> event_create{*this, "cuEventCreate"};
  DriverCall<EventHandle> event_destroy{*this, "cuEventDestroy_v2"};
  DriverCall<EventHandle, StreamHandle> event_record{*this, "cuEventRecord"};
  DriverCall<EventHandle> event_wait{*this, "cuEventSynchronize"};
  DriverCall<float*, EventHandle, EventHandle> event_milliseconds{*this, "cuEventElapsedTime"};
  DriverCall<ModuleHandle*, const void*> module_load{*this, "cuModuleLoadData"};
  DriverCall<ModuleHandle> module_unload{*this, "cuModuleUnload"};
  DriverCall<FunctionHandle*, ModuleHandle, const char*> module_function{*this, "cuModuleGetFunction"};
  DriverCall<FunctionHandle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, StreamHandle, void**, void**> launch{*this,
                                                                                                                                        "cuLaunchKernel"};
  DriverCall<FunctionHandle, int, int> function_set{*this, "cuFuncSetAttribute"};
  DriverCall<int*, int, FunctionHandle> function_attribute{*this, "cuFuncGetAttribute"};
  DriverCall<DevicePointer, unsigned char, size_t, StreamHandle> fill_bytes{*this, "cuMemsetD8Async"};
  DriverCall<StreamHandle, EventHandle, unsigned> stream_wait_event{*this, "cuStreamWaitEvent"};
  DriverCall<EventHandle> event_done{*this, "cuEventQuery"};
  DriverCall<StreamHandle, int> capture_begin{*this, "cuStreamBeginCapture_v2"};
  DriverCall<StreamHandle, GraphHandle*> capture_end{*this, "cuStreamEndCapture"};
  DriverCall<GraphRunHandle*, GraphHandle, unsigned long long> graph_instantiate{*this, "cuGraphInstantiateWithFlags"};
  DriverCall<GraphHandle> graph_destroy{*this, "cuGraphDestroy"};
  DriverCall<GraphRunHandle, StreamHandle> graph_launch{*this, "cuGraphLaunch"};
  DriverCall<GraphRunHandle> graph_run_destroy{*this, "cuGraphExecDestroy"};
};

// Driver resources that release themselves.
using DeviceMemory = Owned<DevicePointer, DriverCall<DevicePointer>>;
using PinnedMemory = Owned<void*, DriverCall<void*>>;
using Stream = Owned<StreamHandle, DriverCall<StreamHandle>>;
using Event = Owned<EventHandle, DriverCall<EventHandle>>;
using Module = Owned<ModuleHandle, DriverCall<ModuleHandle>>;
using Context = Owned<int, DriverCall<int>>;

Context use_device(const Driver& driver, int device);  // the device's primary context, current in this thread
DeviceMemory allocate(const Driver& driver, int64_t bytes);
PinnedMemory allocate_pinned(const Driver& driver, int64_t bytes);
Stream make_stream(const Driver& driver);
Event make_event(const Driver& driver);
Module load_module(const Driver& driver, const char* ptx);
FunctionHandle function_of(const Driver& driver, const Module& module, const char* name);

}  // namespace ridge::cuda
