// Neurons as pictures and tables group them.
#pragma once
#include <string>
#include <vector>

#include "ridge/wiring.h"

namespace ridge {

struct NeuronGroup {
  std::string name;
  std::vector<int64_t> neurons;
};
// The layers; a wiring with one layer has its hidden neurons and its outputs as two groups.
std::vector<NeuronGroup> neuron_groups(const Wiring& wiring);

}  // namespace ridge
