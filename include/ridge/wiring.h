// Wirings: which neurons of a circuit are connected, and whether a synapse excites (+1) or inhibits (-1) its target.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ridge {

// A neural circuit policy: inputs drive inter neurons, these drive command neurons, which drive each other and the motor neurons (the outputs).
struct NcpArgs {
  int64_t inter = 0, command = 0, motor = 0;  // neurons in each layer
  int64_t sensory_fanout = 0;                 // inter neurons that each input drives
  int64_t inter_fanout = 0;                   // command neurons that each inter neuron drives
  int64_t recurrent_command = 0;              // synapses between command neurons, including from a neuron to itself
  int64_t motor_fanin = 0;                    // command neurons that drive each motor neuron
  uint64_t seed = 22222;
};

// Synapses are drawn from the seed by counter-based random numbers. Those between neurons do not depend on the number of inputs.
class Wiring {
 public:
  static constexpr int64_t kMost = 8192;  // units and inputs; the matrices are dense

  // Every pair of neurons and every input with every neuron; a third of the synapses inhibit. outputs = 0: all units are outputs.
  static Wiring fully_connected(int64_t units, int64_t outputs = 0, bool self_connections = true, uint64_t seed = 1111);
  // Exactly round(pairs · (1 - sparsity)) synapses between neurons, and from inputs to neurons; a third of them inhibit. Nothing is repaired.
  static Wiring random(int64_t units, int64_t outputs, double sparsity, uint64_t seed = 1111);
  // Half of the synapses inhibit. A neuron that no synapse was drawn for gets as many as its neighbours have on average, so every neuron has a path from an
  // input and to an output.
  static Wiring ncp(const NcpArgs& args);
  // An NCP with 2/5 of the hidden units as command neurons, and fan-outs of (1 - sparsity) of the next layer.
  static Wiring auto_ncp(int64_t units, int64_t outputs, double sparsity = 0.5, uint64_t seed = 22222);
  // "full:UNITS[,OUTPUTS]", "random:UNITS,OUTPUTS,SPARSITY", "auto:UNITS,OUTPUTS[,SPARSITY]", "ncp:INTER,COMMAND,MOTOR[,…]"; all may be name=number.
  // ErrorCode::usage names what is wrong.
  static Wiring parse(std::string_view words);
  static bool is_kind(std::string_view words);  // begins with "full", "random", "auto" or "ncp", then a colon or nothing

  // No synapses yet: build(), then add_synapse() and add_sensory_synapse().
  Wiring(int64_t units, int64_t outputs);
  void add_synapse(int64_t source, int64_t target, int polarity);  // replaces an earlier synapse of the same pair
  void add_sensory_synapse(int64_t input, int64_t target, int polarity);
  void set_layers(std::vector<std::vector<int64_t>> layers);  // each neuron in exactly one

  void build(int64_t inputs);  // draws the synapses from inputs; a second call must name the same number
  bool built() const { return inputs_ > 0; }

  int64_t units() const { return units_; }
  int64_t inputs() const { return inputs_; }                         // 0 until built
  int64_t outputs() const { return outputs_; }                       // the neurons 0 … outputs - 1
  const std::vector<int8_t>& synapses() const { return synapses_; }  // [units, units], row = source, column = target: -1, 0 or +1
  const std::vector<int8_t>& sensory() const;                        // [inputs, units]
  int64_t layers() const { return int64_t(layers_.size()); }         // 3 in an NCP, else 1
  const std::vector<int64_t>& layer(int64_t i) const;                // neurons; layer 0 is nearest to the inputs
  int64_t synapse_count() const;                                     // between neurons
  int64_t sensory_synapse_count() const;                             // from inputs

  std::string json() const;                        // every synapse, so that loading it does not depend on a seed
  static Wiring from_json(std::string_view text);  // ErrorCode::io names the place and the number
  static Wiring load(const std::string& path);     // the same from a file

 private:
  enum class Kind { given, full, random, ncp };
  Kind kind_ = Kind::given;
  int64_t units_, inputs_ = 0, outputs_, inter_ = 0, sensory_fanout_ = 0;
  double sparsity_ = 0;
  uint64_t seed_ = 0;
  std::vector<int8_t> synapses_, sensory_;
  std::vector<std::vector<int64_t>> layers_;
};

// Neurons as tables and pictures group them: by layer; the hidden neurons and the outputs of a wiring with one layer are two groups.
struct NeuronGroup {
  std::string name;
  std::vector<int64_t> neurons;
};
std::vector<NeuronGroup> neuron_groups(const Wiring& wiring);

// Connectivity of a wiring.
struct WiringStatistics {
  // Synapses from one group of neurons, or the inputs, to another.
  struct Block {
    std::string from, to;
    int64_t excitatory = 0, inhibitory = 0, pairs = 0;  // pairs: synapses that could be
  };
  std::vector<Block> blocks;                         // those with synapses
  double sparsity = 0, sensory_sparsity = 0;         // share of the pairs without a synapse
  std::vector<int64_t> in_degrees, out_degrees;      // of each neuron; synapses from inputs count
  std::vector<int64_t> components;                   // sizes of the strongly connected components, largest first
  double mean_path = 0;                              // synapses on the shortest path, over all pairs of different neurons that have a path
  int64_t longest_path = 0;                          // the longest of these
  std::vector<int64_t> unreachable, without_effect;  // neurons without a path from an input; without one to an output
};
WiringStatistics statistics(const Wiring& wiring);

}  // namespace ridge
