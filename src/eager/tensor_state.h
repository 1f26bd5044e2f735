// The state behind a Tensor: memory, a node in a lazy graph, or a placeholder that is bound later.
#pragma once
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "graph/builder.h"
#include "graph/graph.h"
#include "ridge/tensor.h"

namespace ridge::detail {

// An expression that has not been evaluated. Its inputs are tensors that have memory or are placeholders.
struct Lazy {
  Graph graph;
  std::unordered_map<const TensorState*, NodeId> node_of;
  std::unordered_map<NodeId, std::shared_ptr<TensorState>> bound;
  std::vector<std::weak_ptr<TensorState>> tensors;  // those of its nodes that were given to users
};

struct EagerDevice;

struct TensorState : std::enable_shared_from_this<TensorState> {
  Type type;
  std::shared_ptr<std::byte> data;         // in host memory; null until computed there or downloaded
  std::shared_ptr<std::byte> device_data;  // in device memory; null: not on a device
  EagerDevice* device = nullptr;           // the device that `device_data` belongs to
  bool shared = false;                     // others may write to it at any time (to `device_data` if set), so a copy elsewhere is stale immediately
  std::shared_ptr<Lazy> lazy;              // null for leaves
  NodeId id = kNone;
  std::string name;                          // of a placeholder or a parameter
  std::vector<std::weak_ptr<Lazy>> readers;  // expressions that use its value; some are gone

  bool has_value() const { return data || device_data; }
};
const std::shared_ptr<std::byte>& on_host(TensorState& state);           // `state` must have a value
void share_memory(TensorState& state, std::shared_ptr<std::byte> data);  // uses this memory from now on
void share_memory(TensorState& state, std::shared_ptr<std::byte> device_data, EagerDevice& device);
void assign(TensorState& state, const void* bytes);  // sets new values, wherever the tensor is stored
// Called before the values of these tensors change: evaluates the expressions that use them and still have an owner, since an expression has the value
// that its inputs had when it was built. Allocates nothing if there are none.
void evaluate_readers(std::span<const std::weak_ptr<TensorState>> tensors);

Tensor make_leaf(Type type, std::shared_ptr<std::byte> data, std::string name = "");
Tensor placeholder(Type type, std::string name);
Tensor lazy_tensor(const std::shared_ptr<Lazy>& lazy, NodeId id);

// The node of a tensor inside `lazy`; imports it if necessary.
NodeId node_in(const std::shared_ptr<Lazy>& lazy, const Tensor& tensor);

// One graph that contains all of them.
std::shared_ptr<Lazy> common_lazy(std::span<const Tensor> tensors);

// Applies fn(builder, nodes) to tensors in their common graph.
std::vector<Tensor> lift(std::span<const Tensor> in, const std::function<std::vector<NodeId>(Builder&, std::span<const NodeId>)>& fn);
Tensor lift1(std::initializer_list<Tensor> in, const std::function<NodeId(Builder&, std::span<const NodeId>)>& fn);

std::shared_ptr<std::byte> allocate(int64_t bytes, bool zero = false);  // from the eager pool
void evaluate(std::span<const Tensor> tensors);                         // in one program

// Turns numbers written into a formula into literals of another graph. Any other input that is not yet `known` is an error whose message
// begins with `who`.
void bind_numbers(const Lazy& lazy, std::span<const NodeId> roots, Builder& b, std::unordered_map<NodeId, NodeId>& known, const std::string& who);

// Where random functions get their operands. A training step sets its own while it is traced.
struct RandomSource {
  Tensor seed, step, base;  // i64 scalars; base counts samples
  uint32_t next_stream = 1;
  std::vector<Tensor>* counted = nullptr;  // results of uniform_at() in the loop that is being traced; null outside of loops
};
RandomSource*& current_random();
RandomSource& random_source();  // the current one, or the default for eager tensors
struct RandomDraw {
  Tensor seed, step, base;
  uint32_t stream;
};
RandomDraw draw_random();

// While it exists, what the thread draws is a function of these numbers and not of what was drawn before, so that a resumed run draws the same. The streams
// are different from a step's for every purpose.
class DrawsOfHook {
 public:
  enum class Purpose : uint32_t { batch = 1, validation, sample };
  DrawsOfHook(uint64_t seed, int64_t step, Purpose purpose);
  ~DrawsOfHook();
  DrawsOfHook(const DrawsOfHook&) = delete;

 private:
  RandomSource before_;
};

}  // namespace ridge::detail
