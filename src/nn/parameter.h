// A model's parameter before it exists: name, shape, how it starts, and whether weight decay applies.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "ridge/shape.h"

namespace ridge {

struct Parameter {
  std::string name;
  Shape shape;
  double mean = 0, deviation = 0;  // starts at normal(mean, deviation); deviation 0: at mean
  bool decay = false;              // matrices yes, norms and biases no
  int64_t used_rows = 0;           // of the first axis; those beyond are padding: 0, never trained, not in files. 0: all
};

Shape used_shape(const Parameter& parameter);  // without padding; its values come first in memory

// Draws a parameter's first values on the host: the same bits on every device. `index` is its place among the model's parameters.
void initialize(const Parameter& parameter, uint64_t seed, uint32_t index, std::span<float> values);

// `value` for those that decay and 0 for the others, as the optimizers take it.
std::vector<double> decay_values(std::span<const Parameter> parameters, double value);

}  // namespace ridge
