// Recurrent models in continuous time as a task: CfC, LTC and their relatives on sequences.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "data/series.h"
#include "ridge/circuits.h"
#include "train/task.h"

namespace ridge {

inline constexpr const char* kCircuitsName = "cfc";

Task circuits_task();
void register_circuit_keys();
std::vector<BenchRow> circuit_bench_rows(bool gpu);
BenchStep circuit_bench_step(const BenchRow& row, const config::Resolved& settings);
std::vector<Verb> circuit_verbs();

// A circuit whose projection predicts the numbers or classes of a data set.
struct CircuitNet {
  Circuit rnn;
  bool span = false, input = false;  // how it learns the time that a step covers
  std::vector<int64_t> added;        // inputs that are added to the outputs; empty: none
  double time_scale = 1;             // factor of that time
  // x [B, T, inputs] and dt [B, T] to [B, T, outputs].
  Tensor operator()(const Tensor& x, const Tensor& dt, bool training) const;
  void visit(Visitor& v) { rnn.visit(v); }                           // so that files have the circuit's own names
  Loss loss(const std::vector<Tensor>& batch, bool training) const;  // mean squared error or, with labels, cross-entropy and the accuracy

  std::string json(const Series& series, const std::string& source) const;  // with all that is needed to use it on new data
};

// The data that settings name, and a model for it with new weights. `earlier`: a circuit.json whose synapses it has, whatever has become of a wiring file.
std::unique_ptr<Series> open_series(const config::Resolved& settings, const std::string& source);
CircuitNet make_net(const config::Resolved& settings, const Series& series, const std::string& earlier = {});

// A trained model with its best weights: a run, one of its checkpoints, or the model folder in it. Another `source` replaces the data that it was trained on.
struct TrainedCircuit {
  std::filesystem::path folder;
  std::unique_ptr<CircuitNet> net;
  std::unique_ptr<Series> series;
  std::vector<std::string> notices;  // what was skipped or assumed, one line each
  bool other_data = false;           // a table that the model has never seen: all of it is the test part
};
bool is_circuit(const std::filesystem::path& model);
TrainedCircuit load_circuit(const std::filesystem::path& model, const std::string& source = {}, int64_t length = 0);

// How well a model predicts a part of the data.
struct CircuitReport {
  SeriesPart part = SeriesPart::test;
  std::string other_data;  // instead of a part of the data that the model was trained on: a name
  bool classes = false;
  int64_t sequences = 0;
  double error = 0;            // mean squared error, or the share of right classes
  std::optional<double> best;  // of any model
  std::string best_reason;
  SeriesBaselines baselines;
  std::vector<int64_t> confusion;          // [classes, classes]: rows are the truth
  std::vector<std::string> outputs;        // names
  std::string picture;                     // SVG: predictions and truth of the first sequence; empty for classes
  std::vector<std::string> lines() const;  // for people
  std::vector<std::pair<std::string, double>> figures() const;
};
CircuitReport report_circuit(const CircuitNet& net, const Series& series, SeriesPart part = SeriesPart::test);

}  // namespace ridge
