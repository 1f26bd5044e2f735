// The layer of the model and the phase of the step that each kernel of a program belongs to.
#pragma once
#include <string>
#include <vector>

#include "compile/program.h"

namespace ridge {

struct KernelOrigin {
  std::string layer;  // "h.0.attn.c_attn"; empty: none of its values comes from a parameter
  std::string phase;  // forward, backward, recomputed, update, evaluation, reading; other: not a program of a step
};
std::string layer_of(const std::string& parameter);  // "net.up" of "net.up.weight"
// A kernel belongs to the layer whose parameters it reads or whose gradients it writes; otherwise to that of its latest operand. Kernels of the backward pass
// take the layer of the forward values that they read.
std::vector<KernelOrigin> origins_of(const Program& program);

// Values in which −∞ marks what is left out: entries that a mask or a padding sets to −∞, and what follows from them until an exponential. By node.
std::vector<char> masked_values(const Graph& graph);

// The parameter whose gradient each output is; empty: none.
std::vector<std::string> gradients_among(const Program& program);

}  // namespace ridge
