// Builds graphs from formulas: promotes dtypes, broadcasts shapes, and expands convenience functions into primitives. Macro-like functions
// (norms, softmax, losses) expand here; the fuser turns the result back into one kernel.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace ridge {

struct RandomOperands {     // rank-0 i64 nodes and the stream of this call
  NodeId seed, step, base;  // base: index of the first element in the global batch
  uint32_t stream;
};

struct ConvOptions {  // one entry per spatial axis; empty: 1 (0 for padding)
  std::vector<int64_t> stride = {}, padding_low = {}, padding_high = {}, input_dilation = {}, dilation = {};
  int64_t groups = 1;
};

struct AttentionOptions {
  double scale = 0;       // 0: 1 / sqrt(dim)
  bool causal = false;    // aligned so that the last query sees the last key
  NodeId mask = kNone;    // boolean (true: may attend) or f32 (added), broadcast to [batch, heads, queries, keys]
  NodeId length = kNone;  // i64 scalar: number of valid keys
  double dropout = 0;
  std::optional<RandomOperands> random = {};  // required when dropout > 0
};

class Builder {
 public:
  explicit Builder(Graph& graph) : g_(graph) {}
  Graph& graph() { return g_; }
  const Shape& shape(NodeId x) const { return g_.shape(x); }
  DType dtype(NodeId x) const { return g_.dtype(x); }

  NodeId literal(DType dtype, double value) { return g_.literal(dtype, value); }
  NodeId full(const Shape& shape, DType dtype, double value) { return expand(literal(dtype, value), shape); }
  NodeId like(NodeId x, double value) { return full(shape(x), dtype(x), value); }
  NodeId iota(const Shape& shape, int axis, DType dtype = DType::i64);
  NodeId one_hot(NodeId index, int64_t classes, DType dtype = DType::f32);  // appends an axis

  NodeId unary(Op op, NodeId x);
  NodeId binary(Op op, NodeId a, NodeId b);
  NodeId binary(Op op, NodeId a, double b);  // the number is converted to a's dtype (f32 when a is an integer tensor and the number is not whole)
  NodeId binary(Op op, double a, NodeId b);
  NodeId cast(NodeId x, DType dtype);
  NodeId select(NodeId condition, NodeId a, NodeId b);
  NodeId clamp(NodeId x, double low, double high);
  NodeId stop_gradient(NodeId x);

  NodeId add(NodeId a, NodeId b) { return binary(Op::add, a, b); }
  NodeId sub(NodeId a, NodeId b) { return binary(Op::sub, a, b); }
  NodeId mul(NodeId a, NodeId b) { return binary(Op::mul, a, b); }
  NodeId div(NodeId a, NodeId b) { return binary(Op::div, a, b); }
  NodeId add(NodeId a, double b) { return binary(Op::add, a, b); }
  NodeId sub(NodeId a, double b) { return binary(Op::sub, a, b); }
  NodeId mul(NodeId a, double b) { return binary(Op::mul, a, b); }
  NodeId div(NodeId a, double b) { return binary(Op::div, a, b); }
  NodeId neg(NodeId x) { return unary(Op::neg, x); }
  NodeId square(NodeId x) { return mul(x, x); }

  NodeId reshape(NodeId x, Shape shape);  // one size may be -1
  NodeId permute(NodeId x, const Shape& axes);
  NodeId transpose(NodeId x, int a = -2, int b = -1);
  NodeId expand(NodeId x, const Shape& shape);                                      // broadcasts; may add leading axes
  NodeId slice(NodeId x, int axis, int64_t start, int64_t stop, int64_t step = 1);  // negative positions count from the end
  NodeId pad(NodeId x, int axis, int64_t low, int64_t high, int64_t interior = 0, double value = 0);
  NodeId concat(std::span<const NodeId> parts, int axis);
  NodeId stack(std::span<const NodeId> parts, int axis);
  std::vector<NodeId> split(NodeId x, std::span<const int64_t> sizes, int axis);
  NodeId flip(NodeId x, std::span<const int64_t> axes);
  NodeId windows(NodeId x, int axis, int64_t size, int64_t stride = 1, int64_t dilation = 1);  // appends an axis of `size`
  NodeId dynamic_slice(NodeId x, std::span<const NodeId> starts, const Shape& sizes);          // starts are clamped
  NodeId dynamic_update_slice(NodeId x, NodeId update, std::span<const NodeId> starts);

