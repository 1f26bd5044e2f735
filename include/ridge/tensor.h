// Tensors with ordinary operators. They are lazy: reading a value compiles its whole expression into one fused program and runs it.
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ridge/device.h"
#include "ridge/dtype.h"
#include "ridge/error.h"
#include "ridge/shape.h"

namespace ridge {

namespace detail {
struct TensorState;  // internal
}

// A multi-dimensional array, or an expression that computes one. Copies share the value. An expression has the value that its inputs had when it was
// built, whenever it is read: a step, load_weights() and mutable_data() first compute the expressions that still use the weights they are about to change.
class Tensor {
 public:
  Tensor() = default;                                    // undefined: defined() is false
  Tensor(double value, DType dtype = DType::f32);        // a scalar; implicit, so that x * 2 works
  Tensor(Shape shape, std::span<const float> values);    // f32, copied
  Tensor(Shape shape, std::span<const int64_t> values);  // i64, copied
  Tensor(Shape shape, std::initializer_list<float> values) : Tensor(shape, std::span<const float>(values.begin(), values.size())) {}
  static Tensor zeros(Shape shape, DType dtype = DType::f32);
  static Tensor from_bytes(Shape shape, DType dtype, const void* bytes);  // copies contiguous elements of the type
  static Tensor load(const std::string& npy_file);                        // reads a NumPy file. Throws ErrorCode::io
  void save(const std::string& npy_file) const;                           // evaluates, then writes a NumPy file. Throws ErrorCode::io

  bool defined() const { return state_ != nullptr; }  // false after default construction
  const Shape& shape() const;                         // known without evaluating
  DType dtype() const;                                // of the elements
  int64_t size() const { return shape().numel(); }    // number of elements

  void eval() const;                     // computes the value now, with everything it depends on
  const void* data() const;              // evaluates; contiguous elements of type dtype(), in host memory
  void* mutable_data();                  // evaluates; writing changes no other tensor. Call it again before writing after using the tensor in an expression
  std::vector<float> to_floats() const;  // evaluates and converts
  std::vector<int64_t> to_ints() const;  // evaluates and converts
  double item() const;                   // the value of a tensor with one element

  // Internal.
  explicit Tensor(std::shared_ptr<detail::TensorState> state) : state_(std::move(state)) {}
  const std::shared_ptr<detail::TensorState>& state() const { return state_; }

 private:
  std::shared_ptr<detail::TensorState> state_;
};

// Selects the device on which expressions are computed from now on: "cpu" (the default), "cuda" or "cuda:1". Tensors are copied there when an
// expression needs them and back when they are read. Throws ErrorCode::unsupported, naming what is missing.
void use_device(const Device& device);
void use_device(std::string_view name);
Device used_device();  // the currently selected device

// The tensor's values as text, with long axes abbreviated; evaluates it.
std::string to_string(const Tensor& tensor);

// Prints the values, or the text, and a newline to stdout.
void print(const Tensor& tensor);
void print(const std::string& text);

// Gradients of a scalar with respect to `wrt`, as tensors that can be used and differentiated like any others.
std::vector<Tensor> grad(const Tensor& loss, std::span<const Tensor> wrt);
inline std::vector<Tensor> grad(const Tensor& loss, std::initializer_list<Tensor> wrt) { return grad(loss, std::span<const Tensor>(wrt.begin(), wrt.size())); }

// Counters of the eager tensors in this process.
struct EagerStatistics {
  int64_t compiled = 0, reused = 0, evicted = 0;  // programs compiled, found in the cache, and dropped from it
  int64_t kernels = 0;                            // kernels in the program that ran last
  int64_t pool_requests = 0, pool_reuses = 0;     // allocations, and how many reused freed memory
  int64_t pool_bytes = 0, pool_peak = 0;          // memory held now, and its peak so far
};
EagerStatistics eager_statistics();

// Returns the pool's unused memory to the system.
void trim_pool();

}  // namespace ridge
