// What is behind a Tensor: memory, or a place in a lazy graph, or a name for something that is bound later.
#pragma once
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "graph/builder.h"
#include "graph/graph.h"
#include "ridge/tensor.h"

namespace ridge::detail {

// An expression that has not been computed. Its inputs are tensors that have memory or are placeholders.
struct Lazy {
  Graph graph;
  std::unordered_map<const TensorState*, NodeId> node_of;
  std::unordered_map<NodeId, std::shared_ptr<TensorState>> bound;
};

struct EagerDevice;

struct TensorState : std::enable_shared_from_this<TensorState> {
  Type type;
  std::shared_ptr<std::byte> data;   // in the host's memory; null until computed there or read
  std::shared_ptr<std::byte> there;  // in a device's memory; null: not there
  EagerDevice* device = nullptr;     // which
  bool shared = false;               // others write into it at any time, into `there` if that is set: a copy elsewhere is old at once
  std::shared_ptr<Lazy> lazy;        // null for leaves
  NodeId id = kNone;
  std::string name;  // of a placeholder or a parameter

  bool has_value() const { return data || there; }
};
const std::shared_ptr<std::byte>& on_host(TensorState& state);           // of one that has a value
void share_memory(TensorState& state, std::shared_ptr<std::byte> data);  // its bytes are these from now on
void share_memory(TensorState& state, std::shared_ptr<std::byte> there, EagerDevice& device);
void assign(TensorState& state, const void* bytes);  // new values, wherever it lies

Tensor make_leaf(Type type, std::shared_ptr<std::byte> data, std::string name = "");
Tensor placeholder(Type type, std::string name);
Tensor lazy_tensor(const std::shared_ptr<Lazy>& lazy, NodeId id);

// The node of a tensor inside `lazy`, imported if need be.
NodeId node_in(const std::shared_ptr<Lazy>& lazy, const Tensor& tensor);

// One graph that holds all of them.
std::shared_ptr<Lazy> common_lazy(std::span<const Tensor> tensors);

// fn(builder, nodes) over tensors, in their common graph.
std::vector<Tensor> lift(std::span<const Tensor> in, const std::function<std::vector<NodeId>(Builder&, std::span<const NodeId>)>& fn);
Tensor lift1(std::initializer_list<Tensor> in, const std::function<NodeId(Builder&, std::span<const NodeId>)>& fn);

std::shared_ptr<std::byte> allocate(int64_t bytes, bool zero = false);  // from the eager pool
void evaluate(std::span<const Tensor> tensors);                         // in one program

// Numbers that were written into a formula become literals of another graph. Any other input that is not `known` yet is an error
// that begins with `who`.
void bind_numbers(const Lazy& lazy, std::span<const NodeId> roots, Builder& b, std::unordered_map<NodeId, NodeId>& known, const std::string& who);

// Where random functions take their operands from: a training step sets one for the time of its trace.
struct RandomSource {
  Tensor seed, step, base;  // i64 scalars; base counts samples
  uint32_t next_stream = 1;
};
RandomSource*& current_random();
RandomSource& random_source();  // the current one, or that of eager tensors
struct RandomDraw {
  Tensor seed, step, base;
  uint32_t stream;
};
RandomDraw draw_random();

}  // namespace ridge::detail
