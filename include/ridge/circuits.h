// Recurrent models over sequences with regular or irregular time steps: neural circuits (CfC, LTC) and their relatives, dense or wired.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ridge/nn.h"
#include "ridge/wiring.h"

namespace ridge {

// One time step of a recurrent model. Derive from it to use your own cell in a Circuit. A step is traced once, so that the loop over time compiles into the
// training step; what depends on parameters alone is computed once, before the loop.
class Cell {
 public:
  virtual ~Cell() = default;
  // The next state. x is [batch, inputs()] and each state [batch, size]. `timespan`, the time since the previous step, is undefined (meaning 1), a scalar, or
  // [batch, 1]. Dropout applies only if `training`.
  virtual std::vector<Tensor> step(const Tensor& x, const std::vector<Tensor>& state, const Tensor& timespan, bool training) const = 0;
  virtual Tensor output(const Tensor& state) const { return state; }  // from the first state, [..., size] to [..., outputs()]
  virtual void visit(Visitor& v) = 0;
  virtual void prune() {}  // sets parameters of absent synapses to 0; called after weights were loaded from a file

  int64_t inputs() const { return inputs_; }                      // features per step
  int64_t outputs() const { return outputs_; }                    // values per step
  const std::vector<int64_t>& states() const { return states_; }  // sizes of its states
  bool timed() const { return timed_; }                           // whether timespans have an effect

 protected:
  Cell(int64_t inputs, int64_t outputs, std::vector<int64_t> states, bool timed)
      : inputs_(inputs), outputs_(outputs), states_(std::move(states)), timed_(timed) {}

 private:
  int64_t inputs_, outputs_;
  std::vector<int64_t> states_;
  bool timed_;
};

// Describes a Circuit completely: equal arguments and weights give equal outputs. Options of other cells, and values out of range, are errors.
struct CircuitArgs {
  // cfc: closed-form continuous-time; ltc: liquid time-constant, solved semi-implicitly; eltc: dy/dt = tanh(Wx + Uy + b) - y; ctrnn: the same with
  // learned time constants; node: dy/dt = tanh(Wx + Uy + b); ctgru: a GRU with 8 time scales; lstm, gru, mingru: without continuous time.
  std::string cell = "cfc";
  int64_t inputs = 0;               // features per time step; 0: those that the wiring was built for
  int64_t units = 0;                // neurons of each layer; with a wiring: 0, or its number
  std::vector<Wiring> wiring = {};  // none: dense; else one per layer, or one for all. An unbuilt wiring is built for its layer's inputs
  int64_t layers = 1;               // stacked: each reads the outputs of the one before
  bool bidirectional = false;       // a second set of cells runs backwards; outputs are concatenated
  bool mixed_memory = false;        // an LSTM step before each step of the cell, for long-term memory (cfc, ltc, eltc, ctrnn, node)
  int64_t projection = 0;           // a linear layer to this many outputs; 0: none
  bool return_sequences = true;     // false: only the output of the last step, of each direction
  bool batch_first = true;          // sequences are [batch, time, features]; false: [time, batch, features]

  std::string mode = "default";                 // cfc: default, pure, no_gate
  std::string activation = "lecun_tanh";        // cfc backbone: lecun_tanh, tanh, relu, silu, gelu
  std::optional<int64_t> backbone_units = {};   // cfc without a wiring: none: 128
  std::optional<int64_t> backbone_layers = {};  // none: 1
  std::optional<double> backbone_dropout = {};  // after each backbone layer but the first; none: 0
  std::string solver = {};                      // eltc, ctrnn, node: euler, rk4, semi_implicit; empty: rk4, for ctrnn euler
  int64_t ode_unfolds = 0;                      // solver steps per time step; 0: 6, for eltc 4
  double epsilon = 1e-8;                        // ltc: added to the denominator
  bool implicit_constraints = true;             // ltc: positive parameters by softplus; false: every update sets negative ones to 0
  std::string input_mapping = "affine";         // ltc: affine, linear, none
  std::string output_mapping = "affine";

