// What a CUDA program is made of: kernels that know their texts and sizes before there is a device, and that put their launches into a
// stream once addresses are known.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/cuda/chip.h"
#include "base/place.h"
#include "drivers/cuda_driver.h"

namespace ridge::cuda {

class CublasLt;
class Cudnn;

// One entry function in CUDA C++. Texts include nothing: the prelude (prelude.h) is put before the body when it is compiled. Equal texts
// are compiled once, so a text holds no addresses and no numbers of kernels.
struct KernelText {
  std::string entry;  // name of the extern "C" __global__ function
  std::string body;
  int64_t shared = 0;  // dynamic shared memory that its launches ask for, in bytes
  bool operator==(const KernelText&) const = default;
};

// The device's addresses in a run, by base.
using Bases = std::span<const DevicePointer>;
inline DevicePointer at(Bases bases, Place p) { return p ? bases[size_t(p.base)] + DevicePointer(p.offset) : 0; }

// What the first bad index met by a kernel leaves on the device: written by the thread that sets `raised` from 0 to 1.
struct FaultRecord {
  int32_t raised = 0, pad = 0;
  int64_t value = 0, limit = 0, position = -1;  // the position only of a bad class
};

// What a kernel may use while it is made ready on a device, and which stays as long as the kernel.
class Loader {
 public:
  virtual ~Loader() = default;
  virtual const Driver& driver() const = 0;
  virtual const Chip& chip() const = 0;
  virtual const CublasLt* cublas_lt() const = 0;  // null: not installed
  virtual const Cudnn* cudnn() const { return nullptr; }
  virtual void as_library_memory(const std::function<void()>& body) { body(); }  // counts what the device loses meanwhile
  virtual StreamHandle stream() const = 0;                                       // for measurements; idle
  virtual FunctionHandle function(const KernelText& text) = 0;                   // compiled or found in the cache, loaded, its shared memory granted
  // Choices of earlier processes on this chip, by key; empty: none. What is kept is part of the choices that a checkpoint stores.
  virtual std::string choice(const std::string& key) = 0;
  virtual void keep_choice(const std::string& key, const std::string& value) = 0;
  virtual void hold_choice(const std::string& key, const std::string& value) = 0;  // that was not measured: in this process and its checkpoints alone
};

class Kernel {
 public:
  virtual ~Kernel() = default;
  virtual int64_t workspace_bytes() const { return 0; }  // live only during the kernel
  virtual std::vector<KernelText> texts() const = 0;     // all that load() may well ask for, so that they can be compiled side by side
  virtual void load(Loader& loader) = 0;                 // once, before the first enqueue; may measure candidates
  // Operands in the order of the kernel's description: inputs, then outputs. `fault` is a FaultRecord.
  virtual void bind(std::span<const Place> operands, Place workspace, Place fault) = 0;
  // Launches only: no allocation, no waiting; may be recorded into a graph.
  virtual void enqueue(Bases bases, StreamHandle stream) const = 0;
  virtual int launches() const { return 1; }
  virtual std::string note() const { return {}; }  // what was chosen, for the dump
};

}  // namespace ridge::cuda
