// The parts of a GPU program: kernels whose texts and sizes are known before there is a device, and which can be launched once addresses are known.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/gpu/chip.h"
#include "base/error.h"
#include "base/place.h"

namespace ridge::gpu {

// One entry function. Texts include nothing: the device's prelude is prepended when the body is compiled. Equal texts are compiled only once, so a text
// contains no addresses and no kernel numbers.
struct KernelText {
  std::string entry;  // name of the function
  std::string body;
  int64_t shared = 0;     // dynamic shared memory per launch, in bytes
  bool overlaps = false;  // CUDA: it may be started before the kernel in front of it has ended, and waits for that itself
  bool operator==(const KernelText&) const = default;
};

using Address = unsigned long long;  // in device memory
using KernelFunction = void*;        // a compiled and loaded text

// Device addresses of a run, by base.
using Bases = std::span<const Address>;
inline Address at(Bases bases, Place p) { return p ? bases[size_t(p.base)] + Address(p.offset) : 0; }

// Describes the first bad index that a kernel found. Written on the device, by the thread that changes `raised` from 0 to 1.
struct FaultRecord {
  int32_t raised = 0, pad = 0;
  int64_t value = 0, limit = 0, position = -1;  // position is set only for a bad class
};

// Receives launches: a stream or a recording.
class LaunchSink {
 public:
  virtual ~LaunchSink() = default;
  // `arguments` is the struct that the entry takes by value; it is read before this returns.
  virtual void launch(KernelFunction function, int64_t blocks, int threads, int64_t shared, std::span<const std::byte> arguments) = 0;
  virtual void copy(Address to, Address from, int64_t bytes) = 0;
  virtual void fill_with_zeros(Address to, int64_t bytes) = 0;
  virtual void end_kernel() {}  // all of a kernel's launches are enqueued; wait here to attribute a failure to the right kernel
  // Throws an error that names the kernel.
  [[noreturn]] virtual void fail_in(const std::string& kernel, const Error& error) const { throw Error(error.code(), kernel + ": " + error.what()); }
};

// What a kernel can use while it is loaded. Everything it hands out lives as long as the kernel.
class Loader {
 public:
  virtual ~Loader() = default;
  virtual KernelFunction loaded(const KernelText& text) = 0;  // compiled or found in the cache, then loaded, with its shared memory reserved
  // Choices of earlier processes on this chip, by key; empty: none. Kept choices are also stored in checkpoints.
  virtual std::string choice(const std::string& key) { return (void)key, std::string(); }
  virtual void keep_choice(const std::string& key, const std::string& value) { (void)key, (void)value; }
  // A choice that was not measured: only for this process and its checkpoints.
  virtual void record_choice(const std::string& key, const std::string& value) { (void)key, (void)value; }
  virtual int spilled_bytes(KernelFunction function) { return (void)function, 0; }  // memory of a thread that its registers do not hold
  // Milliseconds that the launches of `work` take when they are recorded and replayed, in zeroed memory of this size; negative: it cannot be measured.
  virtual double recorded_ms(int64_t bytes, const std::function<void(LaunchSink&, Address memory)>& work) { return (void)bytes, (void)work, -1; }
};

class Kernel {
 public:
  virtual ~Kernel() = default;
  virtual int64_t workspace_bytes() const { return 0; }  // live only during the kernel
  virtual std::vector<KernelText> texts() const = 0;     // all that load() is likely to request, so that they can be compiled in parallel
  virtual void load(Loader& loader) = 0;                 // once, before the first enqueue; may time candidates
  // Operands are in the order of the kernel's description: inputs, then outputs. `fault` is a FaultRecord.
  virtual void bind(std::span<const Place> operands, Place workspace, Place fault) = 0;
  // Only launches: does not allocate or wait, and may be recorded.
  virtual void enqueue(Bases bases, LaunchSink& sink) const = 0;
  virtual int launches() const { return 1; }
  virtual std::string note() const { return {}; }  // the choices made, for the dump
};

}  // namespace ridge::gpu
