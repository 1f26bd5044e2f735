// The description of a model parameter: name, shape, initialization, and whether weight decay applies.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "ridge/shape.h"
#include "ridge/training.h"

namespace ridge {

struct Parameter {
  std::string name;
  Shape shape;
  double mean = 0, deviation = 0;  // initialized from normal(mean, deviation); deviation 0: to mean
  bool decay = false;              // true for matrices, false for norms and biases
  int64_t used_rows = 0;           // of the first axis; further rows are padding: 0, never trained, not in files. 0: all rows
  ParameterRule rule = ParameterRule::trained;
};

Shape used_shape(const Parameter& parameter);  // without padding; the used values come first in memory

// Draws a parameter's initial values on the host: the same bits for every device. `index` is its position among the model's parameters.
void initialize(const Parameter& parameter, uint64_t seed, uint32_t index, std::span<float> values);

// `value` for parameters that decay and 0 for the others, in the form the optimizers take.
std::vector<double> decay_values(std::span<const Parameter> parameters, double value);

}  // namespace ridge
