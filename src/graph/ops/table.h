// The op table: one row per operation. An incomplete row does not compile.
#pragma once
#include <array>
#include <functional>
#include <optional>
#include <vector>

#include "graph/graph.h"

namespace ridge {

class Builder;

// Input of a rule that infers an operation's result types from its operand types.
struct InferContext {
  Op op;
  std::span<const Type> in;
  const Attrs& attrs;
};

struct Cost {
  double flops = 0;  // algorithmic: causal attention counts half
  double bytes = 0;  // operands read once, results written once
  double again = 0;  // the part of `flops` that a loop's gradient spends on recomputing the loop body
};

// Input of a gradient rule: the node, the incoming gradients, and where to add the operands' gradients.
class GradContext {
 public:
  virtual ~GradContext() = default;
  virtual Graph& graph() = 0;
  virtual NodeId node() const = 0;
  virtual NodeId cotangent(int output = 0) const = 0;  // kNone when that output has no incoming gradient
  virtual bool needs(int operand) const = 0;
  virtual void add(int operand, NodeId gradient) = 0;
  // vector_jacobian() of any graph, for ops that contain one.
  virtual std::vector<NodeId> pull_back(Graph& graph, std::span<const NodeId> outputs, std::span<const NodeId> cotangents,
                                        std::span<const NodeId> wrt) const = 0;
  NodeId in(int operand) { return graph()[node()].in[operand]; }
};

// One test case for an op: operand types with their value ranges, and attributes.
struct Sample {
  struct Operand {
    Type type;
    double low = -2, high = 2;   // the value range; integers are rounded down
    bool differentiable = true;  // floating operands only
  };
  std::vector<Operand> in;
  Attrs attrs;
  double avoid = 0;  // minimum distance of operand values from integers (kinks of floor, sign, …)
};
using SampleSink = std::function<void(Sample)>;

// The batch axis of a value: sample s of `count` is stored at indices s * inner … s * inner + inner - 1 of `axis`.
struct SampleAxis {
  int axis;
  int64_t inner, count;
  bool operator==(const SampleAxis&) const = default;
};

// Input of a batch rule. At least one operand has a sample axis.
struct BatchContext {
  const Graph& graph;
  NodeId node;
  std::span<const std::optional<SampleAxis>> in;  // per operand; nullopt: the same for all samples
  const Node& operator*() const { return graph[node]; }
};
struct BatchFlow {
  std::optional<SampleAxis> at;  // of the result
  bool summed = false;           // the result is summed over the samples
};
struct Coupled {  // thrown by a batch rule that would mix samples
  std::string why;
};

// Input of a lift rule: a node of a loop body whose value varies by step, to be computed for all steps in one operation.
struct LiftContext {
  struct Operand {
    NodeId id;
    bool varies;  // it varies by step, so `id` has a leading time axis
  };
  Builder& builder;
  const Node& node;
  int64_t steps;
  std::span<const Operand> in;
  NodeId stacked(size_t operand) const;  // [steps, …]
};

// How an op takes part in kernels.
enum class Fusion : uint8_t {
  no_kernel,  // no kernel: an input, part of another node's result, or removed before kernels are chosen
  tile,       // a value in a loop nest, fused with its neighbours
  view,       // an index map, needs no kernel
  product,    // a contraction, with an epilogue
  alone,      // a kernel of its own
};

// cheap: recomputing the value costs no more than reading it, so kernels may recompute it instead of storing it.
enum class Effort : uint8_t { cheap, full };

struct OpRow {
  // by_decomposition: uses the gradient of the decomposition and has no rule of its own.
  // real: operands are floating. truth: the result is boolean. logic: operands and result are boolean.
  // picks: reads its first operand at runtime indices, so that operand must be in memory.
  // in_loop: cannot be computed for all steps of a loop in one operation. fixed_one: can be, if one of its two operands is the same in
  // every step.
  enum Traits : uint32_t {
    none = 0,
    no_gradient = 1,
    macro = 2,
    by_decomposition = 4,
    source = 8,
    elementwise = 16,
    reduction = 32,
    real = 64,
    truth = 128,
    logic = 256,
    picks = 512,
    in_loop = 1024,
    fixed_one = 2048,
  };
  Op op = Op::count;
  int min_in = 0, max_in = 0;  // max_in -1: any number
  uint32_t traits = none;
  Fusion fusion = Fusion::no_kernel;
  Effort effort = Effort::full;
  std::vector<Type> (*infer)(const InferContext&) = nullptr;
  void (*vjp)(GradContext&) = nullptr;                              // mandatory unless no_gradient or by_decomposition
  std::vector<NodeId> (*decompose)(Graph&, NodeId node) = nullptr;  // one node per output; mandatory for a macro op
  Cost (*cost)(const Graph&, NodeId node) = nullptr;
  void (*samples)(const SampleSink&) = nullptr;  // mandatory for all ops except sources
  BatchFlow (*batch)(const BatchContext&) = nullptr;
  NodeId (*lift)(const LiftContext&) = nullptr;  // mandatory unless in_loop

  bool has(uint32_t some) const { return (traits & some) != 0; }
};

extern const std::array<OpRow, size_t(Op::count)> kOpTable;
inline const OpRow& row(Op op) { return kOpTable[size_t(op)]; }

inline bool is_elementwise(Op op) { return row(op).has(OpRow::elementwise); }
inline bool is_reduction(Op op) { return row(op).has(OpRow::reduction); }
inline bool is_comparison(Op op) { return row(op).has(OpRow::truth) && !row(op).has(OpRow::logic) && row(op).max_in == 2; }
inline bool is_view(Op op) { return row(op).fusion == Fusion::view; }
inline bool is_strided_view(Op op) { return is_view(op) && op != Op::pad && op != Op::concat; }  // a view of one operand in which every element exists

}  // namespace ridge
