#include "drivers/cuda_driver.h"

#include <cstdlib>

#include "base/error.h"
#include "base/text.h"

namespace ridge::cuda {
namespace {

constexpr int kOutOfMemory = 2;

ErrorCode code_of(int result) {
  switch (result) {
    case kOutOfMemory: return ErrorCode::memory;
    case 34:
    case 35:
    case 36:
    case 100:
    case 209:
    case 222:
    case 801:
    case 802:
    case 803:
    case 804: return ErrorCode::unsupported;
    default: return ErrorCode::io;
  }
}

DynamicLibrary open(const std::string& path) {
  DynamicLibrary library(path);
  if (library) return library;
  if (library.error().starts_with(path + ": cannot open shared object file: No such file"))
    fail(ErrorCode::unsupported, "no NVIDIA driver ({} was not found)", path);
  fail(ErrorCode::unsupported, "{} cannot be loaded ({}): reinstall the driver, all parts from the same release", path, library.error());
}

}  // namespace

std::string driver_library() {
  const char* path = std::getenv("RIDGE_CUDA_LIBRARY");
  return path && *path ? path : "libcuda.so.1";
}

std::string remedy_for(int code) {
  switch (code) {
    case kOutOfMemory: return "nvidia-smi shows which processes use the GPU's memory: stop them, or request less";
    case 3: return "CUDA was started in this process before it forked: call ridge::gpus() earlier";
    case 34: return "a stub library of the CUDA toolkit was found instead of the driver's: remove it from LD_LIBRARY_PATH";
    case 35:
    case 803:
    case 804: return "the library and the kernel's driver have different versions: install both from the same release, then reboot";
    case 36:
    case 222: return "the driver is too old: install a newer one";
    case 100: return "the driver sees no GPU: check CUDA_VISIBLE_DEVICES and, in a container, that it was started with its GPUs (--gpus all)";
    case 209: return "the GPU is older than compute capability 7.5, for which Ridge's kernels are written";
    case 700:
    case 715:
    case 716:
    case 717:
    case 718:
    case 719: return "a kernel corrupted the device's context: restart the program; if it happens again, report it with the kernel's name";
    case 802: return "the GPUs' fabric is not ready: start nvidia-fabricmanager";
    default: return "nvidia-smi may show more; reloading the driver or rebooting usually helps";
  }
}

DriverError::DriverError(int code, const std::string& message) : Error(code_of(code), message), result_(code) {}

bool DriverError::lost() const {
  switch (result_) {
    case 4:    // the driver is shutting down
    case 46:   // busy or unavailable
    case 214:  // memory error
    case 220:  // link error
    case 700:  // illegal address
    case 702:  // a kernel ran too long
    case 709:  // the context is destroyed
    case 710:  // assertion
    case 714:
    case 715:
    case 716:
    case 717:
    case 718:
    case 719:  // launch failed
    case 999: return true;
    default: return false;
  }
}

Driver::Driver(const std::string& path) : path_(path), library_(open(path)) {
  get_version(&version_);
  init(0);
  constexpr int kOverlappingRecordings = 12030;
  if (version_ >= kOverlappingRecordings) library_.bind(launch_ex_, "cuLaunchKernelEx");
}

void Driver::throw_missing(const char* symbol) const {
  fail(ErrorCode::unsupported, "{} lacks {}: it is too old or not the driver's; install a driver for CUDA 12 or newer", path_, symbol);
}

void Driver::refuse(const char* symbol, int code, const std::string& what) const {
  const char *name = nullptr, *text = nullptr;
  if (error_name.quietly(code, &name) != 0 || !name) name = "unknown error";
  if (error_text.quietly(code, &text) != 0 || !text) text = "the driver has no text for it";
  throw DriverError(code, fmt::format("[{}] {} ({}){}{}: {}; {}", symbol, name, code, what.empty() ? "" : " ", what, text, remedy_for(code)));
}

int Driver::attribute(int which, int device) const {
  int value = 0;
  return device_attribute.quietly(&value, which, device) == 0 ? value : 0;
}

Context use_device(const Driver& driver, int device) {
  ContextHandle handle = nullptr;
  driver.context_retain(&handle, device);
  Context context(device, driver.context_release);
  driver.context_use(handle);
  return context;
}

DeviceMemory allocate(const Driver& driver, int64_t bytes) {
  DevicePointer pointer = 0;
  if (const int code = driver.memory_alloc.quietly(&pointer, size_t(bytes))) driver.refuse(driver.memory_alloc.symbol(), code, "for " + size_text(bytes));
  return {pointer, driver.memory_free};
}

PinnedMemory allocate_pinned(const Driver& driver, int64_t bytes) {
  void* pointer = nullptr;
  if (const int code = driver.pinned_alloc.quietly(&pointer, size_t(bytes), 0))
    driver.refuse(driver.pinned_alloc.symbol(), code, fmt::format("for {} of pinned memory", size_text(bytes)));
  return {pointer, driver.pinned_free};
}

Stream make_stream(const Driver& driver) {
  constexpr unsigned kNonBlocking = 1;  // does not synchronise with the default stream
  StreamHandle handle = nullptr;
  driver.stream_create(&handle, kNonBlocking);
  return {handle, driver.stream_destroy};
}

Event make_event(const Driver& driver) {
  EventHandle handle = nullptr;
  driver.event_create(&handle, 0);
  return {handle, driver.event_destroy};
}

Module load_module(const Driver& driver, const char* ptx) {
  ModuleHandle handle = nullptr;
  driver.module_load(&handle, ptx);
  return {handle, driver.module_unload};
}

FunctionHandle function_of(const Driver& driver, const Module& module, const char* name) {
  FunctionHandle handle = nullptr;
  if (const int code = driver.module_function.quietly(&handle, module.get(), name)) driver.refuse(driver.module_function.symbol(), code, name);
  return handle;
}

}  // namespace ridge::cuda
