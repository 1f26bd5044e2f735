// cuDNN, opened at run time: convolutions through its graph interface, which versions 8 and 9 share.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "drivers/cuda_driver.h"
#include "drivers/cuda_libraries.h"
#include "ridge/dtype.h"

namespace ridge::cuda {

class Cudnn;
template <class... Args>
using CudnnCall = CheckedCall<Cudnn, Args...>;

// The subset of the library's types that is used.
using CudnnHandle = struct CudnnTag*;
using CudnnDescriptor = void*;

// Opening is cheap. Most of the library is loaded, and takes device memory, when the handle is first requested.
class Cudnn {
 public:
  explicit Cudnn(const LibrarySearch& search);  // ErrorCode::unsupported if missing or lacking a function

  const DynamicLibrary& library() const { return found_.library; }
  bool started() const { return handle_.get() != nullptr; }
  CudnnHandle handle() const;  // ErrorCode::unsupported if too old, incomplete or failing to start
  int version() const;         // 91002 is 9.10.2, 8907 is 8.9.7; only after the library has started
  [[noreturn]] void throw_missing(const char* symbol) const;
  [[noreturn]] void refuse(const char* symbol, int code) const;

 private:
  FoundLibrary found_;

 public:
  CudnnCall<CudnnHandle*> create{*this, "cudnnCreate"};
  CudnnCall<CudnnHandle> destroy{*this, "cudnnDestroy"};
  CudnnCall<CudnnHandle, StreamHandle> set_stream{*this, "cudnnSetStream"};
  CudnnCall<int, CudnnDescriptor*> descriptor_create{*this, "cudnnBackendCreateDescriptor"};
  CudnnCall<CudnnDescriptor> descriptor_destroy{*this, "cudnnBackendDestroyDescriptor"};
  CudnnCall<CudnnDescriptor, int, int, int64_t, const void*> descriptor_set{*this, "cudnnBackendSetAttribute"};
  CudnnCall<CudnnDescriptor, int, int, int64_t, int64_t*, void*> descriptor_get{*this, "cudnnBackendGetAttribute"};
  CudnnCall<CudnnDescriptor> descriptor_finish{*this, "cudnnBackendFinalize"};
  CudnnCall<CudnnHandle, CudnnDescriptor, CudnnDescriptor> execute{*this, "cudnnBackendExecute"};

 private:
  void start() const;

  mutable std::vector<DynamicLibrary> parts_;
  mutable Owned<CudnnHandle, CudnnCall<CudnnHandle>> handle_;
  mutable std::string failure_;  // of the first attempt
};

// [first, second, down, across]; strides in elements, all above 0.
struct CudnnArray {
  DType type = DType::f32;
  std::array<int64_t, 4> sizes{1, 1, 1, 1}, strides{1, 1, 1, 1};
  int64_t alignment = 16;  // of the address, in bytes
};

// A convolution in the library's terms: y from x and w, or one of its gradients. x is [image, groups · channels, …], w [groups · outputs, channels, …], y
// [image, groups · outputs, …].
struct CudnnConv {
  enum class Result : uint8_t { y, x, w };
  using Axes = std::array<int64_t, 2>;
  Result result = Result::y;
  CudnnArray x, w, y;
  Axes stride{1, 1}, low{0, 0}, high{0, 0}, dilation{1, 1};
  bool exact = true;  // multiply f32 exactly, not on the matrix units

  bool channels_last() const { return w.strides[1] == 1 && w.sizes[2] * w.sizes[3] > 1; }
  std::string key() const;  // everything that the library's proposals depend on
};

// One convolution in the library's terms, and the library's proposals for it.
class CudnnConvolution {
 public:
  using Descriptor = Owned<CudnnDescriptor, CudnnCall<CudnnDescriptor>>;
  struct Proposal {
    Descriptor config;
    int64_t engine = 0;  // the library's algorithm number
    // Bitwise reproducible, with f32 sums of unrounded factors, and without run-time compilation, which takes half a second.
    bool allowed = false;
  };
  struct Plan {
    Descriptor config, descriptor;
    int64_t workspace_bytes = 0;
  };
  struct Addresses {
    DevicePointer x = 0, w = 0, y = 0, workspace = 0;
  };

  CudnnConvolution(const Cudnn& cudnn, const CudnnConv& conv);

  std::vector<Proposal> proposals() const;            // best first, as estimated by the library
  std::optional<Plan> plan(Proposal proposal) const;  // empty if it does not work for this convolution after all
  void enqueue(const Plan& plan, const Addresses& at, StreamHandle stream) const;

 private:
  Descriptor make(int kind) const;
  Descriptor tensor(const CudnnArray& array, int64_t id) const;
  template <class T>
  void set(const Descriptor& descriptor, int attribute, int type, const T& value) const;

  const Cudnn& cudnn_;
  CudnnConv conv_;
  Descriptor x_, w_, y_, operator_, operation_, graph_;
};

}  // namespace ridge::cuda