  std::string json() const;    // of everything, including the wirings
  std::string remark() const;  // what a cell does not use of its wiring; usually empty
  static CircuitArgs from_json(std::string_view text);
};

// Makes the cell of a layer with this many inputs.
using CellMaker = std::function<std::unique_ptr<Cell>(int64_t inputs)>;
std::unique_ptr<Cell> make_cell(const CircuitArgs& args, int64_t inputs, const Wiring* wiring = nullptr);  // `wiring` must be built

// What a call of a Circuit may be given besides the sequences.
struct SequenceArgs {
  std::vector<Tensor> state = {};  // initial states as CircuitOutput has them; none: zeros
  // Time since the previous step: a scalar, [time], or [batch, time] or [batch, time, 1] (time first if sequences are); none: 1. A negative or non-finite
  // value makes the run fail. The backward direction uses each step's own timespan.
  Tensor timespans = {};
  Tensor lengths =
      {};  // i64 [batch]: valid steps of each sequence. Later steps keep the state, their outputs are 0, and the reverse direction begins before them
  bool training = false;  // applies dropout
};

// The outputs [batch, time, outputs] (or [batch, outputs] of the last valid step), and the final states [batch, size]: for each layer and direction its cell's
// states and, with mixed memory, the LSTM's.
struct CircuitOutput {
  Tensor output;
  std::vector<Tensor> state;
};

// A recurrent model; a module like any other. Copies share their weights.
//   struct Net {
//     Circuit rnn{{.inputs = 8, .units = 64}};
//     Linear out{64, 1};
//     Tensor operator()(const Tensor& x) const { return out(rnn(x).output); }
//     void visit(Visitor& v) { v("rnn", rnn)("out", out); }
//   };
class Circuit {
 public:
  explicit Circuit(CircuitArgs args);
  Circuit(CircuitArgs args, const CellMaker& cell);  // with your own cells

  // x is [batch, time, inputs], [time, batch, inputs] unless batch_first, or [time, inputs] for a single sequence; then results have no batch axis either.
  CircuitOutput operator()(const Tensor& x, const SequenceArgs& args = {}) const;
  // One step: x [batch, inputs] to [batch, outputs].
  CircuitOutput step(const Tensor& x, const std::vector<Tensor>& state, const Tensor& timespan = {}) const;
  void visit(Visitor& v);  // names parameters as the Python package ncps does: rnn_cell.ff1.weight, lstm.input_map.weight, fc.weight, …

  const CircuitArgs& args() const { return args_; }
  int64_t outputs() const;                              // per step
  std::vector<Tensor> zero_state(int64_t batch) const;  // in the order of CircuitOutput::state

  // One safetensors file with everything, except for cells of your own (ErrorCode::usage): load() gives the same model again. It also reads files of the Python
  // package (safetensors.torch.save_file of a state_dict): sizes and wiring then come from the file's tensors, and what they do not show (mode, activation,
  // unfolds, …, and the outputs of an LTC without output mapping, if its wiring has fewer outputs than units) from `args`.
  void save(const std::string& path);
  static Circuit load(const std::string& path, CircuitArgs args = {});

 private:
  struct Track {  // one direction of one layer
    std::shared_ptr<Cell> cell, lstm;
    std::vector<int64_t> states() const;
    std::vector<Tensor> step(const Tensor& x, const std::vector<Tensor>& state, const Tensor& timespan, bool training) const;
  };
  const Track& track(int64_t layer, int64_t direction) const { return tracks_[size_t(layer * directions() + direction)]; }
  int64_t directions() const { return args_.bidirectional ? 2 : 1; }

  CircuitArgs args_;
  bool own_cells_;
  std::vector<Track> tracks_;
  std::optional<Linear> fc_;
};

// Runs a circuit step by step, for control loops: compiled once for the CPU, with a copy of the weights at that time. A step allocates nothing.
class CircuitStream {
 public:
  explicit CircuitStream(const Circuit& circuit, int64_t batch = 1);  // ErrorCode::usage for a bidirectional circuit
  ~CircuitStream();
  CircuitStream(CircuitStream&&) noexcept;

  // One step: batch × inputs values in, batch × outputs values out, valid until the next step. ErrorCode::value for a negative or non-finite timespan.
  std::span<const float> step(std::span<const float> x, float timespan = 1);
  void reset();                              // sets all states to 0
  std::span<float> state(size_t index = 0);  // batch × size values, in the order of CircuitOutput::state; may be changed

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// A picture of states over time [time, neurons], for example of a stream after every step: a row per neuron, red above 0 and blue below.
std::string states_svg(const Tensor& states, const std::string& title = "Neuron states");

}  // namespace ridge