  NodeId gather(NodeId x, NodeId index, int axis);                  // index has the same rank as x
  NodeId scatter(NodeId x, NodeId index, NodeId source, int axis);  // for duplicate indices the last one wins
  NodeId scatter_add(NodeId x, NodeId index, NodeId source, int axis);
  NodeId take(NodeId x, NodeId index, int axis);                                // an index of any rank replaces the axis (embedding: axis 0)
  std::pair<NodeId, NodeId> sort(NodeId x, int axis, bool descending = false);  // values and i64 indices; stable
  std::pair<NodeId, NodeId> topk(NodeId x, int64_t k, int axis, bool largest = true);

  // Axes may be negative; an empty list means all axes. `keep` retains reduced axes with size 1.
  NodeId reduce(Op op, NodeId x, std::span<const int64_t> axes = {}, bool keep = false);
  NodeId sum(NodeId x, std::span<const int64_t> axes = {}, bool keep = false) { return reduce(Op::reduce_sum, x, axes, keep); }
  NodeId mean(NodeId x, std::span<const int64_t> axes = {}, bool keep = false);
  NodeId var(NodeId x, std::span<const int64_t> axes = {}, bool keep = false, int64_t ddof = 1);
  NodeId logsumexp(NodeId x, std::span<const int64_t> axes = {}, bool keep = false);
  NodeId arg(Op op, NodeId x, std::optional<int64_t> axis = {}, bool keep = false);  // no axis: index into the flattened tensor
  NodeId cumsum(NodeId x, int axis, bool reverse = false);

  NodeId matmul(NodeId a, NodeId b);  // vectors, matrices and broadcast batches, as in PyTorch
  NodeId einsum(const std::string& equation, std::span<const NodeId> operands);
  NodeId conv(NodeId x, NodeId weight, ConvOptions options = {});  // x [N, C, spatial…], weight [O, C / groups, window…]
  NodeId max_pool(NodeId x, std::span<const int64_t> size, std::span<const int64_t> stride, std::span<const int64_t> padding);
  NodeId avg_pool(NodeId x, std::span<const int64_t> size, std::span<const int64_t> stride, std::span<const int64_t> padding);

  NodeId uniform(const Shape& shape, const RandomOperands& random);
  NodeId normal(const Shape& shape, const RandomOperands& random);
  NodeId bernoulli(const Shape& shape, double probability, const RandomOperands& random);  // boolean
  NodeId dropout(NodeId x, double probability, const RandomOperands& random);
  NodeId categorical(NodeId logits, const RandomOperands& random);  // over the last axis, i64
  NodeId permutation(int64_t n, const RandomOperands& random);      // i64

  NodeId softmax(NodeId x, int axis = -1);
  NodeId log_softmax(NodeId x, int axis = -1);
  NodeId layer_norm(NodeId x, NodeId weight, NodeId bias, double eps = 1e-5);  // over the last axis; weight, bias may be kNone
  NodeId rms_norm(NodeId x, NodeId weight, double eps = 1e-5);
  // Over all axes except 1. In training it uses and returns the batch statistics (biased variance); otherwise it uses the given ones.
  struct BatchNorm {
    NodeId out, mean, var;
  };
  BatchNorm batch_norm(NodeId x, NodeId weight, NodeId bias, NodeId mean, NodeId var, bool training, double eps = 1e-5);
  // The sum of the losses and the number of counted targets. logits [rows…, classes], target i64 [rows…].
  struct SumCount {
    NodeId sum, count;
  };
  SumCount cross_entropy(NodeId logits, NodeId target, std::optional<int64_t> ignore = {});
  NodeId linear(NodeId x, NodeId weight, NodeId bias = kNone);                           // weight [out, in]
  NodeId attention(NodeId q, NodeId k, NodeId v, const AttentionOptions& options = {});  // [batch, heads, positions, dim]
  NodeId rope(NodeId x, NodeId position, double theta = 10000);  // x [batch, heads, T, dim], position i64 [T]; pairs element i with i + dim / 2

  NodeId get(NodeId node, int output) { return g_.add(Op::get, {node}, {{output}, {}, nullptr}); }

 private:
  std::vector<int64_t> normal_axes(NodeId x, std::span<const int64_t> axes, Op op);
  NodeId restore_axes(NodeId reduced, const Shape& original, std::span<const int64_t> axes);
  NodeId unfold_windows(NodeId x, std::span<const int64_t> size, std::span<const int64_t> stride);
  Graph& g_;
};

}  // namespace ridge
