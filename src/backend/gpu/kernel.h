// What a GPU's program is made of: kernels that know their texts and sizes before there is a device, and that launch once addresses are known.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/gpu/chip.h"
#include "base/error.h"
#include "base/place.h"

namespace ridge::gpu {

// One entry function. Texts include nothing: the device's prelude is put before the body when it is compiled. Equal texts are compiled once, so
// a text holds no addresses and no numbers of kernels.
struct KernelText {
  std::string entry;  // name of the function
  std::string body;
  int64_t shared = 0;  // dynamic shared memory that its launches ask for, in bytes
  bool operator==(const KernelText&) const = default;
};

using Address = unsigned long long;  // in the device's memory
using KernelFunction = void*;        // a text, compiled and loaded

// The device's addresses in a run, by base.
using Bases = std::span<const Address>;
inline Address at(Bases bases, Place p) { return p ? bases[size_t(p.base)] + Address(p.offset) : 0; }

// What the first bad index met by a kernel leaves on the device: written by the thread that sets `raised` from 0 to 1.
struct FaultRecord {
  int32_t raised = 0, pad = 0;
  int64_t value = 0, limit = 0, position = -1;  // the position only of a bad class
};

// Where launches go: into a stream, or onto a tape.
class LaunchSink {
 public:
  virtual ~LaunchSink() = default;
  // `arguments`: the struct that the entry takes by value; read before this returns.
  virtual void launch(KernelFunction function, int64_t blocks, int threads, int64_t shared, std::span<const std::byte> arguments) = 0;
  virtual void copy(Address to, Address from, int64_t bytes) = 0;
  virtual void fill_with_zeros(Address to, int64_t bytes) = 0;
  virtual void end_kernel() {}  // all launches of a kernel are made: the place to wait when a failure must be told of the right one
  // An error in a kernel, with the kernel named.
  [[noreturn]] virtual void fail_in(const std::string& kernel, const Error& error) const { throw Error(error.code(), kernel + ": " + error.what()); }
};

// What a kernel may use while it is made ready on a device, and which stays as long as the kernel.
class Loader {
 public:
  virtual ~Loader() = default;
  virtual KernelFunction loaded(const KernelText& text) = 0;  // compiled or found in the cache, loaded, its shared memory granted
};

class Kernel {
 public:
  virtual ~Kernel() = default;
  virtual int64_t workspace_bytes() const { return 0; }  // live only during the kernel
  virtual std::vector<KernelText> texts() const = 0;     // all that load() may well ask for, so that they can be compiled side by side
  virtual void load(Loader& loader) = 0;                 // once, before the first enqueue; may measure candidates
  // Operands in the order of the kernel's description: inputs, then outputs. `fault` is a FaultRecord.
  virtual void bind(std::span<const Place> operands, Place workspace, Place fault) = 0;
  // Launches only: no allocation, no waiting; may be recorded.
  virtual void enqueue(Bases bases, LaunchSink& sink) const = 0;
  virtual int launches() const { return 1; }
  virtual std::string note() const { return {}; }  // what was chosen, for the dump
};

}  // namespace ridge::gpu
