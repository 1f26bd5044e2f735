// Modules: structs of tensors with names. A module lists its parts in `visit`, which names its parameters up.weight, up.bias, …
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "ridge/ops.h"
#include "ridge/training.h"

namespace ridge {

// A parameter of a module.
struct NamedTensor {
  std::string name;  // "up.weight"
  Tensor* tensor;    // points to the module's member
  bool decay;        // whether weight decay applies: true for matrices, false for norms and biases
  ParameterRule rule = ParameterRule::trained;
};

// Collects a module's parameters: visit(v) calls v("name", member) for each submodule, tensor, or container of these.
class Visitor {
 public:
  explicit Visitor(std::vector<NamedTensor>& found) : found_(found) {}
  template <class Member>
  Visitor& operator()(const std::string& name, Member& member) {
    std::string outer = prefix_;
    prefix_ += (prefix_.empty() ? "" : ".") + name;
    if constexpr (std::is_same_v<Member, Tensor>) {
      if (member.defined()) found_.push_back({prefix_, &member, member.shape().rank() > 1});
    } else if constexpr (requires { member.begin(); }) {
      int i = 0;
      for (auto& item : member) (*this)(std::to_string(i++), item);
    } else {
      member.visit(*this);
    }
    prefix_ = outer;
    return *this;
  }
  Visitor& operator()(const std::string& name, Tensor& member, ParameterRule rule) {
    const size_t before = found_.size();
    (*this)(name, member);
    for (size_t i = before; i < found_.size(); ++i) found_[i].rule = rule, found_[i].decay &= rule != ParameterRule::constant;
    return *this;
  }

 private:
  std::vector<NamedTensor>& found_;
  std::string prefix_;
};

// All parameters of a module, in the order of its visit().
template <class Module>
std::vector<NamedTensor> parameters(Module& module) {
  std::vector<NamedTensor> found;
  Visitor v(found);
  module.visit(v);
  return found;
}

// x · weightᵀ + bias over the last axis. Weights and biases start at uniform(-1/sqrt(in), 1/sqrt(in)), as in PyTorch.
struct Linear {
  Linear(int64_t in, int64_t out, bool with_bias = true);
  Tensor operator()(const Tensor& x) const { return linear(x, weight, bias); }
  void visit(Visitor& v) { v("weight", weight)("bias", bias); }
  Tensor weight, bias;  // [out, in], [out]
};

// Normalises the last axis to mean 0 and variance 1, then applies a weight (initially 1) and a bias (initially 0).
struct LayerNorm {
  explicit LayerNorm(int64_t width, bool with_bias = true);
  Tensor operator()(const Tensor& x) const { return layer_norm(x, weight, bias); }
  void visit(Visitor& v) { v("weight", weight)("bias", bias); }
  Tensor weight, bias;  // [width] each
};

// Rows of a table by index. The table starts at 0.02 · normal(0, 1), as in GPT-2.
struct Embedding {
  Embedding(int64_t entries, int64_t width);
  Tensor operator()(const Tensor& index) const { return embedding(index, weight); }
  void visit(Visitor& v) { v("weight", weight); }
  Tensor weight;  // [entries, width]
};

// A convolution of [batch, in, height, width] with a square window. Weights and biases start as in PyTorch.
struct Conv2d {
  Conv2d(int64_t in, int64_t out, int64_t window, ConvArgs args = {}, bool with_bias = true);
  Tensor operator()(const Tensor& x) const;
  void visit(Visitor& v) { v("weight", weight)("bias", bias); }
  Tensor weight, bias;  // [out, in / groups, window, window], [out]
  ConvArgs args;
};

}  // namespace ridge
