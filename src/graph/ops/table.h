// The op table: one row per operation, complete or it does not compile.
#pragma once
#include <array>
#include <functional>
#include <optional>
#include <vector>

#include "graph/graph.h"

namespace ridge {

class Builder;

// What an operation's result looks like, from its operands' types.
struct InferContext {
  Op op;
  std::span<const Type> in;
  const Attrs& attrs;
};

struct Cost {
  double flops = 0;  // algorithmic: a causal attention counts half
  double bytes = 0;  // operands read once, results written once
  double again = 0;  // of the flops: those that a loop's gradient spends on running the loop's body a second time
};

// What a gradient rule sees: the node, the gradients that arrived, and where to put those of the operands.
class GradContext {
 public:
  virtual ~GradContext() = default;
  virtual Graph& graph() = 0;
  virtual NodeId node() const = 0;
  virtual NodeId cotangent(int output = 0) const = 0;  // kNone when nothing arrived for that output
  virtual bool needs(int operand) const = 0;
  virtual void add(int operand, NodeId gradient) = 0;
  // vector_jacobian() of any graph, for ops that hold one.
  virtual std::vector<NodeId> pull_back(Graph& graph, std::span<const NodeId> outputs, std::span<const NodeId> cotangents,
                                        std::span<const NodeId> wrt) const = 0;
  NodeId in(int operand) { return graph()[node()].in[operand]; }
};

// One way to call an op, for its tests: operand types with the range of their values, and attributes.
struct Sample {
  struct Operand {
    Type type;
    double low = -2, high = 2;   // values drawn from here; integers are rounded down
    bool differentiable = true;  // floating operands only
  };
  std::vector<Operand> in;
  Attrs attrs;
  double avoid = 0;  // operands keep this distance from integers (kinks of floor, sign, …)
};
using SampleSink = std::function<void(Sample)>;

// Where a value has the samples of a batch: sample s of `count` at index s * inner … s * inner + inner - 1 of an axis.
struct SampleAxis {
  int axis;
  int64_t inner, count;
  bool operator==(const SampleAxis&) const = default;
};

// What a batch rule sees. At least one operand has samples.
struct BatchContext {
  const Graph& graph;
  NodeId node;
  std::span<const std::optional<SampleAxis>> in;  // per operand; none: it is the same for all samples
  const Node& operator*() const { return graph[node]; }
};
struct BatchFlow {
  std::optional<SampleAxis> at;  // of the result
  bool summed = false;           // it was added up over the samples
};
struct Coupled {  // thrown by a batch rule: samples would not be kept apart
  std::string why;
};

// What a lift rule sees: a node of a loop's body whose value changes with the step, to be computed for all steps at once.
struct LiftContext {
  struct Operand {
    NodeId id;
    bool varies;  // then it has a time axis in front
  };
  Builder& builder;
  const Node& node;
  int64_t steps;
  std::span<const Operand> in;
  NodeId stacked(size_t operand) const;  // [steps, …]
};

// How an op becomes a part of kernels.
enum class Fusion : uint8_t {
  no_kernel,  // it is given, a part of another node's result, or gone before kernels are chosen
  tile,       // a value of a loop nest, fused with its neighbours
  view,       // an index map that costs no kernel
  product,    // a contraction, with an epilogue
  alone,      // a kernel of its own
};

// cheap: computing it costs no more than reading its result, so kernels may repeat it instead of storing it.
enum class Effort : uint8_t { cheap, full };

struct OpRow {
  // by_decomposition: the gradient is that of the decomposition, so no rule of its own.
  // real: operands are floating. truth: the result is boolean. logic: so are the operands.
  // picks: reads its first operand where an index says, so that must be in memory.
  // in_loop: cannot be computed for all steps of a loop at once. fixed_first: it can while its first operand is the same in every step.
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
    fixed_first = 2048,
  };
  Op op = Op::count;
  int min_in = 0, max_in = 0;  // max -1: any number
  uint32_t traits = none;
  Fusion fusion = Fusion::no_kernel;
  Effort effort = Effort::full;
  std::vector<Type> (*infer)(const InferContext&) = nullptr;
  void (*vjp)(GradContext&) = nullptr;                              // mandatory unless no_gradient or by_decomposition
  std::vector<NodeId> (*decompose)(Graph&, NodeId node) = nullptr;  // one node per output; mandatory for a macro op
  Cost (*cost)(const Graph&, NodeId node) = nullptr;
  void (*samples)(const SampleSink&) = nullptr;  // mandatory unless a source
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
inline bool is_strided_view(Op op) { return is_view(op) && op != Op::pad && op != Op::concat; }  // of one operand, all of whose elements exist

}  // namespace ridge
