// A graph compiled for a benchmark, with its own operands: one set if hot, enough for four times the last-level cache if cold.
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

NodeId input(Builder& b, Formula& formula, const Shape& shape, DType dtype = DType::f32);  // adds an input

Call compile(const Context& context, const Trace& trace, const std::string& passes = "");

}  // namespace ridge::bench
