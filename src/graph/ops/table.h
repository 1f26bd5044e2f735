// The op table: one row per operation, complete or it does not compile.
#pragma once
#include <array>
#include <functional>
#include <vector>

#include "graph/graph.h"

namespace ridge {

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

struct OpRow {
  // by_decomposition: the gradient is that of the decomposition, so no rule of its own.
  enum Traits : uint32_t { none = 0, no_gradient = 1, macro = 2, by_decomposition = 4, source = 8 };
  Op op = Op::count;
  int min_in = 0, max_in = 0;  // max -1: any number
  uint32_t traits = none;
  std::vector<Type> (*infer)(const InferContext&) = nullptr;
  void (*vjp)(GradContext&) = nullptr;                              // mandatory unless no_gradient or by_decomposition
  std::vector<NodeId> (*decompose)(Graph&, NodeId node) = nullptr;  // one node per output; mandatory for a macro op
  Cost (*cost)(const Graph&, NodeId node) = nullptr;
  void (*samples)(const SampleSink&) = nullptr;  // mandatory unless a source
};

const OpRow& row(Op op);

}  // namespace ridge
