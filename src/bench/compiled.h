// A graph compiled for a benchmark, with operands of its own: one set when hot, as many as four times the last-level cache when cold.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "bench/bench.h"
#include "graph/builder.h"

namespace ridge::bench {

struct Formula {
  std::vector<NodeId> inputs, outputs;
};
using Trace = std::function<Formula(Builder&)>;

NodeId input(Builder& b, Formula& formula, const Shape& shape, DType dtype = DType::f32);  // another one

Call compile(const Context& context, const Trace& trace, const std::string& passes = "");

}  // namespace ridge::bench
