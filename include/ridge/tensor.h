// Tensors with ordinary operators. They are lazy: an expression becomes one compiled, fused program when somebody looks.
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
struct TensorState;
}

class Tensor {
 public:
  Tensor() = default;                                    // no tensor at all; defined() is false
  Tensor(double value, DType dtype = DType::f32);        // a scalar; implicit, so that x * 2 reads as it should
  Tensor(Shape shape, std::span<const float> values);    // f32, copied
  Tensor(Shape shape, std::span<const int64_t> values);  // i64
  Tensor(Shape shape, std::initializer_list<float> values) : Tensor(shape, std::span<const float>(values.begin(), values.size())) {}
  static Tensor zeros(Shape shape, DType dtype = DType::f32);
  static Tensor from_bytes(Shape shape, DType dtype, const void* bytes);
  static Tensor load(const std::string& npy_file);
  void save(const std::string& npy_file) const;

  bool defined() const { return state_ != nullptr; }
  const Shape& shape() const;
  DType dtype() const;
  int64_t size() const { return shape().numel(); }

  void eval() const;                     // computes it now, with all that it depends on
  const void* data() const;              // evaluates; contiguous, in dtype(), in the host's memory
  void* mutable_data();                  // of a computed tensor: leaves every other tensor as it is
  std::vector<float> to_floats() const;  // evaluates, converts
  std::vector<int64_t> to_ints() const;
  double item() const;  // of a single element

  explicit Tensor(std::shared_ptr<detail::TensorState> state) : state_(std::move(state)) {}
  const std::shared_ptr<detail::TensorState>& state() const { return state_; }

 private:
  std::shared_ptr<detail::TensorState> state_;
};

// Where expressions are computed from now on: the CPU at first, or a GPU ("cuda", "cuda:1"). Tensors go there when an expression needs them,
// and come back when they are read. ErrorCode::unsupported names what a device lacks.
void use_device(const Device& device);
void use_device(std::string_view name);
Device used_device();

std::string to_string(const Tensor& tensor);  // evaluates; long axes are shortened
void print(const Tensor& tensor);
void print(const std::string& text);

// Gradients of a scalar, as tensors that can be used and differentiated like any other.
std::vector<Tensor> grad(const Tensor& loss, std::span<const Tensor> wrt);
inline std::vector<Tensor> grad(const Tensor& loss, std::initializer_list<Tensor> wrt) { return grad(loss, std::span<const Tensor>(wrt.begin(), wrt.size())); }

// How many expressions were compiled and how many found compiled; storage that eager tensors hold and reuse.
struct EagerStatistics {
  int64_t compiled = 0, reused = 0, evicted = 0;
  int64_t kernels = 0;  // in the program that ran last
  int64_t pool_requests = 0, pool_reuses = 0, pool_bytes = 0, pool_peak = 0;
};
EagerStatistics eager_statistics();
void trim_pool();

}  // namespace ridge
